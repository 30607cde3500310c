#!/usr/bin/env python3
"""The kernel tests: boots a guest under cube-vmm and runs the programs of tests/kernel/guest in it.

  run.py --vmm PATH --kernel PATH --root IMAGE --tools IMAGE [--vcpus 1,2] [--only NAME,...] [--soak SECONDS] [--seed N]

Prints PASS, FAIL or SKIP per program and ends with 0 when nothing failed. With --soak: mixed load in the guest, snapshots at
random moments, each restored in a new process (the old one is killed) and compared; prints a summary.
"""
import argparse
import os
import random
import shutil
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import vm  # noqa: E402

PROBES = [("registers", "registers 3 100"), ("registers-20us", "registers 2 20"), ("faults", "faults"), ("debugger", "debugger"),
          ("state", "state 3"), ("clocks", "clocks"), ("memory", "memory 3"), ("security-probe", "probe")]
LATE = 1.0  # seconds: an answer after a restore that takes longer is reported

failed = 0


def report(name, status, output, seconds, room=200):
    global failed
    last = (output.strip().splitlines() or [""])[-1][:room]
    if status == 0:
        print("PASS %s (%.1f s) %s" % (name, seconds, last), flush=True)
    elif status == 77:
        print("SKIP %s: %s" % (name, last), flush=True)
    else:
        failed += 1
        print("FAIL %s: status %s: %s" % (name, status, output.strip()[-1500:].replace("\n", " | ")), flush=True)


def attempt(name, guest, command, timeout=120):
    start = time.monotonic()
    try:
        status, output = guest.run(command, timeout)
    except (vm.VmError, OSError) as e:
        status, output = -1, str(e)
    report(name, status, output, time.monotonic() - start)
    return status != -1


def booted(options, dir, vcpus):
    guest = vm.Vm(options.vmm, dir, options.memory, vcpus)
    try:
        guest.boot(options.kernel, [(options.root, False), (options.tools, True)], vm.AGENT_CMDLINE + options.cmdline)
        guest.check("true")
    except Exception:
        print(guest.console()[-3000:])
        guest.kill()
        raise
    return guest


def snapshot_cycle(options, guest, dir):
    """Snapshot under load, the process killed, restored twice from the same files: both continue and agree."""
    guest.check("(while :; do sha256sum /usr/bin/python3 | cut -c1-64; done >/run/sums 2>&1 & python3 -c 'import time\nn=0\nwhile 1: n+=1; "
                "open(\"/run/n\",\"w\").write(str(n)); time.sleep(0.01)' & disown -a) </dev/null >/dev/null 2>&1")
    # Under load means that both have begun: a first sum is there, and a first number.
    guest.check("for i in $(seq 600); do [ -s /run/sums ] && [ -s /run/n ] && exit 0; sleep 0.1; done; exit 1")
    snap = os.path.join(dir, "snap")
    before = guest.check("cat /proc/sys/kernel/random/boot_id; echo kept >/var/tmp/kept; sync")
    guest.snapshot(snap)
    guest.kill()
    for n in range(2):
        clone = vm.Vm(options.vmm, os.path.join(dir, "clone%d" % n), options.memory, guest.vcpus)
        with clone:
            clone.restore(snap, [(options.root, False), (options.tools, True)])
            if clone.check("cat /proc/sys/kernel/random/boot_id; cat /var/tmp/kept") != before + "kept\n":
                return 1, "the clone has another state"
            first = int(clone.check("cat /run/n") or 0)
            clone.check("for i in $(seq 100); do [ \"$(cat /run/n)\" != %d ] && exit 0; sleep 0.1; done; exit 1" % first)
            if clone.check("sort -u /run/sums | grep -c ^................................................................$").strip() != "1":
                return 1, "checksums differ: " + clone.check("sort /run/sums | uniq -c | tail -3")
    return 0, ""


def disk_grows(options, old, dir):
    """The configuration-change interrupt, which comes without a status read on a PVM-kind host: twice, then the new room is used."""
    with booted(options, os.path.join(dir, "vm-grows"), old.vcpus) as guest:
        return grow_twice(guest)


