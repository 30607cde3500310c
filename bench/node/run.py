#!/usr/bin/env python3
"""`./cube bench node-create|create-burst|density|node-pause`: starts a jailer and a node (for node-create a second one with ready sandboxes),
runs cube-bench-node against them, passes its output on. Options behind the name go to cube-bench-node (--json, --n)."""
import fcntl
import os
import pathlib
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/node"))
from stack import BUILD, Missing, Stack  # noqa: E402

KEYS = {"node-create": {"vmm_pool": 4}, "create-burst": {"vmm_pool": 50}, "density": {"vmm_pool": 4, "max_sandboxes": 2000},
        "node-pause": {"vmm_pool": 4}}


def like_a_host(stack):
    """<run> in memory, as /run is; and <state> apart from what others delete in the same block group of an ext4: it hands out no
    inode that was freed in the last minutes, and looks at each of those for every new file."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "bench", stack.dir / "run"], check=True)
    fd = os.open(stack.dir, os.O_RDONLY)
    try:
        flags = bytearray(8)
        fcntl.ioctl(fd, 0x80086601, flags)  # FS_IOC_GETFLAGS
        fcntl.ioctl(fd, 0x40086602, struct.pack("Q", struct.unpack("Q", flags)[0] | 0x20000))  # FS_TOPDIR_FL
    except OSError:
        pass  # not an ext4
    os.close(fd)
    (stack.dir / "state").rmdir()
    (stack.dir / "state").mkdir()
    return stack


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in KEYS:
        print(f"usage: run.py {'|'.join(KEYS)} [--json] [--n N]", file=sys.stderr)
        return 2
    name, rest = sys.argv[1], sys.argv[2:]
    stacks = []
    try:
        stacks.append(like_a_host(Stack("bench", **KEYS[name])))
        stacks[0].up()
        args = ["--address", f"127.0.0.1:{stacks[0].port}", "--keys", stacks[0].dir / "keys", "--run", stacks[0].dir / "run",
                "--template", stacks[0].template]
        if name == "node-create":
            stacks.append(like_a_host(Stack("ready", vmm_pool=2, ready_pool=4)))
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
            s.down()  # all but <run>, where something is mounted
            subprocess.run(["umount", "-l", s.dir / "run"])
            shutil.rmtree(s.dir, ignore_errors=True)


sys.exit(main())
