#!/usr/bin/env python3
"""Clones of one snapshot share nothing that should be random. A sandbox with a warm process per language is snapshotted; each clone draws from
processes that start in it and from the warm ones. No value of the first kind, and none that a warm process got from the kernel, may come twice;
the warm user-space generators that repeat are exactly those that docs/clones.md lists.

LONG=1: 10,000 clones (UNIQUE_CLONES=N for another number); without, 100. Every tenth clone also starts the slow programs. Python, Perl, Bash and
OpenSSL are in the base image; Node.js is put into a copy of it from this host."""
import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from stack import Missing, ROOT, Stack, base_image, run  # noqa: E402

CLONES = int(os.environ.get("UNIQUE_CLONES", 10000 if os.environ.get("LONG") else 100))
AT_ONCE = 3


class WithNode(Stack):
    def up(self, **limits):
        node = shutil.which("node")
        if not node or not shutil.which("debugfs"):
            raise Missing("node and debugfs are needed")
        image = self.dir / "root.ext4"
        subprocess.run(["cp", "--sparse=always", base_image(), image], check=True)
        told = subprocess.run(["ldd", node], capture_output=True, text=True, check=True).stdout
        libraries = [p for p in re.findall(r"=> (/\S+)", told) if "libstdc++" in p or "libgcc_s" in p]
        script = self.dir / "debugfs"
        files = [(os.path.realpath(node), "/usr/bin/node")] + [(os.path.realpath(p), f"/usr/lib/x86_64-linux-gnu/{os.path.basename(p)}")
                                                              for p in libraries]
        script.write_text("".join(f"rm {to}\nwrite {source} {to}\nsif {to} mode 0100755\n" for source, to in files))
        subprocess.run(["debugfs", "-w", "-f", script, image], capture_output=True, check=True)
        os.environ["CUBE_BASE"] = str(image)
        return super().up(**limits)


def documented():
    text = (ROOT / "docs/clones.md").read_text()
    return set(re.findall(r"^\| `(user:[^`]+)` \|", text, re.M))


def one_clone(s, number):
    i = f"i0uniq{number:015d}"
    try:
        s.ok("--snapshot", "unique", "start", i, 1)
        out = s.ok("exec", i, 1, "/bin/bash", "/tmp/unique.sh", "draw", "all" if number % 10 == 0 else "")
    finally:
        s.ctl("kill", i, 1)
    got = [line.split(" ", 1) for line in out.splitlines()]
    assert all(len(pair) == 2 and pair[1] for pair in got), out
    return got


def no_value_comes_twice(s):
    i = "i0unique0000000000000"
    s.ok("start", i, 1)
    script = (pathlib.Path(__file__).parent / "unique_guest.sh").read_text()
    s.ok("exec", i, 1, "/bin/bash", "-c", f"cat > /tmp/unique.sh <<'END_OF_FILE'\n{script}\nEND_OF_FILE\nbash /tmp/unique.sh warm")
    s.ok("snapshot", i, 1, "unique")
    s.ok("kill", i, 1)
    seen = collections.defaultdict(collections.Counter)
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for done, got in enumerate(pool.map(lambda n: one_clone(s, n), range(CLONES)), 1):
            for key, value in got:
                seen[key][value] += 1
            if done % 500 == 0:
                twice = sum(v.total() - len(v) for k, v in seen.items() if not k.startswith("user:"))
                print(f"# {done} clones, {done / (time.monotonic() - began):.1f} per second, {twice} duplicates that must not be", flush=True)
    repeating = {}
    for key, values in sorted(seen.items()):
        drawn, twice = values.total(), values.total() - len(values)
        print(f"# {key}: {drawn} values, {twice} of them came before")
        if twice:
            repeating[key] = twice
    wrong = {k: n for k, n in repeating.items() if not k.startswith("user:")}
    assert not wrong, f"duplicates: {wrong}"
    assert len([k for k in seen if k.startswith("fresh:")]) >= 15 and len([k for k in seen if k.startswith("kernel:")]) >= 7, sorted(seen)
    assert set(repeating) == documented(), f"docs/clones.md lists {sorted(documented())}, what repeats is {sorted(repeating)}"
    s.ok("rm-snapshot", "unique")


if __name__ == "__main__":
    sys.exit(run([no_value_comes_twice], lambda: WithNode("unique", vmm_pool=6)))
