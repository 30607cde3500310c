#!/usr/bin/env python3
"""`cube bench kernel`: what a guest costs on this host.

  bench.py [kernel] [--vmm PATH] [--kernel PATH] [--root IMAGE] [--tools IMAGE] [--vcpus N] [--boots N] [--idle N] [--cmdline WORDS] [--hz LIST] [--json]

boot: from the start of cube-vmm to the first answer of the guest's PID 1 over vsock. syscall, page-fault, fork-exec, pipe,
switch, ptrace-stop, lost-per-second (of a busy loop), wake-late and turn-wait (with three busy processes per CPU): measured in the
guest by tests/kernel/guest/measure.c. tcp-to-guest: one stream from a process here to one in the guest, over a TAP
in a network namespace of its own. idle-cpu-50-vms: processor time of 50 idle clones of one snapshot,
restored side by side, over ten seconds, in per cent of one core. --json prints the object of contracts/internal.md §12.
--hz 100,250,1000 instead compares kernels with these rates of the clock interrupt (built when they are not in the cache): what is measured in the
guest with one and with two vCPUs, and idle clones; two rounds, each in the other order.
"""
import argparse
import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "kernel"))
import vm  # noqa: E402

STREAM_MB = 64  # of one sample of tcp-to-guest
RECEIVER = """
import socket
s = socket.socket(); s.setsockopt(1, 2, 1); s.bind(("10.7.0.2", 4000)); s.listen(1); print("ready", flush=True)
room = bytearray(1 << 20)
while True:
    c, _ = s.accept()
    while c.recv_into(room): pass
    c.sendall(b"k"); c.close()
"""


