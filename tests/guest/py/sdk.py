"""What users of the Python SDK do, synchronously and asynchronously, against E2B_SANDBOX_URL in debug mode."""
import asyncio
import io
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../lib"))
import hang  # noqa: E402

from e2b import AsyncSandbox, CommandExitException, FileType, NotFoundException, PtySize, Sandbox, TimeoutException

SUITE = os.environ.get("SUITE", "guest python")
DIR = os.environ.get("WORK_DIR", f"/tmp/G-py-{os.getpid()}")
TEMPLATE = os.environ.get("TEMPLATE")  # on a running cluster, through its proxy
USER = os.environ.get("GUEST_USER", "root")


def check(name):
    def wrap(fn):
        fn.check_title = name
        return fn
    return wrap


def equal(got, want, what="value"):
    assert got == want, f"{what}: got {got!r:.300}, want {want!r:.300}"


class Sync:
    def __init__(self):
        self.s = Sandbox.create(TEMPLATE, timeout=600) if TEMPLATE else Sandbox.create(debug=True)

    @check("run: output, exit status, environment, directory")
    def run(self):
        r = self.s.commands.run("echo out; echo err >&2", cwd="/tmp", envs={"A": "b"})
        equal((r.stdout, r.stderr, r.exit_code), ("out\n", "err\n", 0))
        equal(self.s.commands.run("pwd; echo $A", cwd="/tmp", envs={"A": "b"}).stdout, "/tmp\nb\n")
        try:
            self.s.commands.run("exit 7")
            raise AssertionError("no exception")
        except CommandExitException as e:
            equal(e.exit_code, 7)

    @check("run: timeout")
    def timeout(self):
        try:
            self.s.commands.run("sleep 20", timeout=0.6)
            raise AssertionError("no exception")
        except TimeoutException:
            pass

    @check("background: an unread handle blocks nobody, list, connect, kill")
    def background(self):
        h = self.s.commands.run("yes | head -c 30000000; sleep 300", background=True, timeout=0)
        equal(self.s.commands.run("echo free").stdout, "free\n")
        assert any(p.pid == h.pid for p in self.s.commands.list())
        assert self.s.commands.kill(h.pid)
        assert not self.s.commands.kill(h.pid)
        assert not any(p.pid == h.pid for p in self.s.commands.list())

    @check("stdin: send, close")
    def stdin(self):
        h = self.s.commands.run("cat", background=True, stdin=True, timeout=0)
        self.s.commands.send_stdin(h.pid, "hello\n")
        self.s.commands.close_stdin(h.pid)
        equal(h.wait().stdout, "hello\n")

    @check("stdin: streamed from an iterable")
    def stream_input(self):
        h = self.s.commands.run("cat", background=True, stdin=True, timeout=0)
        self.s.commands.stream_input(h.pid, [b"x" * 100000 for _ in range(20)] + ["end\n"])
        self.s.commands.close_stdin(h.pid)
        equal(len(h.wait().stdout), 2000004)

    @check("pty: create, input, resize, kill")
    def pty(self):
        out = []
        h = self.s.pty.create(size=PtySize(rows=24, cols=80), timeout=0)
        self.s.pty.send_stdin(h.pid, b"stty size; exit 0\n")
        h.wait(on_pty=lambda d: out.append(d))
        assert b"24 80" in b"".join(out), out

    @check("files: write, read, info, list, move, remove")
    def files(self):
        w = self.s.files.write(f"{DIR}/a/b.txt", "text ü")
        equal((w.path, w.name, w.type), (f"{DIR}/a/b.txt", "b.txt", FileType.FILE))
        equal(self.s.files.read(f"{DIR}/a/b.txt"), "text ü")
        equal(bytes(self.s.files.read(f"{DIR}/a/b.txt", format="bytes")), "text ü".encode())
        equal(b"".join(self.s.files.read(f"{DIR}/a/b.txt", format="stream")), "text ü".encode())
        i = self.s.files.get_info(f"{DIR}/a/b.txt")
        equal((i.size, i.mode, i.permissions, i.owner), (7, 0o644, "-rw-r--r--", USER))
        equal([e.name for e in self.s.files.list(DIR, depth=2)], ["a", "b.txt"])
        self.s.files.rename(f"{DIR}/a/b.txt", f"{DIR}/c.txt")
        assert self.s.files.exists(f"{DIR}/c.txt") and not self.s.files.exists(f"{DIR}/a/b.txt")
        assert self.s.files.make_dir(f"{DIR}/new") and not self.s.files.make_dir(f"{DIR}/new")
        self.s.files.remove(DIR)
        try:
            self.s.files.read(f"{DIR}/c.txt")
            raise AssertionError("no exception")
        except NotFoundException:
            pass

    @check("files: sources of every kind, byte-exact")
    def sources(self):
        data = os.urandom(3 << 20)
        for what, source in (("bytes", data), ("file", io.BytesIO(data))):
            self.s.files.write(f"{DIR}/data", source)
            equal(bytes(self.s.files.read(f"{DIR}/data", format="bytes")) == data, True, what)
        self.s.files.write_files([{"path": f"{DIR}/x", "data": "1"}, {"path": f"{DIR}/y", "data": b"2"}])
        equal(self.s.files.read(f"{DIR}/x") + self.s.files.read(f"{DIR}/y"), "12")
        self.s.files.remove(DIR)

    @check("files: metadata and symlinks")
    def metadata(self):
        self.s.files.write(f"{DIR}/m", "x", metadata={"Key": "v"})
        equal(self.s.files.get_info(f"{DIR}/m").metadata, {"key": "v"})
        self.s.commands.run(f"ln -s m {DIR}/l")
        i = self.s.files.get_info(f"{DIR}/l")
        equal((i.type, i.symlink_target), (FileType.SYMLINK, f"{DIR}/m"))
        self.s.files.remove(DIR)

    @check("watch: polled")
    def watch(self):
        self.s.files.make_dir(DIR)
        w = self.s.files.watch_dir(DIR, recursive=True)
        self.s.files.write(f"{DIR}/sub/f", "x")
        names = [(e.name, e.type.value) for e in w.get_new_events()]
        assert ("sub", "create") in names and ("sub/f", "create") in names, names
        w.stop()
        self.s.files.remove(DIR)

    @check("is running")
    def running(self):
        assert self.s.is_running()


