#!/usr/bin/env python3
"""A guest that takes what it can gets its quota and no more: CPU, memory, disk rate, disk size, descriptors, processes. The network's rate is
tested in tests/net/traffic.sh, the console log's size in tests/unit/vmm (test_serial): a guest needs two minutes for a megabyte."""
import contextlib
import os
import pathlib
import re
import signal
import subprocess
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


def group_path(pid, controller, v1, v2):
    """A file of the process's group, of cgroup v1 or v2."""
    for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            for mount in (controller, names):
                file = pathlib.Path(f"/sys/fs/cgroup/{mount}{path}/{v1}")
                if file.exists():
                    return file
        if names == "":
            file = pathlib.Path(f"/sys/fs/cgroup{path}/{v2}")
            if file.exists():
                return file
    raise AssertionError(f"{pid} is in no group of {controller}")


def group_file(pid, controller, v1, v2):
    return int(group_path(pid, controller, v1, v2).read_text().split()[0])


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
    wait_for("the guest's word in the log", lambda: "the sandbox ran out of memory" in s.ok("logs", i))
    assert s.state(i) == "RUNNING"
    s.ok("kill", i, 1)


HOG = """import os, sys
group, pid = sys.argv[1:]
open(group + "/cgroup.procs", "w").write(str(os.getpid()))
kept = []
while os.path.exists("/proc/" + pid):
    kept.append(bytearray(b"x") * (1 << 20))
"""


def starve(s, i, pid, where, limited):
    """A process in the group `where` takes memory until the limit of the group `limited` is met and the kernel ends the VM: the process that it was
    told to choose. The VM stands still meanwhile, else the kernel takes the VM's files from it and it reads them again, for as long as it likes.
    Answers what the node says of the sandbox then. (The kernel may end the process, too: a VM that is ended has given back little.)"""
    limit, use = group_path(pid, "memory", "memory.limit_in_bytes", "memory.max").name, group_path(pid, "memory", "memory.usage_in_bytes", "memory.current").name
    pathlib.Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
    os.kill(pid, signal.SIGSTOP)
    (limited / limit).write_text(str(int((limited / use).read_text()) + 16 * MIB))
    hog = subprocess.Popen([sys.executable, "-c", HOG, where, str(pid)])
    try:
        wait_for("its end in the node's list", lambda: s.state(i) == "FAILED", 60)
    finally:
        hog.kill()
        hog.wait()
        with contextlib.suppress(FileNotFoundError):  # the VM's own goes with it
            (limited / limit).write_text("max" if limit == "memory.max" else "-1")
    return next(line for line in s.ok("list").splitlines() if line.startswith(i + " "))


def out_of_memory_in_the_vms_own_limit(s):
    i = "i0quota0000000000000e"
    pid = start(s, i)
    group = group_path(pid, "memory", "memory.limit_in_bytes", "memory.max").parent
    told = starve(s, i, pid, group, group)
    assert "out of memory in the VM's cgroup" in told, told
    s.ok("kill", i, 1)


def out_of_memory_outside_of_the_vm(s):
    """The group above stands in for the host: to the VM's own group it is the same, a kill without its limit being met."""
    i = "i0quota0000000000000f"
    pid = start(s, i)
    top = group_path(pid, "memory", "memory.limit_in_bytes", "memory.max").parent.parent
    beside = top / "hog"
    beside.mkdir()
    try:
        told = starve(s, i, pid, beside, top)
    finally:
        wait_for("the hog's group being empty", lambda: not (beside / "cgroup.procs").read_text())
        beside.rmdir()
    assert "out of memory on the host" in told, told
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


TESTS = [cpu, memory, out_of_memory_in_the_vms_own_limit, out_of_memory_outside_of_the_vm, disk_rate_and_size, descriptors_processes_messages]

if __name__ == "__main__":
    chosen = [t for t in TESTS if not sys.argv[1:] or t.__name__ in sys.argv[1:]]
    sys.exit(run(chosen, lambda: Stack("quota", vmm_pool=2, disk_bytes=DISK_RATE)))
