"""kill -9 before a step of a template's import, and of the making of its snapshot: what is in the store is whole, and the next import or the
next start of the node completes it."""
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess

from killer import LONG, Killer, chosen_steps
from stack import BUILD, wait_for

BLOCK = 64 << 10  # of a file's hash (docs/storage-format.md)


def content_hash(path):
    digest, size = hashlib.sha256(), os.stat(path).st_size
    with open(path, "rb") as f:
        at = 0
        while at < size:
            try:
                at = os.lseek(f.fileno(), at, os.SEEK_DATA) // BLOCK * BLOCK
            except OSError:  # only a hole is left
                break
            f.seek(at)
            block = f.read(BLOCK)
            if block.strip(b"\0"):
                digest.update(struct.pack(">Q", at // BLOCK) + block.ljust(BLOCK, b"\0"))
            at += BLOCK
    digest.update(struct.pack(">Q", size))
    return digest.hexdigest()


def whole(artifact):
    """Its manifest; asserts that all files that it names are there, as it says."""
    text = (artifact / "manifest.json").read_text()
    manifest = json.loads(text)
    assert hashlib.sha256(text[:text.index(',"sum":"')].encode()).hexdigest() == manifest["sum"], f"the manifest of {artifact} is damaged"
    for f in manifest["files"]:
        path = artifact / f["name"]
        assert path.stat().st_size == f["size"] and content_hash(path) == f["hash"], f"{path} is not what its manifest says"
    return manifest


def all_whole(store):
    """Names of what is there, all of it whole; a template needs kernel and tools."""
    found = {d: {p.name for p in (store / d).iterdir()} for d in ("tpl", "kernel", "tools") if (store / d).exists()}
    for d, names in found.items():
        for name in names:
            manifest = whole(store / d / name)
            if d == "tpl":
                assert manifest["kernel"] in found["kernel"] and manifest["tools"] in found["tools"], "a template without its kernel or tools"
    return found


def make_sources(d):
    """What an import takes for a root file system, a kernel and two versions of the tools."""
    d.mkdir()
    with open(d / "root", "wb") as f:
        f.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", d / "root"], check=True)
    (d / "kernel").write_bytes(b"\x7fELF" + os.urandom(200000))
    for name in ("tools-1", "tools-2"):
        (d / name).write_bytes(bytes(1024) + b"\xe2\xe1\xf5\xe0" + os.urandom(100000))


def an_import_is_killed(s):
    """A first one, which grows the image, and one that gives the template other tools."""
    sources = s.dir / "sources"
    make_sources(sources)

    def command(store, tools):
        return [BUILD / "node/daemon/cube-node", "template", "import", "--config", s.dir / "cube.yaml", "--store", store, "--root", sources / "root",
                "--kernel", sources / "kernel", "--tools", sources / tools, "--name", "steps", "--disk", "16"]

    def done(store, tools):
        got = subprocess.run(command(store, tools), capture_output=True, text=True, timeout=60)
        assert got.returncode == 0, got.stderr
        return got.stdout.strip()

    def once(first, tools, step):
        store = s.dir / f"import-{tools}-{step}"
        if not first:
            done(store, "tools-1")
        killer = Killer(step, *command(store, tools), stdout=subprocess.DEVNULL)
        killer.wait(lambda: False, 60)
        steps, call = killer.result()
        try:
            before = all_whole(store) if store.exists() else {}
            assert call or before["tpl"], "it was not killed, and imported nothing"
            drafts = list((store / "tmp").iterdir()) if (store / "tmp").exists() else []
            assert len(drafts) <= 1, drafts
            for draft in drafts:  # the next start of a node removes it
                fd = os.open(draft, os.O_RDONLY)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.close(fd)
            template = done(store, tools)
            after = all_whole(store)
            assert after["tpl"] == {template} and before.get("tpl", set()) <= after["tpl"]
            assert whole(store / "tpl" / template)["tools"] == content_hash(sources / tools)
        except (AssertionError, OSError) as e:
            raise AssertionError(f"import of {tools}, {step} (killed before: {call}): {e}")
        shutil.rmtree(store)
        return steps

    for first, tools, sample in ((True, "tools-1", 12), (False, "tools-2", 6)):
        total = once(first, tools, 0)
        for step in chosen_steps(total, sample):
            once(first, tools, step)
        print(f"# import of {tools}: {total} steps; killed before {len(chosen_steps(total, sample))} of them")


def making_killed(s, settle):
    """The node, while it makes a template's snapshot, and the VM that it makes it with."""
    store, boots = s.dir / "state/store", 0

    def usable(what):
        nonlocal boots
        boots += 1
        sandbox = f"i0make{boots:015d}"
        s.ok("start", sandbox, 1)
        assert s.sh(sandbox, 1, "hostname") == sandbox, what
        s.ok("kill", sandbox, 1)
        settle(s)

    def again():
        shutil.rmtree(s.snapshot_dir())  # the node sees it, and makes another

    def once(step):
        killer = Killer(step, s.node.pid)
        again()
        killer.wait(lambda: s.snapshot_dir() and not any((store / "tmp").iterdir()), 120)
        steps, call = killer.end()
        try:
            made = s.snapshot_dir()
            assert call or made, "it was not killed, and made nothing"
            if made:
                whole(made)
            if call:
                s.node.wait()
                s.start_node()
                wait_for("the snapshot", s.snapshot_dir, 120)
                whole(s.snapshot_dir())
            usable("the snapshot")
        except (AssertionError, OSError) as e:
            raise AssertionError(f"making, {step} (killed before: {call}): {e}")
        return steps

    settle(s)
    total = once(0)
    steps = chosen_steps(total, 2, 15)
    for step in steps:
        once(step)
    print(f"# making: cube-node takes {total} steps; killed before {len(steps)} of them")
    for nth in range(1 if not LONG else 3):
        for _ in range(8):
            seen, before = len(s.log()), set(s.vmms())
            again()
            maker = wait_for("the VM that makes it", lambda: next((p for n, p in s.vmms().items() if n not in before), None), 60)
            with contextlib.suppress(ProcessLookupError):
                os.kill(maker, signal.SIGKILL)
            said = lambda: re.search(r"making the snapshot of template|template .* cannot be used", s.log()[seen:])  # noqa: E731, B023
            wait_for("the node saying so", lambda: said() or s.snapshot_dir(), 60)
            if said():
                break
            settle(s)  # it was made before we came, or ours was a VM of the pool
        else:
            raise AssertionError("eight snapshots were made before their VMs could be killed")
        assert not s.snapshot_dir(), "a snapshot of a VM that was killed"
        usable("a sandbox that boots, as there is no snapshot")
        s.stop_node()
        s.start_node()  # by itself it tries again after a minute
        wait_for("the snapshot", s.snapshot_dir, 120)
        usable("the snapshot")
