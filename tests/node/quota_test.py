#!/usr/bin/env python3
"""A guest that takes what it can gets its quota and no more: CPU, memory, disk rate, disk size, descriptors, processes. The network's rate is
tested in tests/net/traffic.sh, the console log's size in tests/unit/vmm (test_serial): a guest needs two minutes for a megabyte."""
import os
import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from stack import Stack, run, wait_for  # noqa: E402

MIB = 1 << 20
DISK_RATE = 8 * MIB


def has_layer(pid):
    try:
        return any("/layer" in os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:  # it ended meanwhile
        return False


def start(s, i):
    """The pid of the sandbox's VM: the only one that has a disk."""
    wait_for("the VM of the test before being gone", lambda: not any(map(has_layer, s.vmms().values())))
    s.ok("start", i, 1)
    return wait_for("a VM process with a disk layer", lambda: next(filter(has_layer, s.vmms().values()), None))


def group_file(pid, controller, v1, v2):
    """A file of the process's group, of cgroup v1 or v2."""
    for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            for mount in (controller, names):
                file = pathlib.Path(f"/sys/fs/cgroup/{mount}{path}/{v1}")
                if file.exists():
                    return int(file.read_text().split()[0])
        if names == "":
            file = pathlib.Path(f"/sys/fs/cgroup{path}/{v2}")
            if file.exists():
                return int(file.read_text().split()[0])
    raise AssertionError(f"{pid} is in no group of {controller}")


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu(s):
    i = "i0quota0000000000000a"
    pid = start(s, i)
    assert group_file(pid, "cpu", "cpu.cfs_quota_us", "cpu.max") == 100000, "one vCPU is one core"
    s.sh(i, 1, "for i in 1 2 3 4; do setsid sh -c 'while :; do :; done' > /dev/null 2>&1 & done; true")
    began, used = time.monotonic(), cpu_seconds(pid)
    s.sh(i, 1, "dd if=/dev/urandom of=/dev/null bs=1M count=64 2> /dev/null")
    time.sleep(2)
    share = (cpu_seconds(pid) - used) / (time.monotonic() - began)
    assert share <= 1.15, f"the VM used {share:.2f} cores of one"  # the quota counts in periods of 0.1 s
    s.ok("kill", i, 1)


def memory(s):
    i = "i0quota0000000000000b"
    pid = start(s, i)
    limit = group_file(pid, "memory", "memory.limit_in_bytes", "memory.max")
    assert limit <= (512 + 128) * MIB, limit
    code, out = s.ctl("exec", i, 1, "python3", "-c", "b = []\nwhile True: b.append(bytearray(1 << 20))")
    assert code != 0, out
    rss = int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) << 10
    assert rss <= limit, f"{rss >> 20} MiB resident"
    assert s.sh(i, 1, "echo alive") == "alive", "the guest's own memory is the guest's own trouble"
    assert s.state(i) == "RUNNING"
    s.ok("kill", i, 1)


def disk_rate_and_size(s):
    i = "i0quota0000000000000c"
    pid = start(s, i)
    began = time.monotonic()
    s.sh(i, 1, "dd if=/dev/zero of=/root/rate bs=1M count=32 oflag=direct 2> /dev/null")
    took = time.monotonic() - began
    assert took >= (32 * MIB - 2 * MIB) / DISK_RATE, f"32 MiB in {took:.1f} s"
    layer = next(os.stat(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd") if "/layer" in os.readlink(f"/proc/{pid}/fd/{fd}"))
    size = int(s.sh(i, 1, "cat /sys/block/vda/size")) * 512
    code, out = s.ctl("exec", i, 1, "dd", "if=/dev/zero", "of=/dev/vda", "bs=4096", "count=1", f"seek={size // 4096}")
    assert code != 0, f"a write behind the end of the disk: {out}"
    assert layer.st_size <= size + MIB, "the layer is larger than the disk"
    assert s.state(i) == "RUNNING"
    s.ok("kill", i, 1)


def descriptors_processes_messages(s):
    i = "i0quota0000000000000d"
    pid = start(s, i)
    limits = pathlib.Path(f"/proc/{pid}/limits").read_text()
    assert re.search(r"Max open files\s+2048\s+2048", limits), limits
    assert re.search(r"Max core file size\s+0\s+0", limits), limits
    assert group_file(pid, "pids", "pids.max", "pids.max") <= 64
    s.sh(i, 1, "for i in $(seq 200); do sleep 100 > /dev/null 2>&1 & done; true")
    assert len(os.listdir(f"/proc/{pid}/fd")) < 100, "processes of the guest are none of the host"
    assert len(os.listdir(f"/proc/{pid}/task")) <= 8
    s.ok("kill", i, 1)


if __name__ == "__main__":
    sys.exit(run([cpu, memory, disk_rate_and_size, descriptors_processes_messages], lambda: Stack("quota", vmm_pool=2, disk_bytes=DISK_RATE)))
