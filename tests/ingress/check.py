"""The smallest test runner: `@test` functions run in order and print PASS, FAIL or SKIP lines for tests/run.sh."""
import pathlib
import sys
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import hang  # noqa: E402

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
            with hang.limit():
                f(*args)
            print("PASS %s: %s (%.2f s)" % (area, f.__name__.replace("_", " "), time.monotonic() - t), flush=True)
        except Skip as e:
            print("SKIP %s: %s: %s" % (area, f.__name__.replace("_", " "), e), flush=True)
        except (Exception, hang.Hang) as e:
            traceback.print_exc()
            failed.append(f.__name__)
            print("FAIL %s: %s: %s: %s" % (area, f.__name__.replace("_", " "), type(e).__name__, why(e)), flush=True)
    hang.last(120)
    return 1 if failed else 0