def percentiles(metric, unit, samples):
    s = sorted(samples)
    return {"metric": metric, "unit": unit, "n": len(s), "p50": round(s[len(s) // 2], 3),
            "p99": round(s[min(len(s) - 1, len(s) * 99 // 100)], 3), "max": round(s[-1], 3)}


def cpu_seconds(pid):
    with open("/proc/%d/stat" % pid) as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def boots(options, disks, dir):
    samples = []
    for n in range(options.boots):
        start = time.monotonic()
        with vm.Vm(options.vmm, os.path.join(dir, "boot%d" % n), options.memory, options.vcpus) as guest:
            guest.boot(options.kernel, disks, vm.AGENT_CMDLINE + options.cmdline)
            guest.check("true")
            samples.append((time.monotonic() - start) * 1000)
    return percentiles("boot", "ms", samples)


def inside(options, disks, dir):
    """The operations measured in the guest, and a snapshot of it at rest."""
    results = []
    with vm.Vm(options.vmm, os.path.join(dir, "vm"), options.memory, options.vcpus) as guest:
        guest.boot(options.kernel, disks, vm.AGENT_CMDLINE + options.cmdline)
        for line in guest.check("measure", 120).splitlines():
            name, unit, p50, p99, top, n = line.split()
            results.append({"metric": name, "unit": "µs" if unit == "us" else unit, "n": int(n), "p50": float(p50), "p99": float(p99),
                            "max": float(top)})
        if options.idle:
            guest.snapshot(os.path.join(dir, "snap"))
    return results


def stream(options, disks, dir):
    """One TCP stream into the guest: MB/s, samples of STREAM_MB each."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):  # CLONE_NEWNET
        return []
    net = vm.tap("tap0", "10.7.0.1/24")
    if not net:
        return []
    samples, block = [], bytes(1 << 20)
    with vm.Vm(options.vmm, os.path.join(dir, "stream"), options.memory, options.vcpus) as guest:
        guest.boot(options.kernel, disks, vm.AGENT_CMDLINE + options.cmdline, net)
        guest.check("ip addr add 10.7.0.2/24 dev eth0 && ip link set eth0 up && cat >/run/receiver.py <<'E'%sE\n"
                    "mkfifo /run/ready; python3 /run/receiver.py >/run/ready 2>&1 </dev/null & read line </run/ready; [ \"$line\" = ready ]" % RECEIVER)
        for n in range(8):
            with socket.create_connection(("10.7.0.2", 4000), 30) as s:
                start = time.monotonic()
                for _ in range(STREAM_MB):
                    s.sendall(block)
                s.shutdown(socket.SHUT_WR)
                if s.recv(1) != b"k":
                    raise vm.VmError("the receiver in the guest ended")
                if n:  # the first one grows windows and faults buffers in
                    samples.append(STREAM_MB * 1.048576 / (time.monotonic() - start))
    return [percentiles("tcp-to-guest", "MB/s", samples)]


def idle(options, disks, dir):
    guests = []
    try:
        for n in range(options.idle):
            guest = vm.Vm(options.vmm, os.path.join(dir, "idle%d" % n), options.memory, options.vcpus)
            guests.append(guest)
            guest.restore(os.path.join(dir, "snap"), disks)
        for guest in guests:
            guest.check("true")
        time.sleep(3)
        before, start = sum(cpu_seconds(g.process.pid) for g in guests), time.monotonic()
        time.sleep(10)
        used = sum(cpu_seconds(g.process.pid) for g in guests) - before
        percent = used / (time.monotonic() - start) * 100
        return percentiles("idle-cpu-%d-vms" % options.idle, "%", [percent])
    finally:
        for guest in guests:
            guest.kill()


def script(path, *arguments):
    out = subprocess.run([os.path.join(ROOT, path), *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout
    return out.strip().splitlines()[-1]


def compare_rates(options, disks):
    """One table of the p50 of two rounds: metrics by rates."""
    rates = [int(r) for r in options.hz.split(",")]
    kernels = {rate: script("guest/kernel/build.sh", "--hz", str(rate)) for rate in rates}
    found = {}
    for order in (rates, rates[::-1]):
        for rate in order:
            for options.vcpus in (1, 2):
                options.kernel = kernels[rate]
                with tempfile.TemporaryDirectory(prefix="cube-bench-kernel-") as dir:
                    results = inside(options, disks, dir)
                    if options.idle:
                        results.append(idle(options, disks, dir))
                for r in results:
                    found.setdefault((r["metric"], r["unit"], options.vcpus), {}).setdefault(rate, []).append(r)
    print("| what | vCPUs | " + " | ".join("%d Hz" % r for r in rates) + " |\n|---|---|" + "---|" * len(rates))
    for (metric, unit, vcpus), of in found.items():
        cells = ["%.4g (%.4g)" % tuple(sum(r[key] for r in of[rate]) / len(of[rate]) for key in ("p50", "p99")) for rate in rates]
        print("| %s, %s | %d | %s |" % (metric, unit, vcpus, " | ".join(cells)))


def main():
    build = os.environ.get("CUBE_BUILD_DIR", os.path.join(ROOT, "build"))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("name", nargs="?", choices=["kernel"], help="as `cube bench` calls it")
    p.add_argument("--vmm", default=os.path.join(build, "node/vmm/cube-vmm"))
    p.add_argument("--tools", default=os.path.join(build, "tests/kernel/kernel-tools.erofs"))
    p.add_argument("--kernel")
    p.add_argument("--root")
    p.add_argument("--vcpus", type=int, default=1)
    p.add_argument("--memory", type=int, default=256, help="MiB")
    p.add_argument("--boots", type=int, default=10, help="boots to measure")
    p.add_argument("--cmdline", default="", type=lambda s: " " + s if s else "", help="more kernel command line")
    p.add_argument("--idle", type=int, default=50, help="idle VMs")
    p.add_argument("--hz", help="rates to compare, as 100,250,1000")
    p.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = p.parse_args()
    if not options.hz:
        options.kernel = options.kernel or script("guest/kernel/build.sh")
    options.root = options.root or script("guest/base/build.sh")
    disks = [(options.root, False), (options.tools, True)]
    if options.hz:
        compare_rates(options, disks)
        return
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="cube-bench-kernel-") as dir:
        results = [boots(options, disks, dir)] if options.boots else []
        results += inside(options, disks, dir)
        if options.idle:
            results.append(idle(options, disks, dir))
        results += stream(options, disks, dir)  # last: it leaves the network namespace
        with vm.Vm(options.vmm, os.path.join(dir, "kind"), options.memory, options.vcpus) as guest:
            kind = guest.kind()
    busy = load > os.cpu_count() / 2
    if options.json:
        print(json.dumps({"name": "kernel",
                          "environment": {"cores": os.cpu_count(), "kernel": os.uname().release, "kvm": kind, "load": load,
                                          "vcpus": options.vcpus},
                          "busy": busy, "results": results}, ensure_ascii=False))
        return
    print("kernel: %s, %d vCPU, %d cores, load %.1f%s" % (kind, options.vcpus, os.cpu_count(), load, ", BUSY" if busy else ""))
    for r in results:
        print("  %-16s n %4d  p50 %10.3f  p99 %10.3f  max %10.3f %s" % (r["metric"], r["n"], r["p50"], r["p99"], r["max"], r["unit"]))


if __name__ == "__main__":
    main()
