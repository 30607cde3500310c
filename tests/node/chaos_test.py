#!/usr/bin/env python3
"""kill -9 of cube-node, of cube-jailer and of VMs at random moments while sandboxes are created, paused, resumed, snapshotted and killed by
several hands, looked at and changed by another, and the template is imported again. After each return the node's word is checked against
what it answered before; at the end a census must be empty."""
import contextlib
import os
import pathlib
import random
import re
import signal
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from stack import Stack, run, wait_for  # noqa: E402

SECONDS = float(os.environ.get("CUBE_CHAOS_SECONDS", "25"))
HANDS = 4


class Hand(threading.Thread):
    """One master's thread: works on its own sandboxes; after an error it asks what is true, as a reconciler would."""

    def __init__(self, stack, number, seed):
        super().__init__(daemon=True)  # an error of the test itself ends it
        self.s, self.random, self.number = stack, random.Random(seed), number
        self.made, self.gen, self.id, self.wrong, self.done = 0, 0, None, [], 0
        self.stop = False

    def run(self):
        while not self.stop and not self.wrong:
            try:
                self.step()
            except AssertionError as e:
                self.wrong.append(str(e))

    def truth(self):
        """(state, generation) of our sandbox when the node is there again; None = it knows nothing of it."""
        code, out = 1, ""
        while code != 0 and not self.stop:
            code, out = self.s.ctl("list")
        found = re.search(rf"^{self.id} gen=(\d+) (\w+)", out, re.M)
        return (found[2], int(found[1])) if found else (None, 0)

    def step(self):
        if self.id is None:
            self.made += 1
            self.id, self.gen = f"i0chaos{self.number}{self.made:013d}", 1
            code, out = self.s.ctl("start", self.id, self.gen)
        else:
            action = self.random.choice(["pause", "kill", "snapshot", "exec", "pause"])
            if action == "pause":
                code, out = self.s.ctl("pause", self.id, self.gen)
                if code == 0:
                    self.gen += 1
                    code, out = self.s.ctl("--restore", "start", self.id, self.gen)
            elif action == "snapshot":
                name = f"c{self.number}-{self.made}-{self.gen}"
                code, out = self.s.ctl("snapshot", self.id, self.gen, name)
                self.s.ctl("rm-snapshot", name)
            elif action == "exec":
                code, out = self.s.ctl("exec", self.id, self.gen, "/bin/sh", "-c", "echo x >> /root/log; wc -l < /root/log")
            else:
                code, out = self.s.ctl("kill", self.id, 0)
                if code == 0:
                    self.id = None
        if code == 0:
            self.done += 1
            return
        if self.stop:
            return
        state, gen = self.truth() if self.id else (None, 0)
        if state == "RUNNING":
            self.gen = gen
            wait_for(f"{self.id} gen {gen} to answer", lambda: self.stop or self.s.ctl("exec", self.id, gen, "/bin/true")[0] == 0 or
                     self.truth()[0] != "RUNNING", 60)
        elif state == "PAUSED":
            self.gen = gen + 1
            self.s.ctl("--restore", "start", self.id, self.gen)
        else:
            self.s.ctl("kill", self.id, 0)
            self.id = None


class Onlooker(threading.Thread):
    """Asks about other hands' sandboxes and changes them, whatever they do just then. Each question is answered, if only by a refusal."""

    def __init__(self, stack, hands, seed):
        super().__init__(daemon=True)
        self.s, self.hands, self.random, self.wrong, self.stop = stack, hands, random.Random(seed), [], False

    def run(self):
        try:
            while not self.stop:
                hand = self.random.choice(self.hands)
                if self.random.random() < 0.1:
                    self.s.import_template(name=self.random.choice(["base", "again"]))
                    continue
                what = self.random.choice(["metrics", "logs", "update", "network", "list"])
                args = {"list": [], "update": ["--remaining", "600000", what, hand.id or "none", 0]}.get(what, [what, hand.id or "none"])
                code, out = self.s.ctl(*(args or [what]))
                if code < 0:
                    self.wrong.append(f"{what}: ended by signal {-code}: {out}")
                    return
        except Exception as e:  # a thread's exception would be lost
            self.wrong.append(f"the onlooker: {type(e).__name__}: {e}")


def end_a_vm(s, dice):
    pids = list(s.vmms().values())
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(dice.choice(pids), signal.SIGKILL)


def killed_at_any_moment(s):
    seed = int(os.environ.get("CUBE_CHAOS_SEED", time.time()))
    print(f"seed {seed}")
    dice = random.Random(seed)
    hands = [Hand(s, n, seed + n) for n in range(HANDS)]
    onlooker = Onlooker(s, hands, seed + HANDS)
    for h in hands + [onlooker]:
        h.start()
    end, kills = time.monotonic() + SECONDS, 0
    while time.monotonic() < end and not any(h.wrong for h in hands + [onlooker]):
        for _ in range(dice.choice([0, 1, 2])):
            time.sleep(dice.uniform(0.1, 0.8))
            end_a_vm(s, dice)
        time.sleep(dice.uniform(0.1, 1))
        for name, daemon in (("node", s.node), ("jailer", s.jailer)):
            assert daemon.poll() is None, f"cube-{name} ended by itself with {daemon.returncode}: {s.log()[-2000:]}"
        s.kill_node()
        kills += 1
        if kills % 3 == 0:
            s.jailer.send_signal(signal.SIGKILL)
            s.jailer.wait()
            os.unlink(s.dir / "run/jailer.sock")
            s.start_jailer()
        s.start_node(ready=False)
        if kills % 4 == 2:  # one that ends while it is taken over
            time.sleep(dice.uniform(0, 0.1))
            end_a_vm(s, dice)
        wait_for("the node being ready", s.is_ready, 120)
    onlooker.stop = True
    onlooker.join()
    before = [h.done for h in hands]
    # Undisturbed, every hand gets something done, however busy the machine is.
    wait_for("every hand to succeed once more", lambda: all(h.wrong or h.done > seen for h, seen in zip(hands, before)), 180)
    for h in hands:
        h.stop = True
    for h in hands:
        h.join()
    wrong = [w for h in hands + [onlooker] for w in h.wrong]
    print(f"{kills} kills, {sum(h.done for h in hands)} operations done")
    assert not wrong, wrong


def nothing_is_left(s):
    for line in s.ok("list").splitlines():
        s.ok("kill", line.split()[0], 0)
    s.stop_node()

    def left():
        return {x for x in s.census() if not x.startswith("state/store/snap/c")}
    wait_for(lambda: f"an empty census, but {sorted(left())}", lambda: not left(), 60)
    assert not s.vmms()


if __name__ == "__main__":
    sys.exit(run([killed_at_any_moment, nothing_is_left], lambda: Stack("chaos")))