def grow_twice(guest):
    size = int(guest.check("cat /sys/block/vda/size")) * 512
    for more in (64 << 20, 96 << 20):
        guest.grow(0, size + more)
        guest.check("for i in $(seq 300); do [ $(cat /sys/block/vda/size) = %d ] && exit 0; sleep 0.1; done; cat /sys/block/vda/size; exit 1"
                    % ((size + more) // 512))
    for wrong in (size, size + (96 << 20) + 100):
        try:
            guest.grow(0, wrong)
            return 1, "a disk of %d bytes became one of %d" % (size + (96 << 20), wrong)
        except vm.VmError as e:
            if "cannot become" not in str(e):
                raise
    guest.check("resize2fs /dev/vda >/dev/null 2>&1 && [ $(stat -f -c %b /) -gt 0 ] && dd if=/dev/urandom of=/var/tmp/new bs=1M count=8 conv=fsync "
                "status=none && a=$(sha256sum </var/tmp/new) && echo 3 >/proc/sys/vm/drop_caches && [ \"$a\" = \"$(sha256sum </var/tmp/new)\" ]")
    last = (size + (96 << 20)) // 4096 - 1
    return guest.run("[ $(dumpe2fs -h /dev/vda 2>/dev/null | sed -n 's/^Block count: *//p') = %d ]" % (last + 1))


def hogs_run(guest):
    """Starts a real-time process on each vCPU that keeps it for three seconds, and returns when all of them have begun: only the console can tell."""
    before = guest.console().count("hog has begun")
    guest.check("echo -1 >/proc/sys/kernel/sched_rt_runtime_us && for cpu in $(seq 0 $(($(nproc) - 1))); do "
                "(sleep 0.3; ulimit -t 3; exec taskset -c $cpu chrt -f 50 sh -c 'echo \"<0>hog has begun\" >/dev/kmsg; while :; do :; done') "
                "</dev/null >/dev/null 2>&1 & done")
    deadline = time.monotonic() + vm.PATIENCE
    while guest.console().count("hog has begun") < before + guest.vcpus:
        if time.monotonic() > deadline:
            raise vm.VmError("the hogs did not begin")
        time.sleep(0.01)


def late_answer(options, guest, dir):
    """Real-time processes keep each vCPU for three seconds: the VMM must say that the guest did not answer, and what it saw. The connection is
    opened after they have begun: one that the kernel had answered before would wait just as long, for the agent, and is not late to the VMM. Again
    where the host ran this program so seldom that the three seconds were over."""
    for _ in range(5):
        hogs_run(guest)
        start = time.monotonic()
        guest.check("@ping")
        took = time.monotonic() - start
        if "has not answered" in guest.vmm_log() or took > 2:
            break
    log = guest.vmm_log()
    for part in ("late: guest port 1 has not answered for 1000 ms", "late: vCPU %d rip 0x" % (guest.vcpus - 1), "LAPIC irr [", "isr [", "late: IOAPIC irr 0x",
                 "vsock pin", "late: device vsock status 0xf", "queue 0 offered", "late: device blk", "answered after"):
        if part not in log:
            return 1, "the log lacks %r after an answer of %.2f s: %s" % (part, took, log[-1500:])
    return 0, [line for line in log.splitlines() if "answered after" in line][-1]


def idle_sleeps(options, old, dir):
    """An idle guest is left alone by its kernel: fewer than 1.5 wake-ups a second (3 with several vCPUs: a timer that polls makes 5) in one of some
    windows of 4 s (boot has work for later)."""
    with booted(options, os.path.join(dir, "vm-idle"), old.vcpus) as guest:
        seen = []
        for _ in range(6):
            before = guest.vcpu_sleeps()
            time.sleep(4)
            seen.append(guest.vcpu_sleeps() - before)
            if seen[-1] < 6 * min(guest.vcpus, 2):
                return 0, "%.2f wake-ups per second" % (seen[-1] / 4)
        return 1, "wake-ups in 4 s: %s" % seen


def clock_runs(guest, command="python3 -c 'import time; print(time.clock_gettime(time.CLOCK_MONOTONIC))'"):
    """The guest's monotonic clock against the host's, over some seconds: (guest's, least and most of the host's)."""
    def read():
        before = time.monotonic()
        value = float(guest.check(command))
        return before, value, time.monotonic()
    a = read()
    guest.check("sleep 2")
    b = read()
    return b[1] - a[1], b[0] - a[2], b[2] - a[0]


def clocks_after_restore(options, guest, dir):
    """Time goes on at its own pace in a restored guest, and a snapshot of a host with another TSC frequency is refused."""
    snap = os.path.join(dir, "snap")  # of snapshot_cycle
    disks = [(options.root, False), (options.tools, True)]
    with vm.Vm(options.vmm, os.path.join(dir, "clock"), options.memory, guest.vcpus) as clone:
        clone.restore(snap, disks)
        took, least, most = clock_runs(clone)
        if not least - 0.005 <= took <= most + 0.005:
            return 1, "the guest's clock went on by %.3f s in %.3f to %.3f s" % (took, least, most)
        kind = clone.kind()
    for factor, refused in ((1.0004, False), (1.25, True)):
        copy = os.path.join(dir, "other-host")
        os.mkdir(copy)
        for name in os.listdir(snap):
            if name == "state":
                shutil.copy(os.path.join(snap, name), copy)
            else:
                os.link(os.path.join(snap, name), os.path.join(copy, name))
        vm.fake_tsc(copy, factor)
        with vm.Vm(options.vmm, os.path.join(dir, "other%s" % refused), options.memory, guest.vcpus) as clone:
            try:
                clone.restore(copy, disks)
                clone.check("true")
                if refused and kind == "pvm":
                    return 1, "a snapshot of a TSC 25 % faster was restored"
            except vm.VmError as e:
                if not refused or "kHz and cannot scale" not in str(e):
                    return 1, str(e)
        vm.remove(copy)
    return 0, "%.3f s in %.3f to %.3f s" % (took, least, most)


def vectors(guest):
    """Programs choose their code by these flags: what the processor has and the guest does not is speed lost (and `state` would test nothing)."""
    with open("/proc/cpuinfo") as f:
        host = f.read().split()
    here = guest.check("cat /proc/cpuinfo").split()
    lost = [flag for flag in ("avx", "avx2", "fma", "avx512f", "avx512bw", "avx512vl") if flag in host and flag not in here]
    return len(lost) > 0, "lost: %s" % lost if lost else "avx512f: %s" % ("avx512f" in here)


def tests(options):
    for vcpus in options.vcpus:
        label = "%dcpu" % vcpus
        with tempfile.TemporaryDirectory(prefix="cube-kernel-") as dir:
            start = time.monotonic()
            try:
                guest = booted(options, os.path.join(dir, "vm"), vcpus)
            except (vm.VmError, OSError) as e:
                report("%s/boot" % label, -1, str(e), 0)
                continue
            with guest:
                report("%s/boot" % label, 0, guest.check("uname -r"), time.monotonic() - start)
                report("%s/cpus" % label, int(guest.check("nproc")) != vcpus, "nproc " + guest.check("nproc"), 0)
                if guest.kind() == "pvm":  # hardware KVM may have its reasons
                    report("%s/vector-instructions" % label, *vectors(guest), 0)
                programs = guest.check("bash /tools/bin/programs.sh --list").split()
                everything = PROBES + [(p, "bash /tools/bin/programs.sh " + p) for p in programs]
                for name, command in everything:
                    if options.only and name not in options.only:
                        continue
                    if not attempt("%s/%s" % (label, name), guest, command, options.limit):
                        print(guest.console()[-3000:])
                        guest.kill()
                        guest = booted(options, os.path.join(dir, "vm-after-" + name), vcpus)
                for name, test in (("late-answer", late_answer), ("snapshot", snapshot_cycle), ("clock-after-restore", clocks_after_restore),
                                   ("disk-grows", disk_grows), ("idle-sleeps", idle_sleeps)):
                    if options.only and name not in options.only:
                        continue
                    start = time.monotonic()
                    try:
                        status, why = test(options, guest, dir)
                    except (vm.VmError, OSError, ValueError) as e:
                        status, why = -1, str(e)
                    report("%s/%s" % (label, name), status, why, time.monotonic() - start)
                guest.kill()


def spread(seconds):
    return "p50 %.2f s, max %.2f s" % (sorted(seconds)[len(seconds) // 2], max(seconds))


def soak(options):
    chance = random.Random(options.seed)
    answers, shares, late, cycles = [], [], [], 0
    shell = {"before": [], "after": []}  # the same command, many processes long, on both sides of the restore

    def status(when):
        start = time.monotonic()
        rounds, errors = guest.check("bash /tools/bin/load.sh --status").split()
        shell[when].append(time.monotonic() - start)
        return rounds, errors

    def fingerprint(renew=False):
        """What must be the same on both sides: the boot, 4 MiB in memory and 4 MiB on the disk (new ones in each cycle), and the load's first process."""
        new = "for f in /run/kept /var/tmp/kept; do head -c 4M /dev/urandom >$f; done; sync /var/tmp/kept; " if renew else ""
        return guest.check(new + "cat /proc/sys/kernel/random/boot_id; sha256sum /run/kept /var/tmp/kept; pgrep -o -f '[l]oad.sh'")

    stream = "".join("%d\n" % n for n in range(1, 300001))
    with tempfile.TemporaryDirectory(prefix="cube-soak-") as dir:
        guest = booted(options, os.path.join(dir, "vm0"), options.vcpus[0])
        guest.check("bash /tools/bin/load.sh </dev/null >/dev/null 2>&1")
        end = time.monotonic() + options.soak
        try:
            while time.monotonic() < end:
                time.sleep(chance.uniform(0.2, 6))
                if guest.check("seq 1 300000") != stream:
                    raise vm.VmError("the stream over vsock is damaged")
                before = fingerprint(renew=True)
                rounds_before = int(status("before")[0])
                snap = os.path.join(dir, "snap")
                vm.remove(snap)
                guest.snapshot(snap)
                guest.kill()
                cycles += 1
                old = guest.dir
                guest = vm.Vm(options.vmm, os.path.join(dir, "vm%d" % cycles), options.memory, options.vcpus[0])
                start = time.monotonic()
                guest.restore(snap, [(options.root, False), (options.tools, True)])
                restored = time.monotonic() - start
                guest.check("@ping")
                took = time.monotonic() - start
                ran, waited = guest.vcpu_times()
                rounds, errors = status("after")
                answers.append(took)
                shares.append((took, restored, ran, waited))
                if took > LATE:
                    late.append("cycle %d: %.2f s, %.2f of them until the VMM had copied the disk and restored; the vCPUs ran %.2f s and waited "
                                "%.2f s for a processor" % (cycles, *shares[-1]))
                    print("late: " + late[-1], *(line for line in guest.vmm_log().splitlines() if "late: " in line), sep="\n", flush=True)
                if fingerprint() != before:
                    raise vm.VmError("another guest after the restore: %s; before: %s" % (fingerprint(), before))
                if int(rounds) < rounds_before:
                    raise vm.VmError("%s rounds of load after the restore, %d before" % (rounds, rounds_before))
                if errors != "0":
                    raise vm.VmError("errors in the guest: " + guest.check("cat /run/errors"))
                vm.remove(old)
            report("soak", 0, "%d cycles, %s rounds of load, 0 errors; first answer after a restore %s (of the slowest %.2f s until it was restored; "
                   "its vCPUs ran %.2f s and waited %.2f s for a processor), %d of them late; a shell script before "
                   "the snapshot %s, after the restore %s" % (cycles, rounds, spread(answers), *max(shares)[1:], len(late),
                                                              spread(shell["before"]), spread(shell["after"])), options.soak, room=1000)
        except (vm.VmError, OSError) as e:
            report("soak", -1, "cycle %d: %s" % (cycles, e), 0)
            print(guest.console()[-3000:])
        finally:
            guest.kill()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("vmm", "kernel", "root", "tools"):
        p.add_argument("--" + name, required=True)
    p.add_argument("--vcpus", default="1", type=lambda s: [int(n) for n in s.split(",")])
    p.add_argument("--memory", default=768, type=int, help="MiB")
    p.add_argument("--cmdline", default="", type=lambda s: " " + s if s else "")
    p.add_argument("--only", default="", type=lambda s: s.split(",") if s else [])
    p.add_argument("--limit", default=180, type=int, help="seconds per program")
    p.add_argument("--soak", default=0, type=int, help="seconds")
    p.add_argument("--seed", default=None, type=int)
    options = p.parse_args()
    (soak if options.soak else tests)(options)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
