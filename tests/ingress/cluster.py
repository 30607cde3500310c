"""A small ingress for tests: real redis-server, cube-relay and cube-proxy, and for each sandbox a connector that stands where its VM
would be. Everything on free ports in a temporary directory."""
import ctypes
import hashlib
import hmac
import os
import pathlib
import random
import re
import shutil
import socket
import string
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CUBE_BUILD", ROOT / "build"))


LIBC = ctypes.CDLL(None)


def die_with_parent():
    LIBC.prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM: a test that is killed leaves nothing behind


given = set()  # never the same one twice: most are bound only later


def free_port():
    while True:  # below the range from which the kernel picks ports of outgoing connections
        port = random.randrange(15000, 32000)
        if port in given:
            continue
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                given.add(port)
                return port
            except OSError:
                pass


def wait_for(what, seconds=60, why="condition"):
    end = time.monotonic() + seconds
    while True:
        got = what()
        if got:
            return got
        if time.monotonic() > end:
            raise TimeoutError("waited %s s for %s" % (seconds, why))
        time.sleep(0.01)


def listening(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def sandbox_id():
    return "i0" + "".join(random.choice(string.ascii_lowercase + string.digits) for _ in range(19))


class Redis:
    """The few commands that the tests need, over one socket."""

    def __init__(self, port):
        self.s = socket.create_connection(("127.0.0.1", port))
        self.f = self.s.makefile("rb")

    def __call__(self, *args):
        args = [a if isinstance(a, bytes) else str(a).encode() for a in args]
        self.s.sendall(b"*%d\r\n" % len(args) + b"".join(b"$%d\r\n%s\r\n" % (len(a), a) for a in args))
        return self.reply()

    def reply(self):
        line = self.f.readline()
        kind, rest = line[:1], line[1:-2]
        if kind in b"+:":
            return rest
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b"$":
            return None if rest == b"-1" else self.f.read(int(rest) + 2)[:-2]
        return [self.reply() for _ in range(int(rest))]


class Cluster:
    """Streams go over the relay's link, but for the proxies whose number is in `tcp`: these are as on another host. CUBE_INGRESS_TCP=1: all."""

    def __init__(self, proxies=1, config="", relay_config="", access_log=True, start_relay=True, tcp=()):
        self.access_log = access_log
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="P-ingress-"))
        self.run = self.dir / "run"
        (self.run / "sb").mkdir(parents=True)
        (self.run / "relay").mkdir()
        (self.dir / "keys").mkdir()
        self.children = []
        self.seed = os.urandom(32)
        self.redis_port, self.relay_port = free_port(), free_port()
        self.api_port, self.lifecycle_port = free_port(), free_port()
        (self.dir / "keys" / "proxy.key").write_text(os.urandom(32).hex() + "\n")
        (self.dir / "keys" / "proxy.key").chmod(0o600)
        self.extra, self.relay_extra, self.tcp = config, relay_config, range(64) if os.environ.get("CUBE_INGRESS_TCP") else tcp
        self.spawn(["redis-server", "--port", str(self.redis_port), "--bind", "127.0.0.1", "--save", "", "--daemonize", "no",
                    "--dir", str(self.dir)], "redis")
        wait_for(lambda: listening(self.redis_port), why="redis")
        self.redis = Redis(self.redis_port)
        self.redis("HSET", "{c0}:meta", "state", "ready")
        self.relay = self.start_relay() if start_relay else None
        self.proxies = [self.start_proxy(i) for i in range(proxies)]
        if self.proxies:
            self.port, self.tls_port = self.proxies[0].port, self.proxies[0].tls_port

    def spawn(self, argv, name, **env):
        log = open(self.dir / (name + ".log"), "ab")
        p = subprocess.Popen([str(a) for a in argv], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **env},
                             preexec_fn=die_with_parent)
        p.name = name
        self.children.append(p)
        return p

    def start_relay(self):
        admin = free_port()
        conf = self.dir / "relay.yaml"
        conf.write_text("common:\n  run_dir: %s\n  state_dir: %s\nrelay:\n  listen: 127.0.0.1:%d\n  admin_listen: 127.0.0.1:%d\n%s"
                        % (self.run, self.dir, self.relay_port, admin, self.relay_extra))
        p = self.spawn([BUILD / "node/relay/cube-relay", "--config", conf], "relay")
        wait_for(lambda: listening(admin) and listening(self.relay_port), why="cube-relay")  # it serves the admin address last
        p.admin = admin
        return p

    def start_proxy(self, i=0, port=None, tls_port=None, link=None, more=""):
        port, tls_port, admin = port or free_port(), tls_port or free_port(), free_port()
        run = self.dir / ("proxy%d" % i)
        (run / "proxy").mkdir(parents=True, exist_ok=True)
        conf = self.dir / ("proxy%d.yaml" % i)
        conf.write_text(
            "common:\n  redis: 127.0.0.1:%d\n  state_dir: %s\n  domain: cube.test\n  run_dir: %s\n"
            "proxy:\n  listen: 127.0.0.1:%d\n  tls_listen: 127.0.0.1:%d\n  admin_listen: 127.0.0.1:%d\n  api: 127.0.0.1:%d\n"
            "  lifecycle: 127.0.0.1:%d\n  access_log: %s\n  relay_link: %s\n%s"
            % (self.redis_port, self.dir, run, port, tls_port, admin, self.api_port, self.lifecycle_port,
               self.dir / "access.log" if self.access_log else '""', '""' if i in self.tcp else link or self.run / "relay/link.sock", self.extra + more))
        p = self.spawn([BUILD / "proxy/cube-proxy", "--config", conf], "proxy%d" % i)
        p.port, p.tls_port, p.admin, p.index = port, tls_port, admin, i

        def ready():
            if p.poll() is not None:
                raise RuntimeError("cube-proxy ended:\n" + (self.dir / ("proxy%d.log" % i)).read_text())
            try:
                with socket.create_connection(("127.0.0.1", admin), 1) as s:
                    s.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    return b" 200 " in s.recv(200)
            except OSError:
                return False
        wait_for(ready, why="cube-proxy")
        return p

    def ticket(self, sandbox, gen):
        return hmac.new(self.seed, ("ticket-%s-%d" % (sandbox, gen)).encode(), hashlib.sha256).hexdigest()

    def route(self, sandbox, gen, state="running", **fields):
        """Writes the route and its event, as a master would."""
        key = "{c0}:rt:" + sandbox
        if state == "gone":
            self.redis("DEL", key)
        else:
            route = {"node": "n1", "relay": "127.0.0.1:%d" % self.relay_port, "gen": gen, "state": state, "ticket": self.ticket(sandbox, gen),
                     "envd_sha256": "", "traffic_sha256": "", "auto_resume": 0, "private": 0, "mask_host": "", "end_ms": 0, **fields}
            self.redis("HSET", key, *[x for kv in route.items() for x in kv])
        self.redis("XADD", "{c0}:ev", "MAXLEN", "~", 10000, "*", "kind", "route", "id", sandbox, "gen", gen, "state", state)

    def generation(self, sandbox, gen):
        """The node's directory of one generation."""
        final = self.run / "sb" / sandbox / str(gen)
        final.mkdir(parents=True)
        (final / "ticket").write_text(self.ticket(sandbox, gen) + "\n")
        return final

    def vm(self, sandbox, gen, ports):
        """Makes it and starts a connector in it."""
        final = self.generation(sandbox, gen)
        p = self.spawn([BUILD / "tests/ingress/connector", final / "in.sock", *["%d=%d" % kv for kv in ports.items()]], "vm-" + sandbox)
        wait_for(lambda: (final / "in.sock").exists(), why="in.sock")
        p.dir = final
        return p

    def sandbox(self, ports, gen=1, **fields):
        sandbox = sandbox_id()
        vm = self.vm(sandbox, gen, ports)
        self.route(sandbox, gen, **fields)
        return sandbox, vm

    def end(self, p):
        p.terminate()
        try:
            p.wait(20)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
        self.children.remove(p)

    def close(self):
        for p in reversed(self.children[:]):
            self.end(p)
        for log in self.dir.glob("*.log"):
            report = re.search(r"(ERROR: (Address|Leak)Sanitizer|runtime error:|WARNING: ThreadSanitizer).{0,3000}", log.read_text(errors="replace"), re.S)
            if report:
                print("FAIL ingress: sanitizer report in %s: %s" % (log.name, report.group(0)))
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            for log in sorted(self.dir.glob("*.log")):
                text = log.read_text(errors="replace")[-3000:]
                if text and log.name != "redis.log":
                    print("---", log.name, "\n" + text)
        self.close()
