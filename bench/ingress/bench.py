"""The ingress benchmark: cube-proxy (through a real cube-relay, with a connector where a VM would be) beside Debian's haproxy and nginx as plain
reverse proxies, one thread each, to the same backend. CPU is utime + stime of the proxy process alone."""
import json
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time

from cluster import BUILD, Cluster, die_with_parent, free_port, listening, sandbox_id, wait_for
from test_lifecycle import Lifecycle
from test_http1 import Raw, by

LOAD, SERVER = BUILD / "bench/ingress/ingress-load", BUILD / "bench/ingress/ingress-server"
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


def main():
    as_json = "--json" in sys.argv
    say = lambda *a: print(*a, file=sys.stderr, flush=True)
    load_before = os.getloadavg()[0]
    missing = [p for p in ("haproxy", "nginx") if shutil.which(p) is None]
    if missing:
        sys.exit("bench ingress needs the Debian packages haproxy and nginx-light (missing: %s)" % ", ".join(missing))
    with Cluster(proxies=2, access_log=False, config="  threads: 1\n  max_connections_per_sandbox: 100000\n", relay_config="  max_streams_per_sandbox: 100000\n") as c:
        server = c.spawn([SERVER], "server")
        backend = int(wait_for(lambda: (c.dir / "server.log").read_text().strip(), why="backend"))
        sb, vm = c.sandbox({8000: backend})
        host = "8000-%s.cube.test" % sb
        proxy = c.proxies[0]
        ha, ha_port = start_haproxy(c, backend)
        ng, ng_port = start_nginx(c, backend)
        targets = {"cube": (proxy.pid, proxy.port, host), "haproxy": (ha.pid, ha_port, "x.test"), "nginx": (ng.pid, ng_port, "x.test")}
        say("CPU per request: %d rounds of %d s with %d connections each" % (ROUNDS, SECONDS, CONNECTIONS))
        cost, rates = per_request(c, targets)
        for name in targets:
            say("  %-8s %.1f µs of CPU per request (%s), %.0f requests/s" % (name, statistics.median(cost[name]),
                " ".join("%.1f" % v for v in cost[name]), statistics.median(rates[name])))
        metric("cpu", "µs", cost["cube"])
        metric("cpu-haproxy", "µs", cost["haproxy"])
        metric("cpu-nginx", "µs", cost["nginx"])
        metric("cpu-vs-haproxy", "x", [a / b for a, b in zip(cost["cube"], cost["haproxy"])])
        metric("cpu-vs-nginx", "x", [a / b for a, b in zip(cost["cube"], cost["nginx"])])
        metric("rate", "per second", rates["cube"])

        half = int(statistics.median(rates["cube"]) / 2)
        added50, added99 = [], []
        for _ in range(ROUNDS):
            d = [int(v) for v in load("rate", backend, host, half, SECONDS, CONNECTIONS)]
            p = [int(v) for v in load("rate", proxy.port, host, half, SECONDS, CONNECTIONS)]
            added50.append(p[1] - d[1])
            added99.append(p[2] - d[2])
            say("  at %d requests/s: direct p50 %d p99 %d µs, through proxy and relay p50 %d p99 %d µs" % (half, d[1], d[2], p[1], p[2]))
        results.append({"metric": "added", "unit": "µs", "n": ROUNDS, "p50": statistics.median(added50), "p99": statistics.median(added99), "max": max(added99)})

        for verb, name in (("put", "upload-vs-direct"), ("get", "download-vs-direct")):
            ratios = []
            for _ in range(ROUNDS):
                direct, through = float(load(verb, backend, host, GiB2)[0]), float(load(verb, proxy.port, host, GiB2)[0])
                ratios.append(direct / through)
                say("  %s %.1f GiB: direct %.2f s, through %.2f s" % (verb, GiB2 / 2**30, direct, through))
            metric(name, "x", ratios)
        metric("rss", "MiB", [status_mib(proxy.pid, "VmHWM")])
        say("  proxy resident high-water %.1f MiB" % status_mib(proxy.pid, "VmHWM"))

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        count = min(int(os.environ.get("CUBE_BENCH_WEBSOCKETS", 5000)), (limit - 200) // 2)
        held = [idle_websockets(c, host, p, count // 2) for p in c.proxies]
        metric("idle-websocket", "KiB", [kib for kib, _ in held])
        say("  %d idle WebSockets: %.1f KiB each (limit of descriptors %d)" % (count, max(kib for kib, _ in held), limit))
        vm2 = c.vm(sb, 2, {8000: backend})
        t = time.time()
        c.route(sb, 2)
        gone = [float(p.stdout.readline().split()[1]) - t for _, p in held]
        say("  route change: the last of %d streams on 2 proxies was closed after %.1f ms" % (count, max(gone) * 1000))

        # With few streams, as in life: how long until a proxy acts on the change.
        changes = []
        for gen in range(3, 3 + 20):
            p = [subprocess.Popen([str(LOAD), "ws", str(x.port), host, "4"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for x in c.proxies]
            for x in p:
                x.stdout.readline()
            v = c.vm(sb, gen, {8000: backend})
            t = time.time()
            c.route(sb, gen)
            changes.append(max(float(x.stdout.readline().split()[1]) - t for x in p) * 1000)
        metric("route-change", "ms", changes)

        life = Lifecycle(c)
        added = []
        for _ in range(30):
            s2 = sandbox_id()
            c.route(s2, 1, state="paused", auto_resume=1)
            k = Raw(c)
            t = time.monotonic()
            k.send("GET /2 HTTP/1.1\r\n%s\r\n" % by(s2))
            life.calls.get(timeout=5)
            called = time.monotonic()
            v = c.vm(s2, 2, {8000: backend})  # the node's resume, not counted
            c.route(s2, 2, auto_resume=1)
            resumed = time.monotonic()
            life.answer("ok 2 0")
            if k.answer()[0] != 200:
                raise RuntimeError("wake failed")
            added.append((called - t + time.monotonic() - resumed) * 1000)
            c.end(v)
        metric("wake-added", "ms", added)
        life.p.kill()
    out = {"name": "ingress", "environment": {"cores": os.cpu_count(), "kernel": platform.release(), "kvm": "not used", "load": round(load_before, 2),
                                              "fd_limit": limit}, "results": results, "busy": load_before > 0.5 * os.cpu_count()}
    if as_json:
        print(json.dumps(out))
    else:
        for r in results:
            print("%-20s %10.3f %-10s p99 %.3f  max %.3f  (n=%d)" % (r["metric"], r["p50"], r["unit"], r["p99"], r["max"], r["n"]))
        if out["busy"]:
            print("the machine was busy (load %.2f): the ratios hold better than the absolute numbers" % load_before)


main()
