#!/usr/bin/env python3
"""kill -9 before any step: create, pause, resume, snapshot and kill are interrupted by an end of
cube-node, cube-jailer or cube-vmm before their Nth system call that others can see (stepkill.c). After each: the command said what is true, the
sandbox runs with its data or is restorable, nothing half is there, and the census is the one before. By default a small sample of the steps; LONG=1: a
larger one, another at each run (a quarter of an hour). `steps_test.py vmm_killed` runs one test, `steps_test.py pause node 17` repeats one step.
Templates: template_steps.py."""
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from killer import LONG, Killer, chosen_steps  # noqa: E402
from stack import Stack, run, wait_for  # noqa: E402
import template_steps  # noqa: E402

POOL = 1
CACHED = 16  # files of an image that a node keeps open for the next start from it
counter = 0


def waiting(s):
    """The VM processes of the pool."""
    return {n: p for n, p in s.vmms().items() if (s.dir / "run/warm" / n).exists()}


def in_use(s):
    return {n: p for n, p in s.vmms().items() if n not in waiting(s)}


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def left(s):
    """What is there beside the pool, and unfinished files anywhere."""
    try:
        return left_now(s)
    except FileNotFoundError as e:  # it went while we looked
        return {str(e)}


def left_now(s):
    pool = waiting(s)
    names = {x for x in s.census() if not any(n in x for n in pool)}
    taps = [x for x in names if x.startswith("tap ")]
    names -= set(taps[:len(pool)])
    for d in ("state", "run"):
        names |= {str(p.relative_to(s.dir)) for p in (s.dir / d).rglob("*") if re.fullmatch(r"\..*\.[0-9a-z]{8}|.*\.new", p.name)}
    names |= {f"jailer's record of {p.name}" for p in (s.dir / "run/jailer/vm").iterdir() if p.name not in pool}
    have = set(s.taps())
    names |= {f"jailer's record of {p.name}" for p in (s.dir / "run/jailer/tap").iterdir() if p.name not in have}
    if len(pool) != POOL:
        names.add(f"{len(pool)} VM processes wait, not {POOL}")
    return names


def mounts(s):
    return sum(str(s.dir) in line for line in open("/proc/self/mountinfo"))


def settle(s):
    wait_for(lambda: f"nothing left but the pool: {sorted(left(s))}", lambda: not left(s), 60)


class Operation:
    """One sandbox, one command on it. `prepare` brings it where the command begins; `check` says what must be true after it."""

    VMS = 1  # in use after it

    def __init__(self, s):
        global counter
        counter += 1
        self.s, self.id, self.gen = s, f"i0step{counter:015d}", 1

    def begin(self):
        self.s.ok("start", self.id, 1)
        self.s.sh(self.id, 1, f"echo {self.id} > /root/f; echo {self.id} > /dev/shm/f")

    def alive(self):
        """It runs with all that it had."""
        wait_for(f"{self.id} to answer", lambda: self.s.ctl("exec", self.id, self.gen, "/bin/true")[0] == 0 or
                 self.s.state(self.id) != "RUNNING", 60)
        assert self.s.sh(self.id, self.gen, "cat /root/f /dev/shm/f; hostname") == "\n".join([self.id] * 3), "it lost something"

    def resume(self):
        self.gen += 1
        self.s.ok("--restore", "start", self.id, self.gen)
        self.alive()

    def reason(self, of="vmm"):
        """A sandbox whose VM process was killed is over, and says why."""
        line = next(x for x in self.s.ok("list").splitlines() if x.startswith(self.id))
        assert self.who == of and re.search(r"FAILED .*reason=\S", line), line


class Create(Operation):
    def prepare(self):
        pass

    def command(self):
        return self.s.ctl("start", self.id, 1)

    def check(self, code):
        state = self.s.state(self.id)
        if state == "RUNNING":
            self.s.sh(self.id, 1, f"test $(hostname) = {self.id}")
        elif self.who == "vmm":
            self.reason()
        else:
            assert code != 0 and state in (None, "FAILED"), (code, state)


class Pause(Operation):
    VMS = 0

    def prepare(self):
        self.begin()

    def command(self):
        return self.s.ctl("pause", self.id, 1)

    def check(self, code):
        state = self.s.state(self.id)
        if state == "FAILED":
            assert code != 0, "the pause succeeded, and then the sandbox failed"
            return self.reason()
        assert state == "PAUSED" or (state == "RUNNING" and code != 0), (code, state)
        if state == "RUNNING":
            self.alive()
            self.s.ok("pause", self.id, 1)
        self.resume()


class Resume(Operation):
    def prepare(self):
        self.begin()
        self.s.ok("pause", self.id, 1)

    def command(self):
        self.gen = 2
        return self.s.ctl("--restore", "start", self.id, 2)

    def check(self, code):
        state = self.s.state(self.id)
        if state == "FAILED":
            assert code == 0, "a resume that failed lost the paused sandbox"
            return self.reason()
        assert state == "RUNNING" or (state == "PAUSED" and code != 0), (code, state)
        if state == "RUNNING":
            return self.alive()
        self.resume()


