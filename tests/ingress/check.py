"""The smallest test runner: `@test` functions run in order and print PASS, FAIL or SKIP lines for tests/run.sh."""
import sys
import time
import traceback

tests, failed = [], []


class Skip(Exception):
    pass


def test(f):
    tests.append(f)
    return f


def equal(got, want, why=""):
    if got != want:
        raise AssertionError("%s: got %r, want %r" % (why or "values differ", got, want))


def check(ok, why):
    if not ok:
        raise AssertionError(why)


def why(e):
    """One line: the beginning of the reason and, when it is long, its end."""
    text = " | ".join(str(e).splitlines())
    return text if len(text) <= 600 else text[:250] + " … " + text[-350:]


def run(area, *args):
    only = sys.argv[1:]
    for f in tests:
        if f.__module__ != "__main__":  # imported from another suite
            continue
        if only and f.__name__ not in only:
            continue
        t = time.monotonic()
        try:
            f(*args)
            print("PASS %s: %s (%.2f s)" % (area, f.__name__.replace("_", " "), time.monotonic() - t), flush=True)
        except Skip as e:
            print("SKIP %s: %s: %s" % (area, f.__name__.replace("_", " "), e), flush=True)
        except Exception as e:
            traceback.print_exc()
            failed.append(f.__name__)
            print("FAIL %s: %s: %s: %s" % (area, f.__name__.replace("_", " "), type(e).__name__, why(e)), flush=True)
    return 1 if failed else 0
