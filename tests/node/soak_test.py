#!/usr/bin/env python3
"""Soak: several hands create, use, pause, resume, snapshot, fork, roll back and kill sandboxes in random order, and every answer is checked
against what must be true; no operation may fail. It ends with a census that must equal the one at its start: processes, TAPs, cgroups,
mounts, files, descriptors. CUBE_SOAK_SECONDS (default 40; with LONG=1 half an hour) and CUBE_SOAK_SEED choose the run."""
import collections
import os
import pathlib
import random
import re
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from stack import Stack, run, wait_for  # noqa: E402

SECONDS = float(os.environ.get("CUBE_SOAK_SECONDS", "1800" if os.environ.get("LONG") else "40"))
HANDS = 3
EACH = 4  # sandboxes per hand
POOL = 2


class Sandbox:
    """What must be true of one: its generation, whether it runs, and how often it counted, on disk and in memory."""

    def __init__(self, name):
        self.id, self.gen, self.running, self.count = name, 1, True, 0
        self.snapshot = None  # of its pause


class Hand(threading.Thread):
    def __init__(self, stack, number, seed):
        super().__init__()
        self.s, self.number, self.random = stack, number, random.Random(seed)
        self.own, self.made, self.wrong, self.done = [], 0, None, collections.Counter()
        self.slowest, self.stop = collections.Counter(), False

    def run(self):
        try:
            while not self.stop:
                self.step()
            for sb in list(self.own):
                self.kill(sb)
        except Exception as e:  # a thread's exception would be lost
            self.wrong = f"hand {self.number}: {type(e).__name__}: {e}"

    def step(self):
        if not self.own or (len(self.own) < EACH and self.random.random() < 0.3):
            self.create()
            return
        sb = self.random.choice(self.own)
        if not sb.running:
            self.timed(self.resume if self.random.random() < 0.9 else self.kill, sb)
            return
        actions = [self.count] * 5 + [self.pause] * 4 + [self.snapshot] * 2 + [self.fork, self.rollback, self.kill]
        self.timed(self.random.choice(actions), sb)

    def timed(self, action, sb):
        began = time.monotonic()
        action(sb)
        name = action.__name__
        self.done[name] += 1
        self.slowest[name] = max(self.slowest[name], time.monotonic() - began)

    def name(self):
        self.made += 1
        return f"i0soak{self.number}{self.made:014d}"

    def create(self):
        sb = Sandbox(self.name())
        self.timed(lambda x: self.s.ok("start", x.id, 1), sb)
        self.own.append(sb)

    def values(self, sb):
        """(on disk, in memory, generation): read by the guest's own programs."""
        out = self.s.sh(sb.id, sb.gen, "cat /root/n 2>/dev/null || echo 0; cat /dev/shm/n 2>/dev/null || echo 0; cat /run/cube/generation; hostname")
        disk, memory, gen, host = out.split()
        assert host == sb.id and int(gen) == sb.gen, f"{sb.id} generation {sb.gen} says it is {host} generation {gen}"
        return int(disk), int(memory)

    def count(self, sb):
        assert self.values(sb) == (sb.count, sb.count), f"{sb.id} should have counted to {sb.count}: {self.values(sb)}"
        sb.count += 1
        self.s.sh(sb.id, sb.gen, f"echo {sb.count} > /root/n; echo {sb.count} > /dev/shm/n; head -c {self.random.randrange(1 << 20)} /dev/urandom > /root/fill")

    def pause(self, sb):
        sb.snapshot = re.search(r"snapshot=(\S+)", self.s.ok("pause", sb.id, sb.gen))[1]
        sb.running = False

    def resume(self, sb):
        sb.gen += 1
        named = ["--snapshot", sb.snapshot] if self.random.random() < 0.5 else []  # a master names it, a node alone does not
        self.s.ok("--restore", *named, "start", sb.id, sb.gen)
        sb.running = True
        assert self.values(sb) == (sb.count, sb.count), f"after a resume {sb.id} should have counted to {sb.count}: {self.values(sb)}"

    def snapshot(self, sb):
        name = f"k{self.number}-{self.made}-{self.random.randrange(1 << 40)}"
        self.s.ok("snapshot", sb.id, sb.gen, name)
        assert self.values(sb) == (sb.count, sb.count), f"{sb.id} went on with other values"
        assert self.s.ok("rm-snapshot", name) == "deleted existed=1"

    def fork(self, sb):
        snap = f"f{self.number}-{self.random.randrange(1 << 40)}"
        child = Sandbox(self.name())
        child.count = sb.count
        self.s.ok("snapshot", sb.id, sb.gen, snap)
        self.s.ok("--snapshot", snap, "start", child.id, 1)
        assert self.values(child) == (sb.count, sb.count), f"{child.id} is no copy of {sb.id}"
        self.s.ok("kill", child.id, 1)
        self.s.ok("rm-snapshot", snap)

    def rollback(self, sb):
        snap = f"r{self.number}-{self.random.randrange(1 << 40)}"
        self.s.ok("snapshot", sb.id, sb.gen, snap)
        self.s.sh(sb.id, sb.gen, "echo 1000000 > /root/n; echo 1000000 > /dev/shm/n")
        sb.gen += 1
        self.s.ok("--restore", "--snapshot", snap, "start", sb.id, sb.gen)
        assert self.values(sb) == (sb.count, sb.count), f"{sb.id} was not rolled back"
        self.s.ok("rm-snapshot", snap)

    def kill(self, sb):
        self.own.remove(sb)
        self.s.ok("kill", sb.id, sb.gen)


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_mib(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 >> 20


def census(s):
    """How many of each kind: the names of pool VMs are random."""
    found = collections.Counter(x.split("/")[0] if x.startswith("cgroup") else re.sub(r"[ /][^ /]*$", "", x) for x in s.census())
    found["mounts"] = sum(str(s.dir) in line for line in open("/proc/self/mountinfo"))
    found["records"] = len(list((s.dir / "state/sandboxes").iterdir()))
    found["jailer's records"] = len(list((s.dir / "run/jailer/vm").iterdir()))
    found["files of the node"] = open_files(s.node.pid)
    found["files of the jailer"] = open_files(s.jailer.pid)
    return +found


def everything_once(s):
    """Each kind of operation once, so that what is kept for the next time is there before the first census."""
    h = Hand(s, 9, 1)
    h.create()
    for action in (h.count, h.pause, h.resume, h.snapshot, h.fork, h.rollback, h.kill):
        action(h.own[0])


def settled(s, pool):
    """The census when nothing moves any more: no sandbox is remembered, the pool is full."""
    def still():
        before = census(s)
        time.sleep(0.5)
        return before if census(s) == before and before["vmm"] == pool and before["records"] == 0 else None
    return wait_for(lambda: f"nothing to move any more: {dict(census(s))}", still, 90)


def a_soak_leaves_nothing(s):
    seed = int(os.environ.get("CUBE_SOAK_SEED", time.time()))
    everything_once(s)
    start, rss = settled(s, POOL), resident_mib(s.node.pid)
    hands = [Hand(s, n, seed + n) for n in range(HANDS)]
    for h in hands:
        h.start()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and not any(h.wrong for h in hands):
        time.sleep(0.2)
    for h in hands:
        h.stop = True
    for h in hands:
        h.join()
    done, slowest = collections.Counter(), collections.Counter()
    for h in hands:
        done += h.done
        slowest |= h.slowest
    print(f"seed {seed}, {sum(done.values())} operations in {SECONDS:.0f} s: {dict(done)}")
    print("slowest (s): " + ", ".join(f"{k} {v:.2f}" for k, v in slowest.items()))
    wrong = [h.wrong for h in hands if h.wrong]
    assert not wrong, wrong
    at_end = settled(s, POOL)
    print(f"census: {dict(at_end)}; the node's memory: {rss} MiB before, {resident_mib(s.node.pid)} MiB after")
    assert at_end == start, f"before: {dict(start)}, after: {dict(at_end)}"


if __name__ == "__main__":
    sys.exit(run([a_soak_leaves_nothing], lambda: Stack("soak", vmm_pool=POOL, max_sandboxes=40, tombstone_ms="10s")))
