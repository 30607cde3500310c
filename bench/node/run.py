#!/usr/bin/env python3
"""`./cube bench node-create|create-burst|density|node-pause`: starts a jailer and a node (for node-create a second one with ready sandboxes),
runs cube-bench-node against them, passes its output on. Options behind the name go to cube-bench-node (--json, --n)."""
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/node"))
from stack import BUILD, Missing, Stack  # noqa: E402

KEYS = {"node-create": {"vmm_pool": 4}, "create-burst": {"vmm_pool": 50}, "density": {"vmm_pool": 4, "max_sandboxes": 2000},
        "node-pause": {"vmm_pool": 4}}


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in KEYS:
        print(f"usage: run.py {'|'.join(KEYS)} [--json] [--n N]", file=sys.stderr)
        return 2
    name, rest = sys.argv[1], sys.argv[2:]
    stacks = []
    try:
        stacks.append(Stack("bench", **KEYS[name]))
        stacks[0].up()
        args = ["--address", f"127.0.0.1:{stacks[0].port}", "--keys", stacks[0].dir / "keys", "--run", stacks[0].dir / "run",
                "--template", stacks[0].template]
        if name == "node-create":
            stacks.append(Stack("ready", vmm_pool=2, ready_pool=4))
            for role in (stacks[0].dir / "keys").iterdir():
                (stacks[1].dir / "keys" / role.name).write_bytes(role.read_bytes())
            stacks[1].up()
            args += ["--ready-address", f"127.0.0.1:{stacks[1].port}"]
        return subprocess.run([BUILD / "bench/node/cube-bench-node", *args, *rest, name]).returncode
    except Missing as e:
        print(f"cannot run here: {e}", file=sys.stderr)
        return 1
    finally:
        for s in stacks:
            s.down()


sys.exit(main())
