"""A cube-jailer and a cube-node of their own, in a temporary directory, for tests and benchmarks. Real binaries, real VMs."""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import hang  # noqa: E402

ROOT = pathlib.Path(os.environ.get("CUBE_ROOT", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("CUBE_BUILD_DIR", ROOT / "build"))
DAEMONS = pathlib.Path(os.environ.get("CUBE_NODE_BUILD_DIR", BUILD))  # cube-node and cube-jailer: with a sanitizer, say; the rest is BUILD's
CACHE = pathlib.Path(os.environ.get("CUBE_CACHE", "/var/cache/cube"))
NODE_UID = 59002


class Missing(Exception):
    """Something that the host or the build does not have; a test that needs it is skipped."""


def newest(pattern):
    found = sorted(CACHE.glob(pattern), key=lambda p: p.stat().st_mtime)
    if not found:
        raise Missing(f"nothing at {CACHE}/{pattern}")
    return found[-1]


def kernel():
    if os.environ.get("CUBE_KERNEL"):
        return pathlib.Path(os.environ["CUBE_KERNEL"])
    told = subprocess.run([ROOT / "guest/kernel/build.sh", "--path"], capture_output=True, text=True)
    path = pathlib.Path((told.stdout.strip().splitlines() or ["/nonexistent"])[-1])
    return path if path.is_file() else newest("kernel/*/vmlinux")


def base_image():
    """The base image; guest/base/build.sh finds it in the cache, or builds it."""
    if os.environ.get("CUBE_BASE"):
        return pathlib.Path(os.environ["CUBE_BASE"])
    told = subprocess.run([ROOT / "guest/base/build.sh"], capture_output=True, text=True, timeout=900)
    path = pathlib.Path((told.stdout.strip().splitlines() or ["/nonexistent"])[-1])
    if not path.is_file():
        raise Missing("no base image: " + (told.stderr.strip().splitlines() or ["?"])[-1])
    return path


given = set()


def free_port():
    """Never the same one twice, and below the ephemeral range, so that no outgoing connection takes it meanwhile."""
    while True:
        port = 20000 + int.from_bytes(os.urandom(2)) % 12000
        if port in given:
            continue
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            given.add(port)
            return port


def wait_for(what, test, seconds=30.0):
    """Asks until `test()` gives something true; the events awaited here are in other processes, which tell nobody."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        got = test()
        if got:
            return got
        time.sleep(0.02)
    raise AssertionError(f"after {seconds} s still not: {what() if callable(what) else what}")


class Stack:
    def __init__(self, name="t", **node_keys):
        if os.geteuid() != 0:
            raise Missing("root is needed")
        if not os.path.exists("/dev/kvm"):
            raise Missing("no /dev/kvm")
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix=f"N-{name}-", dir="/tmp"))
        os.chmod(self.dir, 0o755)
        self.name = name + os.urandom(2).hex()
        self.port = free_port()
        self.admin = free_port()
        self.keys = {"id": f"n-{self.name}", "listen": f"127.0.0.1:{self.port}", "admin_listen": f"127.0.0.1:{self.admin}",
                     "master": '""', "vmm_pool": 2, "uplink": "none", "boot_timeout_ms": "60s", "disk_reserve_mib": 64}
        self.keys.update(node_keys)
        self.node = self.jailer = None
        for d in ("state", "run", "keys"):
            (self.dir / d).mkdir()
        for role in ("api", "master", "node", "lifecycle", "proxy", "admin"):
            key = self.dir / "keys" / f"{role}.key"
            key.write_text(os.urandom(32).hex() + "\n")
            key.chmod(0o600)
            os.chown(key, NODE_UID, NODE_UID)
        os.chown(self.dir / "keys", NODE_UID, NODE_UID)
        self.write_config()

    def write_config(self):
        keys = "".join(f"  {k}: {v}\n" for k, v in self.keys.items())
        vmm = "" if DAEMONS == BUILD else f"  vmm: {BUILD}/node/vmm/cube-vmm\n"
        (self.dir / "cube.yaml").write_text(
            f"common:\n  state_dir: {self.dir}/state\n  run_dir: {self.dir}/run\n  key_dir: {self.dir}/keys\n"
            f"node:\n{keys}jailer:\n  cgroup: {self.name}\n{vmm}")

    def start_jailer(self):
        log = open(self.dir / "jailer.log", "ab")
        self.jailer = subprocess.Popen([DAEMONS / "node/jailer/cube-jailer", "--config", self.dir / "cube.yaml"], stderr=log, stdout=log)
        wait_for("the jailer's socket", (self.dir / "run/jailer.sock").exists, 60)

    def start_node(self, ready=True):
        log = open(self.dir / "node.log", "ab")
        self.node = subprocess.Popen([DAEMONS / "node/daemon/cube-node", "--config", self.dir / "cube.yaml", "--user",
                                      f"{NODE_UID}:{NODE_UID}"], stderr=log, stdout=log)
        if ready:
            wait_for("the node being ready", self.is_ready, 120)

    def is_ready(self):
        if self.node.poll() is not None:
            raise AssertionError(f"cube-node ended with {self.node.returncode}: {self.log()[-2000:]}")
        return "200" in self.http("/readyz").split("\r\n")[0]

    def http(self, path):
        try:
            with socket.create_connection(("127.0.0.1", self.admin), 30) as s:
                s.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                got = b""
                while True:
                    part = s.recv(65536)
                    if not part:
                        return got.decode()
                    got += part
        except OSError:
            return ""

    def metric(self, line):
        found = re.search(rf"^{re.escape(line)} (\S+)$", self.http("/metrics"), re.M)
        return float(found[1]) if found else None

    def import_template(self, **limits):
        limits = {"name": "base", **limits}
        args = [BUILD / "node/daemon/cube-node", "template", "import", "--config", self.dir / "cube.yaml",
                "--root", base_image(), "--kernel", kernel(), "--tools", BUILD / "guest/tools.erofs"]
        for k, v in limits.items():
            args += [f"--{k}", str(v)]
        done = subprocess.run(args, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise AssertionError(f"import: {done.stderr}")
        self.template = done.stdout.strip().splitlines()[-1]
        return self.template

    def snapshot_dir(self):
        found = list((self.dir / "state/store/tpl" / self.template).glob("snap-*/manifest.json"))
        return found[0].parent if found else None

    def up(self, **limits):
        self.start_jailer()
        self.import_template(**limits)
        self.start_node()
        if self.keys.get("snapshots", "true") != "false":
            wait_for("the template's snapshot", self.snapshot_dir, 120)
        return self

    def ctl(self, *args, timeout=120):
        """nodectl: (exit status, output)."""
        done = subprocess.run([BUILD / "tests/node/nodectl", "--address", f"127.0.0.1:{self.port}", "--keys", self.dir / "keys",
                               "--run", self.dir / "run", "--template", self.template, *map(str, args)],
                              capture_output=True, text=True, timeout=timeout)
        return done.returncode, done.stdout.strip()

    def ok(self, *args):
        code, out = self.ctl(*args)
        assert code == 0, f"{' '.join(map(str, args))}: {out}"
        return out

    def refused(self, error, *args):
        code, out = self.ctl(*args)
        assert code != 0 and out.startswith(f"error {error}:"), f"{' '.join(map(str, args))}: wanted {error}, got {out!r}"
        return out

    def sh(self, sandbox, gen, script):
        return self.ok("exec", sandbox, gen, "/bin/sh", "-c", script)

    def state(self, sandbox):
        for line in self.ok("list").splitlines():
            if line.startswith(sandbox + " "):
                return line.split()[2]
        return None

    def vmms(self):
        """VM processes that this stack's jailer holds: name → pid."""
        found = {}
        for record in (self.dir / "run/jailer/vm").glob("*/record"):
            try:
                pid = int(record.read_text().split()[1])
            except FileNotFoundError:  # it ended meanwhile
                continue
            if not (record.parent / "exit.json").exists() and os.path.exists(f"/proc/{pid}"):
                found[record.parent.name] = pid
        return found

    def taps(self):
        prefix = re.compile(r"^" + self.tap_prefix() + "-")
        return [t for t in os.listdir("/sys/class/net") if prefix.match(t)]

    def tap_prefix(self):
        import hashlib
        return "c" + hashlib.sha256(self.keys["id"].encode()).hexdigest()[:4]

    def census(self):
        """What a stack may leave anywhere, by name. Empty when no sandbox runs and the pools are empty."""
        left = {f"vmm {k}" for k in self.vmms()} | {f"tap {t}" for t in self.taps()}
        for where in ("run/sb", "run/warm", "run/vmm", "state/store/vm", "state/store/tmp", "state/store/snap"):
            d = self.dir / where
            left |= {f"{where}/{p.name}" for p in d.iterdir()} if d.exists() else set()
        for where, dirs, _ in os.walk("/sys/fs/cgroup"):
            if os.path.basename(where) == self.name:
                left |= {f"cgroup {where}/{d}" for d in dirs}
                dirs.clear()
        return left

    def clear(self):
        """Ends every sandbox, so that a test that failed does not spoil the next one."""
        if self.node.poll() is not None:
            self.start_node()
        for line in self.ctl("list")[1].splitlines():
            self.ctl("kill", line.split()[0], 0)

    def kill_node(self):
        self.node.send_signal(signal.SIGKILL)
        self.node.wait()

    def stop_node(self):
        self.node.send_signal(signal.SIGTERM)
        self.node.wait(30)

    def log(self):
        path = self.dir / "node.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def down(self):
        for p in (self.node, self.jailer):
            if p and p.poll() is None:
                p.terminate()
                try:
                    p.wait(20)
                except subprocess.TimeoutExpired:
                    p.kill()
                    p.wait()
        subprocess.run([DAEMONS / "node/jailer/cube-jailer", "--config", self.dir / "cube.yaml", "--sweep"], capture_output=True)
        shutil.rmtree(self.dir, ignore_errors=True)


def run(tests, stack_factory):
    """Starts the stack and runs the tests on it, in order; prints the lines that tests/run.sh counts."""
    try:
        stack = stack_factory()
    except Missing as e:
        print(f"SKIP {pathlib.Path(sys.argv[0]).name}: {e}")
        return 0
    failed = 0
    try:
        try:
            with hang.limit(600):  # the base image may have to be built
                stack.up()
        except Missing as e:
            print(f"SKIP {pathlib.Path(sys.argv[0]).name}: {e}")
            return 0
        for test in tests:
            t0 = time.monotonic()
            try:
                with hang.limit():
                    test(stack)
                print(f"PASS {test.__name__} ({time.monotonic() - t0:.1f} s)", flush=True)
            except (Exception, hang.Hang) as e:  # whatever it is: the tests behind it still say what they have to
                failed += 1
                why = " | ".join(str(e).splitlines())[:600]
                print(f"FAIL {test.__name__}: {type(e).__name__}: {why}", flush=True)
                traceback.print_exc(file=sys.stdout)
                print(stack.log()[-3000:], flush=True)
                stack.clear()
    finally:
        hang.last(120)
        stack.down()
    return 1 if failed else 0
