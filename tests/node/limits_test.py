#!/usr/bin/env python3
"""What a node does at its limits: full and read-only disk, too many sandboxes, no memory; bursts; ready sandboxes; two nodes on one host."""
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from stack import BUILD, Stack, run, wait_for  # noqa: E402


class SmallDisk(Stack):
    """The store lies on a file system of its own."""

    def up(self, **limits):
        self.store = self.dir / "state/store"
        self.store.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=900m", "none", self.store], check=True)
        return super().up(**limits)

    def down(self):
        for p in (self.node, self.jailer):
            if p and p.poll() is None:
                p.terminate()
                p.wait(20)
        subprocess.run([BUILD / "node/jailer/cube-jailer", "--config", self.dir / "cube.yaml", "--sweep"], capture_output=True)
        subprocess.run(["umount", "-l", self.store])
        super().down()


@contextlib.contextmanager
def full(store, leave_mib):
    """The file system of the store is full but for some MiB."""
    fill = store / "fill"
    block, size = b"\1" * (1 << 20), 0
    try:
        with open(fill, "wb", buffering=0) as f:
            while True:
                try:
                    size += f.write(block)
                except OSError:
                    break
            f.truncate(max(0, size - (leave_mib << 20)))
        yield
    finally:
        fill.unlink()


