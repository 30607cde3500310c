#!/usr/bin/env python3
"""The jailer's groups of cgroup v2 on a real kernel: cgroup2.c, the jailer's code in a static program, in a guest. Limits of memory, processes and
processor are met there, an out-of-memory is told from the host's, groups go when they are empty, a second jailer finds them."""
import base64
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from stack import BUILD, Stack, run  # noqa: E402

CHUNK = 60_000


def groups_on_a_unified_hierarchy(s):
    i = "i0cgroup000000000000a"
    s.ok("start", i, 1)
    program = base64.b64encode((BUILD / "tests/node/cgroup2").read_bytes()).decode()
    for at in range(0, len(program), CHUNK):
        s.sh(i, 1, f"printf %s '{program[at:at + CHUNK]}' >> /tmp/cgroup2.b64")
    out = s.sh(i, 1, "base64 -d /tmp/cgroup2.b64 > /tmp/cgroup2 && chmod 755 /tmp/cgroup2 && cd /sys/fs/cgroup && "
               "echo '+cpu +memory +pids' > cgroup.subtree_control && mkdir -p test && echo $$ > test/cgroup.procs && exec /tmp/cgroup2")
    print("#", out)
    assert out.startswith("all well"), out
    s.ok("kill", i, 1)


if __name__ == "__main__":
    sys.exit(run([groups_on_a_unified_hierarchy], lambda: Stack("cgroup")))
