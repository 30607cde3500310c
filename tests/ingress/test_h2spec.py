"""h2spec against the plain and the TLS port."""
import os
import pathlib
import re
import subprocess
import sys

from check import Skip, check, run, test
from cluster import ROOT, Cluster
from service import Service

# nghttp2 itself answers this one otherwise (a smaller stream ID is ignored as an old one's frame).
KNOWN = {"Sends stream identifier that is numerically smaller than previous",
         "Sends invalid connection preface"}  # the plain port takes it for HTTP/1.1 and answers 400


def spec(c, sb, *args):
    if os.environ.get("LONG") != "1" and not (pathlib.Path(os.environ.get("CUBE_CACHE", "/var/cache/cube")) / "h2spec/h2spec").exists():
        raise Skip("h2spec is not built yet (LONG=1 builds it)")
    p = subprocess.run([str(ROOT / "tests/ingress/h2spec.sh")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=1200)
    if p.returncode:
        raise Skip("h2spec could not be built: " + p.stderr.strip().splitlines()[-1] if p.stderr.strip() else "h2spec could not be built")
    q = subprocess.run([p.stdout.strip(), "-h", "127.0.0.1", "-o", "10", "-P", "/sandbox/%s/8000/x" % sb, *args], stdout=subprocess.PIPE, text=True, timeout=1200)
    total = re.search(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", q.stdout)
    check(total, q.stdout[-500:])
    failed = set(re.findall(r"× \d+: (.*)", q.stdout.split("Failures:")[-1])) if "Failures:" in q.stdout else set()
    print("   h2spec: " + total.group(0))
    check(failed <= KNOWN, "failed: %s" % (failed - KNOWN))


@test
def h2spec_plain(c, sb):
    spec(c, sb, "-p", str(c.port))


@test
def h2spec_tls(c, sb):
    spec(c, sb, "-p", str(c.tls_port), "-t", "-k")


if __name__ == "__main__":
    svc = Service()
    with Cluster() as c:
        sb, vm = c.sandbox({8000: svc.port})
        code = run("ingress h2spec", c, sb)
    sys.exit(code)