@contextlib.contextmanager
def no_new_file(store):
    """There is room for bytes, and none for another file."""
    subprocess.run(["mount", "-o", f"remount,nr_inodes={os.statvfs(store).f_files - os.statvfs(store).f_ffree}", store], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,nr_inodes=100k", store], check=True)


def nothing_half(s):
    assert not list((s.store / "tmp").iterdir()), "a half artifact stayed"
    assert not list((s.store / "snap").iterdir()), "a snapshot that was refused is there"


def a_full_disk_pauses_and_snapshots_nothing(s):
    i, child = "i0full00000000000000a", "i0full00000000000000c"
    s.ok("start", i, 1)
    s.sh(i, 1, "echo kept > /dev/shm/f; head -c 10000000 /dev/urandom > /dev/shm/dirty; "
                "dd if=/dev/urandom of=/root/disk bs=1M count=60 oflag=direct 2> /dev/null")  # on the disk, and not in memory as well
    # Full while memory is written, and while the copy of the disk is (a pause makes none).
    for command, leave, when in (("pause", 4, "writing the memory"), ("snapshot", 4, "writing the memory"), ("snapshot", 50, "copying the disk")):
        with full(s.store, leave):
            said = s.refused("storage_full", command, i, 1, *(["snap-full"] if command == "snapshot" else []))
            assert when in said, said
            assert s.state(i) == "RUNNING"
            assert s.sh(i, 1, "cat /dev/shm/f") == "kept"
            nothing_half(s)
            assert "disk of node" in s.refused("storage_full", "start", "i0full00000000000000b", 1)
    with no_new_file(s.store):
        for command in (["pause", i, 1], ["snapshot", i, 1, "snap-full"]):
            s.refused("storage_full", *command)
            assert s.state(i) == "RUNNING" and s.sh(i, 1, "cat /dev/shm/f") == "kept"
            nothing_half(s)
    s.ok("snapshot", i, 1, "snap-full")
    s.ok("--snapshot", "snap-full", "start", child, 1)
    assert s.sh(child, 1, "cat /dev/shm/f; cksum < /root/disk") == s.sh(i, 1, "cat /dev/shm/f; cksum < /root/disk")
    s.ok("kill", child, 1)
    assert s.ok("rm-snapshot", "snap-full") == "deleted existed=1"
    s.ok("pause", i, 1)
    s.ok("--restore", "start", i, 2)
    assert s.sh(i, 2, "cat /dev/shm/f") == "kept"
    s.ok("kill", i, 2)


def a_full_disk_is_no_fault_of_the_host(s):
    """A node that comes up on a full disk can make neither directories of VMs nor its self-test. It refuses starts for the disk, not for the host;
    sandboxes that run are not touched; once there is room all is well."""
    i, late = "i0full00000000000000d", "i0full00000000000000e"
    s.ok("start", i, 1)
    for shortage in (lambda: full(s.store, 0), lambda: no_new_file(s.store)):
        s.stop_node()
        (s.store / "selftest").unlink(missing_ok=True)
        seen = len(s.log())
        with shortage():
            s.start_node(ready=False)
            wait_for("the self-test finding no room", lambda: "No space left" in s.log()[seen:], 60)
            wait_for("the sandbox being taken over", lambda: s.ctl("list")[0] == 0 and s.state(i) == "RUNNING", 60)
            s.refused("storage_full", "start", late, 1)
            assert "failed its self-test" not in s.http("/readyz") + s.log()[seen:], s.http("/readyz")
        assert s.sh(i, 1, "hostname") == i  # not before: a tmpfs wants a block for each hole that a guest reads, and it waits
        wait_for("room for all", lambda: s.is_ready() and s.metric("cube_node_pool_vmms") == s.keys["vmm_pool"], 60)
        s.ok("start", late, 2)  # the refusal may have come when the first generation was used up
        s.ok("kill", late, 2)
        late = late[:-1] + "f"
    s.ok("kill", i, 1)


def a_full_disk_imports_nothing(s):
    before = {p.name for d in ("tpl", "kernel", "tools") for p in (s.store / d).iterdir()}
    small = s.dir / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=50m", "none", small], check=True)
    try:
        s.keys["store_dir"] = small
        s.write_config()
        try:
            s.import_template()
            raise RuntimeError("it was imported into 50 MB")
        except AssertionError as e:
            assert "No space left" in str(e), e
        left = [str(p) for p in small.rglob("*") if p.is_file() and p.name not in ("import.cache", "vmlinux", "tools.erofs", "manifest.json")]
        assert not left, left
        assert not list((small / "tmp").iterdir()) and not list((small / "tpl").iterdir())
    finally:
        del s.keys["store_dir"]
        s.write_config()
        subprocess.run(["umount", small])
    assert before == {p.name for d in ("tpl", "kernel", "tools") for p in (s.store / d).iterdir()}


def a_read_only_store_pauses_nothing(s):
    i = "i0read00000000000000a"
    s.ok("start", i, 1)
    s.sh(i, 1, "echo kept > /dev/shm/f")
    # The layer of the running VM is open for writing, so the file system cannot be made read-only; a store that refuses new names can.
    for d in ("tmp", "snap"):
        subprocess.run(["mount", "--bind", "-o", "ro", s.store / d, s.store / d], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", s.store / d], check=True)
    try:
        code, out = s.ctl("pause", i, 1)
        assert code != 0 and "Read-only file system" in out, out
        assert s.state(i) == "RUNNING" and s.sh(i, 1, "cat /dev/shm/f") == "kept"
    finally:
        for d in ("tmp", "snap"):
            subprocess.run(["umount", s.store / d])
    # A node cannot come up on such a store, and says so; its sandboxes run on until it can.
    s.stop_node()
    subprocess.run(["mount", "--bind", s.store, s.store], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", s.store], check=True)
    seen = len(s.log())
    try:
        s.start_node(ready=False)
        assert s.node.wait(60) == 1 and "Read-only file system" in s.log()[seen:], s.log()[seen:]
    finally:
        subprocess.run(["umount", s.store])
    s.start_node()
    assert s.state(i) == "RUNNING" and s.sh(i, 1, "cat /dev/shm/f") == "kept"
    s.ok("kill", i, 1)


def too_many_are_refused(s):
    ids = [f"i0many0000000000000{n:02d}" for n in range(int(s.keys["max_sandboxes"]) + 1)]
    for i in ids[:-1]:
        s.ok("start", i, 1)
    assert "its limit" in s.refused("sandbox_capacity_unavailable", "start", ids[-1], 1)
    s.ok("snapshot", ids[1], 1, "at-the-limit")
    s.ok("--restore", "--snapshot", "at-the-limit", "start", ids[1], 2)  # a rollback takes no further place
    s.ok("rm-snapshot", "at-the-limit")
    s.ok("kill", ids[0], 1)
    s.ok("start", ids[-1], 1)
    for i in ids[1:]:
        s.ok("kill", i, 0)


def memory_pressure_is_refused(s):
    s.stop_node()
    s.keys["memory_reserve_mib"] = 10_000_000
    s.write_config()
    s.start_node()
    assert "memory of node" in s.refused("sandbox_capacity_unavailable", "start", "i0press0000000000000a", 1)
    s.stop_node()
    del s.keys["memory_reserve_mib"]
    s.write_config()
    s.start_node()


def a_burst_has_no_errors(s):
    ids = [f"i0burst000000000000{n:02d}" for n in range(20)]
    answers = {}

    def one(i):
        answers[i] = s.ctl("start", i, 1)
    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in ids]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    bad = {i: a for i, a in answers.items() if a[0]}
    assert not bad, bad
    machine_ids = {s.sh(i, 1, "cat /etc/machine-id") for i in ids}
    assert len(machine_ids) == len(ids)
    for i in ids:
        s.ok("kill", i, 1)


def two_nodes_share_a_host(s):
    other = Stack("other", vmm_pool=1).up()
    try:
        mine, theirs = "i0two000000000000000a", "i0two000000000000000b"
        s.ok("start", mine, 1)
        other.ok("start", theirs, 1)
        other.kill_node()
        other.start_node()
        assert other.sh(theirs, 1, "hostname") == theirs
        other.ok("kill", theirs, 1)
        other.stop_node()
        wait_for(lambda: f"the other node's census to be empty: {sorted(other.census())}", lambda: not other.census(), 60)
        assert s.sh(mine, 1, "hostname") == mine
        s.ok("kill", mine, 1)
    finally:
        other.down()


def ready_sandboxes_are_handed_out_once(s):
    s.stop_node()
    s.keys.update(ready_pool=3, ready_ttl_ms="12s")
    s.write_config()
    s.start_node()
    s.ok("start", "i0ready0000000000000z", 1)  # the first demand
    seen = set()
    for n in range(4):
        i = f"i0ready000000000000{n:02d}"
        wait_for("a ready one, which is made beside", lambda: s.metric("cube_node_pool_ready") >= 1, 60)
        out = s.ok("start", i, 1)
        assert all(f"{fact}=1" in out for fact in ("clock", "random", "identity", "network", "tokens", "from_pool")), out
        seen.add(s.sh(i, 1, "hostname; cat /etc/machine-id; head -c 8 /dev/urandom | od -An -tx1"))
        s.ok("kill", i, 1)
    assert len(seen) == 4, seen
    wait_for("idle ones to go", lambda: s.metric("cube_node_pool_ready") == 0, 60)
    s.ok("kill", "i0ready0000000000000z", 1)


TESTS = [a_full_disk_pauses_and_snapshots_nothing, a_full_disk_is_no_fault_of_the_host, a_full_disk_imports_nothing, a_read_only_store_pauses_nothing, too_many_are_refused,
         memory_pressure_is_refused, a_burst_has_no_errors, two_nodes_share_a_host, ready_sandboxes_are_handed_out_once]

if __name__ == "__main__":
    chosen = [t for t in TESTS if not sys.argv[1:] or t.__name__ in sys.argv[1:]]
    sys.exit(run(chosen, lambda: SmallDisk("limit", max_sandboxes=20)))