class Snapshot(Operation):
    def prepare(self):
        self.begin()
        self.name = f"steps-{counter}"

    def command(self):
        return self.s.ctl("snapshot", self.id, 1, self.name)

    def check(self, code):
        there = (self.s.dir / "state/store/snap" / self.name).exists()
        assert there or code != 0, "it said yes, and there is none"
        if self.s.state(self.id) == "RUNNING":
            self.alive()
        else:
            self.reason()
        if there:
            child = Operation(self.s)
            self.s.ok("--snapshot", self.name, "start", child.id, 1)
            assert self.s.sh(child.id, 1, "cat /root/f /dev/shm/f; hostname").split() == [self.id, self.id, child.id]
            self.s.ok("kill", child.id, 1)
            assert self.s.ok("rm-snapshot", self.name) == "deleted existed=1"


class Kill(Operation):
    VMS = 0

    def prepare(self):
        self.begin()
        self.s.ok("pause", self.id, 1)
        self.resume()

    def command(self):
        return self.s.ctl("kill", self.id, 2)

    def check(self, code):
        state = self.s.state(self.id)
        if code == 0:
            assert state in ("KILLED", None), state
        elif state == "RUNNING":
            self.alive()


def restart(s, who):
    if who == "node":
        s.node.wait()
        s.start_node()
    elif who == "jailer":
        s.jailer.wait()
        os.unlink(s.dir / "run/jailer.sock")
        s.start_jailer()
        wait_for("the node finding the jailer again", s.is_ready, 60)


def pid_of(s, who, op):
    if who == "node":
        return s.node.pid
    if who == "jailer":
        return s.jailer.pid
    return next(iter((waiting(s) if isinstance(op, (Create, Resume)) else in_use(s)).values()))


def one(s, kind, who, step):
    """Kills before a step; (how many steps were made, before what it was killed)."""
    settle(s)
    files, mounted = {p: open_files(p.pid) for p in (s.node, s.jailer)}, mounts(s)
    op = kind(s)
    op.who = who
    op.prepare()
    wait_for("the pool to be full", lambda: len(waiting(s)) == POOL, 60)
    killer = Killer(step, pid_of(s, who, op))
    code, out = op.command()
    if who != "vmm":  # what the daemon does behind its answer counts, too
        killer.wait(lambda: len(waiting(s)) == POOL and len(in_use(s)) == op.VMS and not any((s.dir / "state/store/tmp").iterdir()))
    steps, call = killer.end()
    try:
        assert code == 0 or out.startswith("error "), f"no clear answer: {out!r}"
        assert call or code == 0, f"not killed, and yet: {out}"
        if call:
            restart(s, who)
        op.check(code)
        s.ok("kill", op.id, 0)
        settle(s)
        assert mounts(s) == mounted, f"{mounts(s)} mounts, {mounted} before"
        for process, before in files.items():
            if process in (s.node, s.jailer):
                limit = before + (CACHED if process is s.node else POOL)  # of an adopted VM the jailer has no log
                wait_for(lambda: f"{limit} open files, not {open_files(process.pid)}", lambda: open_files(process.pid) <= limit, 60)
    except (AssertionError, subprocess.SubprocessError) as e:
        raise AssertionError(f"{kind.__name__.lower()} {who} {step} (killed before: {call}; it said {out!r}): {e}")
    return steps, call


def every_step(s, kind, who, sample):
    total = one(s, kind, who, 0)[0]
    calls = []
    for step in chosen_steps(total, sample):
        if os.environ.get("CUBE_STEPS_VERBOSE"):
            print(f"# {kind.__name__} {who} {step} of {total}", flush=True)
        calls.append(one(s, kind, who, step)[1])
    print(f"# {kind.__name__.lower()}: cube-{who} takes {total} steps; killed before {sum(c is not None for c in calls)} of them")


# Sampled steps per operation and program.
SAMPLES = {Create: {"node": 3, "jailer": 4, "vmm": 3}, Pause: {"node": 5, "vmm": 3}, Resume: {"node": 4, "vmm": 3},
           Snapshot: {"node": 3, "vmm": 2}, Kill: {"node": 2, "jailer": 3}}


def node_killed(s):
    for kind, by in SAMPLES.items():
        every_step(s, kind, "node", by["node"])


def jailer_killed(s):
    for kind, by in SAMPLES.items():
        if LONG or "jailer" in by:
            every_step(s, kind, "jailer", by.get("jailer", 3))


def vmm_killed(s):
    for kind, by in SAMPLES.items():
        if "vmm" in by:
            every_step(s, kind, "vmm", by["vmm"])


def a_making_is_killed(s):
    template_steps.making_killed(s, settle)


def repeated(kind, who, step):
    def repeat(s):
        print("#", one(s, {k.__name__.lower(): k for k in SAMPLES}[kind], who, int(step)))
    return repeat


if __name__ == "__main__":
    tests = [node_killed, jailer_killed, vmm_killed, template_steps.an_import_is_killed, a_making_is_killed]
    if len(sys.argv) == 4:
        tests = [repeated(*sys.argv[1:])]
    elif sys.argv[1:]:
        tests = [t for t in tests if t.__name__ in sys.argv[1:]]
    sys.exit(run(tests, lambda: Stack("steps", vmm_pool=POOL, max_sandboxes=40)))
