"""stepkill for tests: a process is ended before its Nth system call that others can see."""
import os
import random
import re
import signal
import subprocess

from stack import BUILD, wait_for

LONG = bool(os.environ.get("LONG"))


class Killer:
    """stepkill on one process, or on a command from its start."""

    def __init__(self, step, *what, **options):
        read, write = os.pipe()
        self.process = subprocess.Popen([BUILD / "tests/node/stepkill", str(step), *map(str, what)], close_fds=False, **options,
                                        preexec_fn=lambda: os.dup2(write, 3))
        os.close(write)
        self.report = os.fdopen(read)
        assert self.report.readline() == "attached\n", f"stepkill cannot attach to {what}"

    def wait(self, done, seconds=60):
        wait_for("what it was killed in to be over", lambda: self.process.poll() is not None or done(), seconds)

    def end(self):
        """(number of steps, what it was killed before; None: it goes on)."""
        self.process.send_signal(signal.SIGTERM)
        return self.result()

    def result(self):
        line = self.report.readline().strip()
        self.report.close()
        self.process.wait()
        found = re.match(r"killed at step (\d+): (.*)", line)
        return (int(found[1]), found[2]) if found else (int(line.split()[1]), None)


def chosen_steps(total, sample, long=45):
    """Steps spread over all of them: `sample`, or with LONG=1 about `long`, others at each run."""
    if total <= sample:
        return range(1, total + 1)
    if LONG:
        stride = -(-total // long)
        return range(random.randint(1, stride), total + 1, stride)
    return sorted({1 + int((i + 0.5) * total / sample) for i in range(sample)})
