"""A million random lifecycle events against four proxies, two over links and two over TCP: no request reaches an older generation, none hangs, none fails without a cause."""
import json
import os
import subprocess
import sys

from check import check, run, test
from cluster import BUILD, Cluster, free_port
from test_limits import metric

EVENTS = int(os.environ.get("CUBE_CHURN_EVENTS", 1000000))
SECONDS = int(os.environ.get("CUBE_CHURN_SECONDS", 1800 if os.environ.get("LONG") == "1" else 25))


@test
def generations_never_go_back(c):
    seed = int(os.environ.get("CUBE_SEED", int.from_bytes(os.urandom(3), "big")))
    p = subprocess.run([str(BUILD / "tests/ingress/churn"), str(c.redis_port), str(free_port()), str(c.run / "relay/link.sock"), str(EVENTS), str(seed), str(SECONDS),
                        *[str(x.port) for x in c.proxies]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    print("   seed %d: %s" % (seed, p.stdout.strip()))
    check(p.returncode == 0, "seed %d: %s %s" % (seed, p.stdout, p.stderr[-1000:]))
    got = json.loads(p.stdout)
    check(got["requests"] > 100 and got["ok"] * 5 > got["requests"], "too few answers to mean anything: %s" % got)
    ways = [(metric(p, r'streams_total\{way="link"\}'), metric(p, r'streams_total\{way="tcp"\}')) for p in c.proxies]
    print("   streams (by link, over TCP) of each proxy: %s" % ways)
    check(all(link for link, _ in ways[:2]) and not any(link for link, _ in ways[2:]), "streams by way: %s" % ways)


if __name__ == "__main__":
    with Cluster(proxies=4, tcp=(2, 3), start_relay=False, config="  threads: 1\n") as c:  # churn is the relay
        code = run("ingress property", c)
    sys.exit(code)
