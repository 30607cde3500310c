"""The ingress benchmark: cube-proxy (through a real cube-relay, with a connector where a VM would be) beside Debian's haproxy and nginx as plain
reverse proxies, one thread each, to the same backend. CPU is utime + stime of the proxy process alone."""
import json
import os
import platform
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

from cluster import BUILD, ROOT, Cluster, die_with_parent, free_port, listening, sandbox_id, wait_for
from test_lifecycle import Lifecycle
from test_http1 import Raw, by

LOAD, SERVER, HOP = (BUILD / "bench/ingress" / n for n in ("ingress-load", "ingress-server", "ingress-hop"))
ROUNDS = int(os.environ.get("CUBE_BENCH_ROUNDS", 3))
SECONDS = int(os.environ.get("CUBE_BENCH_SECONDS", 4))
CONNECTIONS = 32
GiB2 = int(os.environ.get("CUBE_BENCH_BYTES", 2 << 30))
results, notes = [], []


def metric(name, unit, values):
    values = sorted(values)
    results.append({"metric": name, "unit": unit, "n": len(values), "p50": round(values[len(values) // 2], 3),
                    "p99": round(values[min(len(values) - 1, len(values) * 99 // 100)], 3), "max": round(values[-1], 3)})


def cpu_s(pid):
    """utime + stime of a process and its children, in seconds."""
    total = 0.0
    for p in [pid] + [int(c) for t in os.listdir("/proc/%d/task" % pid) for c in open("/proc/%d/task/%s/children" % (pid, t)).read().split()]:
        f = open("/proc/%d/stat" % p).read().rsplit(")", 1)[1].split()
        total += (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK")
    return total


def load(*args):
    return subprocess.run([str(LOAD), *[str(a) for a in args]], stdout=subprocess.PIPE, check=True, text=True, timeout=300).stdout.split()


def status_mib(pid, key):
    return int(re.search(key + r":\s+(\d+)", open("/proc/%d/status" % pid).read()).group(1)) / 1024


def start_haproxy(c, backend):
    port = free_port()
    conf = c.dir / "haproxy.cfg"
    conf.write_text("""global
  nbthread 1
  maxconn 8000
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  timeout tunnel 1h
  option forwardfor
  http-reuse always
frontend f
  bind 127.0.0.1:%d
  default_backend b
backend b
  server s 127.0.0.1:%d
""" % (port, backend))
    p = c.spawn(["haproxy", "-db", "-f", conf], "haproxy")
    wait_for(lambda: listening(port), why="haproxy")
    return p, port


def start_nginx(c, backend):
    port = free_port()
    conf = c.dir / "nginx.conf"
    conf.write_text("""daemon off; worker_processes 1; pid %s/nginx.pid; error_log %s/nginx.err;
events { worker_connections 16384; }
http { access_log off; client_max_body_size 0; keepalive_requests 1000000000;
  client_body_temp_path %s; proxy_temp_path %s; fastcgi_temp_path %s; uwsgi_temp_path %s; scgi_temp_path %s;
  upstream b { server 127.0.0.1:%d; keepalive 256; keepalive_requests 1000000000; }
  server { listen 127.0.0.1:%d; location / { proxy_pass http://b; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_request_buffering off; proxy_buffering off; } } }
""" % ((c.dir,) * 7 + (backend, port)))
    p = c.spawn(["nginx", "-c", conf], "nginx")
    wait_for(lambda: listening(port), why="nginx")
    return p, port


def per_request(c, targets):
    """CPU-µs per request, in rounds that take turns."""
    cost = {name: [] for name in targets}
    rates = {name: [] for name in targets}
    for _ in range(ROUNDS):
        for name, (pid, port, host) in targets.items():
            before = cpu_s(pid)
            n, seconds = load("burst", port, host, SECONDS, CONNECTIONS)
            cost[name].append((cpu_s(pid) - before) * 1e6 / int(n))
            rates[name].append(int(n) / float(seconds))
    return cost, rates


def idle_websockets(c, host, proxy, count):
    before = status_mib(proxy.pid, "VmRSS")
    p = subprocess.Popen([str(LOAD), "ws", str(proxy.port), host, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                         preexec_fn=die_with_parent)
    if p.stdout.readline() != "open\n":
        raise RuntimeError("WebSockets did not open")
    time.sleep(0.5)
    return (status_mib(proxy.pid, "VmRSS") - before) * 1024 / count, p


def say(*a):
    print(*a, file=sys.stderr, flush=True)


class Bench:
    """One cluster with a relay and two proxies: the first gets its streams over the relay's link, as on the sandbox's own host; the second (`cube-tcp`) over TCP, as
    from another host, where there are two hops. `sb` is reached over a plain TCP backend behind a connector; `bulk` is served by the same
    backend on its own in.sock, as a VMM does, so that between proxy and backend there is the relay alone."""

    def __init__(self, c):
        self.c = c
        self.bulk = sandbox_id()
        self.in_sock = c.generation(self.bulk, 1) / "in.sock"
        self.server = c.spawn([SERVER, self.in_sock], "server")
        self.backend, self.unpaced = map(int, wait_for(lambda: (c.dir / "server.log").read_text().endswith("\n") and (c.dir / "server.log").read_text().split(), why="backend"))
        c.route(self.bulk, 1)
        self.sb, _ = c.sandbox({8000: self.backend})
        self.host, self.bulk_host = ("8000-%s.cube.test" % s for s in (self.sb, self.bulk))
        self.proxy, self.far = c.proxies
        self.empty = self.one = self.peers = None

    def targets(self):
        if self.peers is None:
            self.peers = {name: (p.pid, port, "x.test") for name, (p, port) in (("haproxy", start_haproxy(self.c, self.backend)), ("nginx", start_nginx(self.c, self.backend)))}
        return {"cube": (self.proxy.pid, self.proxy.port, self.host), "cube-tcp": (self.far.pid, self.far.port, self.host), **self.peers}

    def cpu(self):
        targets = self.targets()
        say("CPU per request: %d rounds of %d s with %d connections each" % (ROUNDS, SECONDS, CONNECTIONS))
        cost, rates = per_request(self.c, targets)
        for name in targets:
            say("  %-8s %.1f µs of CPU per request (%s), %.0f requests/s" % (name, statistics.median(cost[name]),
                " ".join("%.1f" % v for v in cost[name]), statistics.median(rates[name])))
        metric("cpu", "µs", cost["cube"])
        metric("cpu-haproxy", "µs", cost["haproxy"])
        metric("cpu-nginx", "µs", cost["nginx"])
        metric("cpu-vs-haproxy", "x", [a / b for a, b in zip(cost["cube"], cost["haproxy"])])
        metric("cpu-vs-nginx", "x", [a / b for a, b in zip(cost["cube"], cost["nginx"])])
        metric("cpu-tcp", "µs", cost["cube-tcp"])
        metric("cpu-tcp-vs-haproxy", "x", [a / b for a, b in zip(cost["cube-tcp"], cost["haproxy"])])
        metric("cpu-tcp-vs-nginx", "x", [a / b for a, b in zip(cost["cube-tcp"], cost["nginx"])])
        metric("rate", "per second", rates["cube"])

    def hops(self):
        """Ports of an empty hop on the way that the proxy has over a link, and of the first of two on the way that proxy and relay have: they copy or splice and
        look at nothing."""
        def hop(to, name):
            self.c.spawn([HOP, to], name)
            return int(wait_for(lambda: (self.c.dir / (name + ".log")).read_text().strip(), why=name))
        if self.empty is None:
            self.one = hop(self.in_sock, "hop0")
            self.empty = hop(hop(self.in_sock, "hop2"), "hop1")
        return {"one-empty-hop": (self.one, "x.test"), "two-empty-hops": (self.empty, "x.test")}

    def highest(self):
        """The highest rate that proxy and relay keep up with in an open loop. A closed loop serves more, because there each turn of a program finds many
        requests; half of that would not be half of the load."""
        n, seconds = load("burst", self.proxy.port, self.bulk_host, 2, CONNECTIONS)
        rate = int(n) / float(seconds)
        while rate > 1000:
            n, p50, *_ = (int(v) for v in load("rate", self.proxy.port, self.bulk_host, int(rate), 1, CONNECTIONS))
            if n >= 0.99 * rate and p50 < 2000:
                break
            rate *= 0.85
        return rate

    def latency(self):
        """Open loop at one rate for all. Among the others are empty chains of one and two hops: what these add is wake-ups and the kernel's TCP, and no program on
        the way can add less. `wake-up` is what one wake-up on the other core costs here; one hop needs two of them per request, two need four."""
        half = int(self.highest() / 2)
        woken = [[float(v) for v in load("wakeup")] for _ in range(ROUNDS)]
        results.append({"metric": "wake-up", "unit": "µs", "n": ROUNDS, "p50": statistics.median(w[0] for w in woken), "p99": statistics.median(w[1] for w in woken),
                        "max": max(w[1] for w in woken)})
        ways = {"direct": (self.backend, self.bulk_host), "cube": (self.proxy.port, self.bulk_host), "cube-tcp": (self.far.port, self.bulk_host),
                **self.hops(), **{name: (port, host) for name, (_, port, host) in self.targets().items() if not name.startswith("cube")}}
        seen = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, (port, host) in ways.items():
                seen[name].append([int(v) for v in load("rate", port, host, half, SECONDS, CONNECTIONS)])
        for name, rounds in seen.items():
            say("  at %d requests/s: %-14s p50 %s, p99 %s µs" % (half, name, " ".join(str(r[1]) for r in rounds), " ".join(str(r[2]) for r in rounds)))
        for name in ways:
            if name != "direct":
                added = [[r[i] - d[i] for r, d in zip(seen[name], seen["direct"])] for i in (1, 2)]
                results.append({"metric": "added" if name == "cube" else "added-" + name, "unit": "µs", "n": ROUNDS, "p50": statistics.median(added[0]),
                                "p99": statistics.median(added[1]), "max": max(added[1])})
        for name, way, floor in (("added-own", "cube", "one-empty-hop"), ("added-own-tcp", "cube-tcp", "two-empty-hops")):
            own = [[r[i] - d[i] for r, d in zip(seen[way], seen[floor])] for i in (1, 2)]
            results.append({"metric": name, "unit": "µs", "n": ROUNDS, "p50": statistics.median(own[0]), "p99": statistics.median(own[1]), "max": max(own[1])})

    def transfer(self):
        """Beside the direct connection: haproxy, one hop of one process, and one and two empty hops that splice, which is the most that one or two processes on
        the way can leave of it on this machine: generator and backend alone use up two cores. The direct connection is paced as the host has it; direct-unpaced
        is not, as the proxy's are on loopback."""
        ha, ha_port, _ = self.targets()["haproxy"]
        ways = {"direct": (self.backend, self.host), "direct-unpaced": (self.unpaced, self.host), "cube": (self.proxy.port, self.bulk_host), "cube-tcp": (self.far.port, self.bulk_host), "haproxy": (ha_port, "x.test"), **self.hops()}
        for p in self.c.proxies:
            load("put", p.port, self.bulk_host, 1 << 26)
        for verb, name in (("put", "upload"), ("get", "download")):
            took = {way: [] for way in ways}
            for _ in range(ROUNDS):
                before = [cpu_s(p) for p in (self.proxy.pid, self.c.relay.pid, ha)]
                for way, (port, host) in ways.items():
                    took[way].append(float(load(verb, port, host, GiB2)[0]))
                cpu = [cpu_s(p) - b for p, b in zip((self.proxy.pid, self.c.relay.pid, ha), before)]
                say("  %s %.1f GiB: %s; CPU of proxy %.2f, relay %.2f, haproxy %.2f s" % (name, GiB2 / 2**30, ", ".join("%s %.2f s" % (w, t[-1]) for w, t in took.items()), *cpu))
            for way in list(ways)[1:]:
                metric(name + ("-" if way == "cube" else "-%s-" % way) + "vs-direct", "x", [d / t for d, t in zip(took["direct"], took[way])])
            metric(name + "-vs-one-empty-hop", "x", [d / t for d, t in zip(took["one-empty-hop"], took["cube"])])
            metric(name + "-cube-tcp-vs-two-empty-hops", "x", [d / t for d, t in zip(took["two-empty-hops"], took["cube-tcp"])])
        metric("rss", "MiB", [status_mib(self.proxy.pid, "VmHWM")])
        say("  proxy resident high-water %.1f MiB" % status_mib(self.proxy.pid, "VmHWM"))

    def node(self, i):
        """A relay of its own and a backend behind it, as on another node: a relay needs two descriptors per stream, as a proxy does."""
        home, port = self.c.dir / ("node%d" % i), free_port()
        sb = sandbox_id()
        (home / "relay").mkdir(parents=True)
        (home / "sb" / sb / "1").mkdir(parents=True)
        (home / "sb" / sb / "1/ticket").write_text(self.c.ticket(sb, 1) + "\n")
        self.c.spawn([SERVER, home / "sb" / sb / "1/in.sock"], "server-node%d" % i)
        conf = self.c.dir / ("node%d.yaml" % i)
        conf.write_text("common:\n  run_dir: %s\n  state_dir: %s\nrelay:\n  listen: 127.0.0.1:%d\n  admin_listen: 127.0.0.1:%d\n%s"
                        % (home, home, port, free_port(), self.c.relay_extra))
        self.c.spawn([BUILD / "node/relay/cube-relay", "--config", conf], "relay-node%d" % i)
        wait_for(lambda: listening(port) and (home / "sb" / sb / "1/in.sock").exists(), why="a node")
        self.c.route(sb, 1, relay="127.0.0.1:%d" % port)
        return sb, port

    def websockets(self):
        """As many as a proxy process may hold, in all proxies together; each has a relay of its own."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        most = min((limit - 200) // 2, 25000)  # two descriptors per socket; the rest is for listeners, Redis and logs
        asked = int(os.environ.get("CUBE_BENCH_WEBSOCKETS", most * len(self.c.proxies)))
        each = min(asked // len(self.c.proxies), most)
        if each * len(self.c.proxies) < asked:
            say("  asked for %d WebSockets; a process may have %d descriptors, so %d proxies hold %d each" % (asked, limit, len(self.c.proxies), each))
        nodes = [self.node(i) for i in range(len(self.c.proxies))]
        held = [idle_websockets(self.c, "8000-%s.cube.test" % sb, p, each) for p, (sb, _) in zip(self.c.proxies, nodes)]
        metric("idle-websocket", "KiB", [kib for kib, _ in held])
        metric("idle-websockets", "open", [each * len(held)])
        say("  %d idle WebSockets at once in %d proxies: %s KiB each (limit of descriptors per process %d, two per socket)"
            % (each * len(held), len(held), " ".join("%.1f" % kib for kib, _ in held), limit))
        gone = []
        for (sb, port), (_, p) in zip(nodes, held):
            t = time.time()
            self.c.route(sb, 2, relay="127.0.0.1:%d" % port)
            gone.append(float(p.stdout.readline().split()[1]) - t)
        say("  route change: the last of %d streams of one sandbox was closed after %.1f ms" % (each, max(gone) * 1000))

    def route(self):
        """With few streams, as in life: how long until every proxy has acted on the change."""
        changes = []
        sb, _ = self.c.sandbox({8000: self.backend})
        host = "8000-%s.cube.test" % sb
        for gen in range(2, 2 + 30):
            p = [subprocess.Popen([str(LOAD), "ws", str(x.port), host, "4"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for x in self.c.proxies]
            for x in p:
                x.stdout.readline()
            self.c.vm(sb, gen, {8000: self.backend})
            t = time.time()
            self.c.route(sb, gen)
            changes.append(max(float(x.stdout.readline().split()[1]) - t for x in p) * 1000)
        metric("route-change", "ms", changes)

    def wake(self):
        life = Lifecycle(self.c)
        added = []
        for _ in range(30):
            s2 = sandbox_id()
            self.c.route(s2, 1, state="paused", auto_resume=1)
            k = Raw(self.c)
            t = time.monotonic()
            k.send("GET /2 HTTP/1.1\r\n%s\r\n" % by(s2))
            life.calls.get(timeout=5)
            called = time.monotonic()
            v = self.c.vm(s2, 2, {8000: self.backend})  # the node's resume, not counted
            self.c.route(s2, 2, auto_resume=1)
            resumed = time.monotonic()
            life.answer("ok 2 0")
            if k.answer()[0] != 200:
                raise RuntimeError("wake failed")
            added.append((called - t + time.monotonic() - resumed) * 1000)
            self.c.end(v)
        metric("wake-added", "ms", added)
        life.p.kill()


    def vm(self):
        """CPU per request when the service is envd in a real sandbox. haproxy and nginx get the same VM behind a bridge that speaks to the relay."""
        if os.geteuid() != 0 or not os.path.exists("/dev/kvm") or not (ROOT / "cube").exists():
            say("  no VM here: the part `vm` is left out")
            return
        base = next(b for b in range(21000, 30000, 150) if all(port_free(b + o) for o in (0, 10, 20, 21, 30, 40, 41, 100, 110, 120, 130, 140, 141)))
        home = self.c.dir / "vm"
        (home / "run").mkdir(parents=True)
        for d in (self.c.dir, home):
            d.chmod(0o755)
        where = ["--state", str(home / "state"), "--run", str(home / "run"), "--port-base", str(base)]
        cube = BUILD / "cli/cube" if os.environ.get("CUBE_GUEST_KERNEL") else ROOT / "cube"  # the script looks for kernel and root file system
        say("VM: starting a cluster on ports from %d" % base)
        try:
            log = open(self.c.dir / "cube-up.log", "w")
            subprocess.run([str(cube), "up", *where], stdout=log, stderr=log, check=True, env={**os.environ, "CUBE_BUILD_DIR": str(BUILD)})
            self.vm_rounds(home, base)
        finally:
            subprocess.run([str(cube), "down", *where], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "CUBE_BUILD_DIR": str(BUILD)})

    def vm_rounds(self, home, base):
        key = (home / "state/keys/api_key").read_text().strip()
        ask = urllib.request.Request("http://127.0.0.1:%d/sandboxes" % base, data=b'{"templateID": "base", "timeout": 600}', headers={"X-API-Key": key, "Content-Type": "application/json"})
        sb = json.load(urllib.request.urlopen(ask, timeout=60))["sandboxID"]
        gen_dir = max((home / "run/sb" / sb).iterdir(), key=lambda d: int(d.name))
        host = "49983-%s.x" % sb
        bridge = self.c.spawn([BUILD / "bench/ingress/ingress-bridge", base + 41, sb, gen_dir.name, 49983, (gen_dir / "ticket").read_bytes().hex()], "bridge")
        port = int(wait_for(lambda: (self.c.dir / "bridge.log").read_text().strip(), why="bridge"))
        proxy = next(int(p) for p in os.listdir("/proc") if p.isdigit() and is_proxy_of(p, home))
        ha, ha_port = start_haproxy(self.c, port)
        ng, ng_port = start_nginx(self.c, port)
        targets = {"cube": (proxy, base + 20, host), "haproxy": (ha.pid, ha_port, "x.test"), "nginx": (ng.pid, ng_port, "x.test")}
        os.environ["LOAD_PATH"] = "/health"
        cost, rates = per_request(self.c, targets)
        del os.environ["LOAD_PATH"]
        for name in targets:
            say("  VM: %-8s %.1f µs of CPU per request, %.0f requests/s" % (name, statistics.median(cost[name]), statistics.median(rates[name])))
        metric("cpu-vm", "µs", cost["cube"])
        metric("cpu-vs-haproxy-vm", "x", [a / b for a, b in zip(cost["cube"], cost["haproxy"])])
        metric("cpu-vs-nginx-vm", "x", [a / b for a, b in zip(cost["cube"], cost["nginx"])])
        bridge.terminate()


def port_free(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) != 0


def is_proxy_of(pid, home):
    try:
        words = open("/proc/%s/cmdline" % pid).read().split("\0")
    except OSError:
        return False
    return words[0].endswith("cube-proxy") and any(str(home) in w for w in words)


SECTIONS = ["cpu", "latency", "transfer", "websockets", "route", "wake", "vm"]


def main():
    as_json = "--json" in sys.argv
    only = next((a[len("--only="):].split(",") for a in sys.argv if a.startswith("--only=")), SECTIONS)
    if not set(only) <= set(SECTIONS):
        sys.exit("bench ingress --only= takes " + ", ".join(SECTIONS))
    load_before = os.getloadavg()[0]
    missing = [p for p in ("haproxy", "nginx") if shutil.which(p) is None]
    if missing:
        sys.exit("bench ingress needs the Debian packages haproxy and nginx-light (missing: %s)" % ", ".join(missing))
    with Cluster(proxies=2, tcp=(1,), access_log=False, config="  threads: 1\n  max_connections_per_sandbox: 100000\n", relay_config="  max_streams_per_sandbox: 100000\n") as c:
        b = Bench(c)
        for name in only:
            getattr(b, name)()
    out = {"name": "ingress", "environment": {"cores": os.cpu_count(), "kernel": platform.release(), "kvm": "used by the part vm" if "vm" in only else "not used", "load": round(load_before, 2),
                                              "fd_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[1]}, "results": results, "busy": load_before > 0.5 * os.cpu_count()}
    if as_json:
        print(json.dumps(out))
    else:
        for r in results:
            print("%-20s %10.3f %-10s p99 %.3f  max %.3f  (n=%d)" % (r["metric"], r["p50"], r["unit"], r["p99"], r["max"], r["n"]))
        if out["busy"]:
            print("the machine was busy (load %.2f): the ratios hold better than the absolute numbers" % load_before)


main()
