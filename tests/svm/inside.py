"""Runs in the emulated machine of tests/svm/run.sh: cube-vmm on kvm_amd.

  inside.py devices                         boot, devices, snapshot, restore, with one and two vCPUs
  inside.py programs VCPUS MEMORY NAME...   probes and programs of tests/kernel in one guest, whose root is this machine's own
"""
import os
import sys
import time

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, here)
import run  # noqa: E402
import vm  # noqa: E402

VMM, KERNEL = os.path.join(here, "cube-vmm"), os.path.join(here, "vmlinux")
TOOLS = (os.path.join(here, "kernel-tools.erofs"), True)
DISKS = [(os.path.join(here, "inner.ext4"), False), TOOLS]
PROGRAM_LIMIT = 1200  # seconds; an emulated guest is some thirty times slower than a real one
vm.PATIENCE = 300
failed = 0


def report(name, ok, detail=""):
    global failed
    failed += not ok
    print("%s svm/%s%s" % ("PASS" if ok else "FAIL", name, (": " if not ok else " ") + str(detail)[-1500:].replace("\n", " | ")), flush=True)


def devices(guest):
    guest.check("dd if=/dev/zero of=/var/tmp/f bs=64k count=64 2>/dev/null; sync; echo 3 >/proc/sys/vm/drop_caches")
    sums = guest.check("sha256sum /var/tmp/f")
    report("blk", sums.startswith("bb9f8df61474d25e71fa00722318cd387396ca1736605e1248821cc0de3d3af8"), sums)
    report("tools-disk", guest.check("ls /tools/bin").split().count("probe") == 1)
    rng = guest.check("cat /sys/class/misc/hw_random/rng_current; head -c 16 /dev/hwrng | wc -c")
    report("rng", rng.split() == ["virtio_rng.0", "16"], rng)
    drivers = guest.check("for d in /sys/bus/virtio/devices/*; do basename $(readlink $d/driver); done").split()
    report("drivers", {"virtio_blk", "vmw_vsock_virtio_transport", "virtio_rng", "virtio_balloon"} <= set(drivers), drivers)
    out = guest.check("seq 1 100000")
    report("vsock", out == "".join("%d\n" % n for n in range(1, 100001)), len(out))


def network(guest):
    out = guest.run("ip addr add 10.7.0.2/24 dev eth0 && ip link set eth0 up && ping -c 2 -W 10 10.7.0.1")
    report("net", out[0] == 0, out)


def other_tsc(snap, factor, net):
    """A snapshot as of a host whose TSC is faster or slower: its clock keeps the host's pace, or the restore is refused with both rates."""
    vm.fake_tsc(snap, factor)
    name = "tsc-%d-percent" % (factor * 100)
    try:
        with vm.Vm(VMM, "/run/vm-" + name, 128, 1) as clone:
            clone.restore(snap, DISKS, net=net)
            clone.check("true")
            took, least, most = run.clock_runs(clone, "cut -d' ' -f1 /proc/uptime")
            report(name, least - 0.1 < took < most + 0.1, "scaled: %.2f s in %.2f to %.2f s" % (took, least, most))
    except vm.VmError as e:
        report(name, "kHz and cannot scale" in str(e), "refused: %s" % e)
    vm.fake_tsc(snap, 1 / factor)


def programs(vcpus, memory, names):
    """As tests/kernel/run.py does on this host, with the disk of the emulated machine (which nobody writes) below the guest's layer."""
    label, count = "svm/%dcpu" % vcpus, 0

    def booted():
        nonlocal count
        count += 1
        guest = vm.Vm(VMM, "/run/programs%d-%d" % (vcpus, count), memory, vcpus)
        guest.boot(KERNEL, [("/dev/vda", False), TOOLS])
        guest.check("true", PROGRAM_LIMIT)
        return guest

    guest = booted()
    probes = dict(run.PROBES)
    known = list(probes) + guest.check("bash /tools/bin/programs.sh --list", PROGRAM_LIMIT).split()
    for name in known if names == ["all"] else names:
        command = probes.get(name, "bash /tools/bin/programs.sh " + name)
        if not run.attempt("%s/%s" % (label, name), guest, command, PROGRAM_LIMIT):
            print(guest.console()[-3000:])
            guest.kill()
            guest = booted()
    guest.kill()


def machine():
    for vcpus in (1, 2):
        label = "%dcpu" % vcpus
        start = time.monotonic()
        net = vm.tap("tap1", "10.7.0.1/24") if vcpus == 1 else None
        guest = vm.Vm(VMM, "/run/vm%d" % vcpus, 128, vcpus)
        with guest:
            if vcpus == 1:
                report("kind", guest.kind() == "hardware", guest.kind())
            guest.boot(KERNEL, DISKS, net=net)
            uname = guest.check("uname -r; nproc")
            report(label + "/boot", uname.split()[1] == str(vcpus), "%s in %.1f s" % (uname.split(), time.monotonic() - start))
            if vcpus == 1:
                devices(guest)
                if net:
                    network(guest)
            guest.check("(n=0; while :; do n=$((n + 1)); echo $n >/run/next; mv /run/next /run/n; sleep 0.05; done) </dev/null >/dev/null 2>&1 & "
                        "echo kept >/var/tmp/kept; sync; until [ -s /run/n ]; do sleep 0.1; done")
            boot_id = guest.check("cat /proc/sys/kernel/random/boot_id")
            snap = "/run/snap%d" % vcpus
            guest.snapshot(snap)
            guest.kill()
        for n in range(3 if vcpus == 1 else 1):
            with vm.Vm(VMM, "/run/vm%d-clone%d" % (vcpus, n), 128, vcpus) as clone:
                start = time.monotonic()
                clone.restore(snap, DISKS, net=net)
                same = clone.check("cat /proc/sys/kernel/random/boot_id") == boot_id and clone.check("cat /var/tmp/kept") == "kept\n"
                first = clone.check("cat /run/n")
                moved = clone.run("for i in $(seq 100); do [ $(cat /run/n) != %s ] && exit 0; sleep 0.2; done; exit 1" % first.strip())[0] == 0
                report("%s/restore-%d" % (label, n), same and moved, "answered in %.2f s" % (time.monotonic() - start))
        if vcpus == 1:
            for factor in (1.25, 0.8):
                other_tsc(snap, factor, net)
        vm.remove(snap)


print(flush=True)  # the firmware leaves its escape sequences on the line
try:
    if sys.argv[1] == "devices":
        machine()
    else:
        programs(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
except Exception as e:  # the outer machine must always come to its end
    report("run", False, "%s: %s" % (type(e).__name__, e))
    for name in sorted(os.listdir("/run")):
        for log in ("console", "vmm.log"):
            path = os.path.join("/run", name, log)
            if os.path.exists(path):
                print(path, open(path, errors="replace").read()[-1500:])
print("svm: all done", flush=True)
