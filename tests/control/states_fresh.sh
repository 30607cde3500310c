#!/bin/sh
# docs/states.md is what proto/states.def says, and the numbers of the states are those of the protocol.
set -eu
root=$1
python3 "$root/proto/states.py" md "$root/proto/states.def" | cmp - "$root/docs/states.md" || {
    echo "docs/states.md is stale: meson compile -C build docs-states" >&2
    exit 1
}
python3 - "$root" <<'PY'
import re, sys
root = sys.argv[1]
states = [l.split()[1] for l in open(root + "/proto/states.def") if l.startswith("state ")]
enum = re.search(r"enum SandboxState \{(.*?)\}", open(root + "/proto/sandbox.proto").read(), re.S).group(1)
numbers = {k.lower(): int(v) for k, v in re.findall(r"(\w+) = (\d+)", enum)}
for i, s in enumerate(states, 1):
    assert numbers[s] == i, (s, i)
PY
