"""A test that hangs is a failure with a name: after its time the stacks of all threads are printed and Hang is raised in the main thread,
so that what the test started is ended as after any failure."""
import contextlib
import faulthandler
import os
import signal
import sys

# Nothing in the suite takes a third of it, on one processor that others use, too. Soaks and the like may be told to take longer.
LIMIT = 300 * (24 if os.environ.get("LONG") else 1) + sum(int(float(os.environ.get(f"CUBE_{what}_SECONDS", 0))) for what in ("SOAK", "CHAOS", "CHURN"))


class Hang(BaseException):
    """Not an Exception: a test that expects errors must not swallow it."""


def _hangs(*_):
    faulthandler.dump_traceback(sys.stdout, all_threads=True)
    raise Hang("not done in its time; where each thread was is printed above")


@contextlib.contextmanager
def limit(seconds=LIMIT):
    signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(seconds)
    faulthandler.dump_traceback_later(seconds + 60, exit=True, file=sys.stdout)  # not even that ended it
    try:
        yield
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()


def last(seconds=60):
    """All tests are done: what is left (taking down, threads that are joined) has so long, then the process ends with its stacks printed."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.stdout)