class Async:
    async def start(self):
        self.s = await (AsyncSandbox.create(TEMPLATE, timeout=600) if TEMPLATE else AsyncSandbox.create(debug=True))

    @check("run and background")
    async def run(self):
        equal((await self.s.commands.run("echo hi")).stdout, "hi\n")
        h = await self.s.commands.run("sleep 300", background=True, timeout=0)
        assert await self.s.commands.kill(h.pid)

    @check("fifty at once")
    async def many(self):
        rs = await asyncio.gather(*(self.s.commands.run(f"echo {i}", user="nobody", cwd="/") for i in range(50)))
        equal([r.stdout for r in rs], [f"{i}\n" for i in range(50)])

    @check("stream input reaches the process as it is sent")
    async def stream_input(self):
        got = asyncio.Event()
        seen = []

        def on_stdout(text):
            seen.append(text)
            got.set()

        h = await self.s.commands.run("cat", background=True, stdin=True, timeout=0, on_stdout=on_stdout)

        stream = self.s.commands.stream_input(h.pid)
        await stream.send("first\n")
        await asyncio.wait_for(got.wait(), 30)  # the echo comes back while the request is still open
        await stream.send(b"second\n")
        await stream.close()
        await self.s.commands.send_stdin(h.pid, "third\n")
        await self.s.commands.close_stdin(h.pid)
        equal((await h.wait()).stdout, "first\nsecond\nthird\n")

    @check("files and watch stream")
    async def files(self):
        await self.s.files.make_dir(DIR)
        seen = []
        w = await self.s.files.watch_dir(DIR, on_event=lambda e: seen.append((e.name, e.type.value)), recursive=True, timeout=0)
        await self.s.files.write(f"{DIR}/f", "x" * 100000)
        equal(len(await self.s.files.read(f"{DIR}/f")), 100000)
        end = time.time() + 30
        while ("f", "create") not in seen:
            assert time.time() < end, seen
            await asyncio.sleep(0.01)
        await w.stop()
        await self.s.files.remove(DIR)


def report(name, error=None):
    print(f"FAIL {SUITE}: {name}: {type(error).__name__}: {error}".replace("\n", " ") if error else f"PASS {SUITE}: {name}", flush=True)


def main():
    sync = Sync()
    for fn in vars(Sync).values():
        if hasattr(fn, "check_title"):
            try:
                with hang.limit():
                    fn(sync)
                report("sync: " + fn.check_title)
            except BaseException as e:  # noqa: BLE001 - a test that fails in any way is a failure
                report("sync: " + fn.check_title, e)

    async def run_async():
        a = Async()
        await a.start()
        for fn in vars(Async).values():
            if hasattr(fn, "check_title"):
                try:
                    await asyncio.wait_for(fn(a), 240)
                    report("async: " + fn.check_title)
                except BaseException as e:  # noqa: BLE001
                    report("async: " + fn.check_title, e)

    asyncio.run(run_async())


main()
sys.stdout.flush()
os._exit(0)  # the SDK's runtime may abort while the interpreter takes it down
