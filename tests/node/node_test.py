#!/usr/bin/env python3
"""cube-node as a master sees it: real jailer, VMMs, guests. `node_test.py` runs all; each test leaves nothing behind."""
import contextlib
import hashlib
import os
import pathlib
import re
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from stack import Stack, run, wait_for  # noqa: E402

counter = 0


def new_id():
    global counter
    counter += 1
    return "i0test" + f"{counter:015d}"


def nothing_left(s):
    pool = s.keys["vmm_pool"]

    def settled():
        left = s.census()
        vmms = [x for x in left if x.startswith("vmm ")]
        dirs = [x for x in left if x.startswith(("run/sb", "state/store/tmp", "state/store/snap"))]
        rest = [x for x in left if x.startswith(("tap", "run/warm", "run/vmm", "state/store/vm"))]
        return len(vmms) == pool and not dirs and len(rest) == 4 * pool
    wait_for(lambda: f"only the pool is left, but {sorted(s.census())}", settled, 60)


def receipt_states_every_fact(s):
    i = new_id()
    out = s.ok("start", i, 1)
    for fact in ("clock", "random", "identity", "network", "tokens"):
        assert f"{fact}=1" in out, out
    assert s.sh(i, 1, "hostname") == i
    assert s.sh(i, 1, "cat /run/cube/generation") == "1"
    least, clock = time.time(), int(s.sh(i, 1, "date +%s"))
    assert least - 3 < clock < time.time() + 3, (least, clock)
    assert s.state(i) == "RUNNING"
    assert s.ok("kill", i, 1) == "killed existed=1"
    assert s.state(i) == "KILLED"
    assert s.ok("kill", i, 1) == "killed existed=0"
    nothing_left(s)


def sockets_have_the_contract_modes(s):
    i = new_id()
    s.ok("start", i, 1)
    d = s.dir / "run/sb" / i / "1"
    modes = {p.name: (oct(p.stat().st_mode & 0o777), p.stat().st_uid, p.stat().st_gid) for p in d.iterdir()}
    assert modes["ctl.sock"][0] == "0o600" and modes["ctl.sock"][1] == 59002, modes
    assert modes["in.sock"] == ("0o660", 59002, 59003), modes
    assert modes["ticket"] == ("0o640", 59002, 59003), modes
    assert d.parent.stat().st_mode & 0o777 == 0o750 and d.parent.stat().st_gid == 59003
    secret = b"token-of-a-test"
    for base in ("state/sandboxes", "run/sb", "run/warm"):
        for p in (s.dir / base).rglob("*"):
            if p.is_file() and not p.is_symlink():
                assert secret not in p.read_bytes(), f"the envd token is in {p}"
    s.ok("kill", i, 1)
    nothing_left(s)


def generations_only_grow(s):
    i = new_id()
    s.ok("start", i, 3)
    assert "gen=3" in s.refused("stale_generation", "start", i, 3)
    s.refused("stale_generation", "start", i, 2)
    s.refused("conflict", "start", i, 4)
    s.refused("stale_generation", "kill", i, 2)
    s.refused("stale_generation", "pause", i, 2)
    s.ok("kill", i, 3)
    s.refused("stale_generation", "start", i, 3)
    s.ok("start", i, 4)
    s.ok("kill", i, 0)
    late = new_id()
    s.ok("kill", late, 5)  # overtook its start
    s.refused("stale_generation", "start", late, 5)
    nothing_left(s)


def a_kill_of_an_older_generation_stays_one(s):
    """It waits for a snapshot, and a rollback that came before it makes another VM meanwhile."""
    i = new_id()
    s.ok("start", i, 1)
    s.ok("snapshot", i, 1, "snap-race")
    got = s.ok("--restore", "--snapshot", "snap-race", "race", i, "snapshot:1", "start:2", "kill:1").splitlines()
    assert got[1:] == ["start done", "kill stale_generation"], got
    assert s.state(i) == "RUNNING" and s.sh(i, 2, "cat /run/cube/generation") == "2"
    s.ok("kill", i, 2)
    for left in (s.dir / "state/store/snap").iterdir():
        s.ok("rm-snapshot", left.name)
    nothing_left(s)


def a_kill_in_the_middle_of_a_start_leaves_nothing(s):
    """At once, not only once the sweep has come by: the start and the kill both end the VM."""
    before = len(s.log())
    for after_ms in (1, 2, 3, 5, 7, 9, 12, 15):
        i = new_id()
        s.ok("race", i, "start:1", f"kill:1:{after_ms}")
        assert s.state(i) == "KILLED", s.ok("list")
    nothing_left(s)
    late = [line for line in s.log()[before:].splitlines() if "the sweep will try again" in line]
    assert not late, late


def wrong_commands_leave_nothing(s):
    s.refused("invalid_argument", "start", "no-sandbox", 1)
    s.refused("invalid_argument", "start", new_id(), 0)
    s.refused("not_found", "--template", "nope", "start", new_id(), 1)
    s.refused("invalid_argument", "--template", "../x", "start", new_id(), 1)
    s.refused("not_found", "pause", new_id(), 1)
    s.refused("not_found", "--restore", "start", new_id(), 1)
    s.refused("not_found", "--snapshot", "nosuch", "--restore", "start", new_id(), 1)
    s.refused("not_found", "logs", new_id())
    nothing_left(s)


def pauses_keep_everything(s):
    """20 rounds of pause and resume: files grow, a process counts, a database is written, nothing is lost; chains are merged on the way."""
    insert = ("import sqlite3, sys; c = sqlite3.connect('/root/db'); c.execute('create table if not exists t(gen integer primary key, text text)'); "
              "c.execute('insert into t values(?, hex(randomblob(2000)))', (int(sys.argv[1]),)); c.commit()")
    check = ("import sqlite3; c = sqlite3.connect('/root/db'); assert c.execute('pragma integrity_check').fetchone() == ('ok',); "
             "print(*c.execute('select count(*), max(gen), sum(length(text)) from t').fetchone())")
    i = new_id()
    s.ok("start", i, 1)
    s.sh(i, 1, "mkdir -p /root/t; nohup sh -c 'n=0; while :; do n=$((n+1)); echo $n > /dev/shm/new; mv /dev/shm/new /dev/shm/n; sleep 0.05; done' >/dev/null 2>&1 &")
    before = 0
    for gen in range(1, 21):
        s.sh(i, gen, f"head -c 200000 /dev/urandom > /root/t/{gen}; sha256sum /root/t/{gen} >> /root/sums")
        s.ok("exec", i, gen, "python3", "-c", insert, gen)
        out = s.ok("pause", i, gen)
        assert s.state(i) == "PAUSED"
        deltas = len(list((s.dir / "state/store/snap" / re.search(r"snapshot=(\w+)", out)[1]).glob("delta-*")))
        assert 1 <= deltas <= 4, deltas
        s.ok("--restore", "start", i, gen + 1)
        s.sh(i, gen + 1, "sha256sum -c --quiet /root/sums")
        n = int(s.sh(i, gen + 1, "cat /dev/shm/n"))
        assert n >= before, (n, before)
        before = n
        assert s.sh(i, gen + 1, "cat /run/cube/generation") == str(gen + 1)
        assert s.ok("exec", i, gen + 1, "python3", "-c", check) == f"{gen} {gen} {4000 * gen}"
    s.ok("kill", i, 21)
    nothing_left(s)


def filesystem_pause_boots_again(s):
    i = new_id()
    s.ok("start", i, 1)
    s.sh(i, 1, "echo kept > /root/f; echo gone > /dev/shm/f")
    s.ok("--filesystem-only", "pause", i, 1)
    s.ok("--restore", "start", i, 2)
    assert s.sh(i, 2, "cat /root/f; cat /dev/shm/f 2>/dev/null || echo none") == "kept\nnone"
    s.ok("pause", i, 2)  # a booted one has no base: its memory is written in full
    s.ok("--restore", "start", i, 3)
    assert s.sh(i, 3, "cat /root/f") == "kept"
    s.ok("pause", i, 3)
    s.ok("--restore", "--reboot", "start", i, 4)
    assert s.sh(i, 4, "cat /root/f") == "kept"
    s.ok("kill", i, 4)
    nothing_left(s)


def snapshots_fork(s):
    i, a, b = new_id(), new_id(), new_id()
    s.ok("start", i, 1)
    s.sh(i, 1, "echo one > /dev/shm/f; echo disk > /root/f; nohup sleep 1000 >/dev/null 2>&1 &")
    s.ok("snapshot", i, 1, "snap-a")
    assert s.sh(i, 1, "cat /dev/shm/f") == "one"  # it went on
    s.sh(i, 1, "echo two > /dev/shm/f")
    s.ok("--snapshot", "snap-a", "start", a, 1)
    s.ok("--template", "snap-a", "start", b, 1)
    for x in (a, b):
        assert s.sh(x, 1, "cat /dev/shm/f /root/f; hostname; pgrep -c sleep") == f"one\ndisk\n{x}\n1"
    uuids = {s.sh(x, 1, "cat /proc/sys/kernel/random/uuid; head -c 16 /dev/urandom | od -An -tx1; cat /etc/machine-id") for x in (i, a, b)}
    assert len(uuids) == 3, uuids
    s.ok("--restore", "--snapshot", "snap-a", "start", i, 2)  # rollback
    assert s.sh(i, 2, "cat /dev/shm/f") == "one"
    for x, gen in ((i, 2), (a, 1), (b, 1)):
        s.ok("kill", x, gen)
    assert s.ok("rm-snapshot", "snap-a") == "deleted existed=1"
    assert s.ok("rm-snapshot", "snap-a") == "deleted existed=0"
    nothing_left(s)


def damage_is_refused(s):
    """Truncated, bit-flipped and missing files: a clear error, still paused, and restorable once the file is whole again."""
    i = new_id()
    s.ok("start", i, 1)
    out = s.ok("pause", i, 1)
    snap = s.dir / "state/store/snap" / re.search(r"snapshot=(\w+)", out)[1]
    gen = 2
    names = sorted(p.name for p in snap.iterdir())
    assert names == ["delta-0", "layer", "manifest.json", "memory", "root.ext4", "state", "working-set"], names
    for name in names:
        path, keep = snap / name, snap.parent.parent / f"keep-{name}"
        stat = path.stat()
        for harm in ("flip", "cut", "remove"):
            os.rename(path, keep)
            if harm != "remove":
                shutil.copyfile(keep, path) if stat.st_size < 1 << 26 else os.system(f"cp --sparse=always {keep} {path}")
                os.chown(path, 59002, 59002)
                with open(path, "r+b") as f:
                    if harm == "cut":
                        f.truncate(stat.st_size - 10)
                    else:
                        f.seek(100)
                        byte = f.read(1)
                        f.seek(100)
                        f.write(bytes([byte[0] ^ 0x10]))
            code, out = s.ctl("--restore", "start", i, gen)
            os.rename(keep, path)
            assert code != 0 and re.match(r"error internal_server_error: .*(damaged|manifest|[Nn]o such file)", out) and re.split("[-.]", name)[0] in out, (name, harm, out)
            assert s.state(i) == "PAUSED", (name, harm, s.state(i))
            gen += 1
    s.ok("--restore", "start", i, gen)
    s.ok("kill", i, gen)
    nothing_left(s)


def a_master_names_the_pause(s):
    """A resume that names the sandbox's own pause is no rollback: one that fails leaves it paused, one that succeeds uses the pause up."""
    i = new_id()
    s.ok("start", i, 1)
    for gen in (2, 4):
        name = re.search(r"snapshot=(\w+)", s.ok("pause", i, gen - 1))[1]
        snap = s.dir / "state/store/snap" / name
        os.rename(snap / "state", snap / "away")
        code, out = s.ctl("--restore", "--snapshot", name, "start", i, gen)
        assert code != 0 and "state" in out and s.state(i) == "PAUSED", out
        os.rename(snap / "away", snap / "state")
        s.ok("--restore", "--snapshot", name, "start", i, gen + 1)
        assert not snap.exists(), "the pause's snapshot stayed"
        s.ok("exec", i, gen + 1, "/bin/true")
    s.ok("kill", i, 5)
    nothing_left(s)


def a_rollback_to_nothing_changes_nothing(s):
    i = new_id()
    s.ok("start", i, 1)
    s.sh(i, 1, "echo kept > /dev/shm/f")
    s.refused("not_found", "--restore", "--snapshot", "nothing", "start", i, 2)
    assert s.state(i) == "RUNNING"
    assert s.sh(i, 1, "cat /dev/shm/f") == "kept"
    s.ok("snapshot", i, 1, "snap-before")
    s.sh(i, 1, "rm /dev/shm/f")
    s.ok("--restore", "--snapshot", "snap-before", "start", i, 2)
    assert s.sh(i, 2, "cat /dev/shm/f") == "kept"
    s.ok("kill", i, 2)
    s.ok("rm-snapshot", "snap-before")
    nothing_left(s)


def what_a_pause_writes_is_not_deleted(s):
    i = new_id()
    s.ok("start", i, 1)
    s.sh(i, 1, "echo kept > /dev/shm/f")
    (vmm,) = [p for n, p in s.vmms().items() if not (s.dir / "run/warm" / n).exists()]
    os.kill(vmm, signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        try:
            pause = pool.submit(s.ctl, "pause", i, 1)
            name = wait_for("the pause to have begun", lambda: re.search(rf"^{i} .* snapshot=(\w+)", s.ok("list"), re.M))[1]
            s.refused("conflict", "rm-snapshot", name)
        finally:
            os.kill(vmm, signal.SIGCONT)
        assert pause.result()[0] == 0, pause.result()
    s.ok("--restore", "start", i, 2)
    assert s.sh(i, 2, "cat /dev/shm/f") == "kept"
    s.ok("kill", i, 2)
    nothing_left(s)


def another_class_is_refused(s):
    i = new_id()
    s.ok("start", i, 1)
    out = s.ok("pause", i, 1)
    manifest = s.dir / "state/store/snap" / re.search(r"snapshot=(\w+)", out)[1] / "manifest.json"
    text = manifest.read_text()

    def changed(old, new):
        head = text[:text.index(',"sum":"')].replace(old, new, 1)
        manifest.write_text(f'{head},"sum":"{hashlib.sha256(head.encode()).hexdigest()}"}}\n')
    changed('"cpu_features":"', '"cpu_features":"z')
    assert "CPU features" in s.refused("sandbox_no_compatible_node", "--restore", "start", i, 2)
    changed('"guest_protocol":1', '"guest_protocol":9')
    assert "guest protocol" in s.refused("sandbox_no_compatible_node", "--restore", "start", i, 3)
    manifest.write_text(text)
    s.ok("--restore", "start", i, 4)
    s.ok("kill", i, 4)
    nothing_left(s)


def guest_ends_by_itself(s):
    i = new_id()
    s.ok("start", i, 1)
    s.ctl("exec", i, 1, "/bin/sh", "-c", "echo b > /proc/sysrq-trigger; kill -9 1; /sbin/reboot -f", timeout=90)
    code, _ = s.ctl("list")
    vmm_before = s.vmms()
    if s.state(i) == "RUNNING":  # the guest refused to end: take its VM process instead
        for name, pid in vmm_before.items():
            if not (s.dir / "run/warm" / name).exists():
                os.kill(pid, signal.SIGKILL)
    wait_for("it being over", lambda: s.state(i) in ("FAILED", "KILLED"), 60)
    s.ok("kill", i, 1)
    nothing_left(s)


def a_directory_that_is_used_again_is_empty(s):
    i = new_id()
    s.ok("start", i, 1)
    s.sh(i, 1, "head -c 1000000 /dev/urandom > /root/secret; sync; echo said > /dev/ttyS0")
    held = [d for d in (s.dir / "state/store/vm").iterdir() if (d / "base/memory").exists()]
    assert len(held) == 1 and (held[0] / "layer").stat().st_size > 0, held
    inode = (held[0] / "layer").stat().st_ino
    s.ok("kill", i, 1)
    nothing_left(s)

    def empty(d):
        return (sorted(p.name for p in d.iterdir()) == ["base", "console.log", "layer"] and not list((d / "base").iterdir())
                and not (d / "layer").stat().st_size and not (d / "console.log").stat().st_size)

    def kept():
        try:  # the pool takes one away meanwhile
            dirs = [*(s.dir / "state/store/vm").iterdir(), *(s.dir / "state/store/vm-spare").iterdir()]
            return inode in [(d / "layer").stat().st_ino for d in dirs] and all(map(empty, dirs))
        except OSError:
            return False
    wait_for("the directory being kept, and all of them empty", kept, 60)


def only_vmm(s):
    """The pid of the one VM that is in use; VMs of the pool, and those that are still made or taken down, settle first."""
    used = lambda: [p for n, p in s.vmms().items() if not (s.dir / "run/warm" / n).exists()]
    wait_for("one VM in use", lambda: len(used()) == 1)
    return used()[0]


def node_dies_and_comes_back(s):
    """kill -9 with running and paused sandboxes: the same VM processes go on, pool leftovers go."""
    run_, paused = new_id(), new_id()
    s.ok("start", run_, 1)
    pid = only_vmm(s)
    s.ok("start", paused, 1)
    s.sh(run_, 1, "nohup sleep 1000 >/dev/null 2>&1 & echo $! > /dev/shm/pid")
    s.sh(paused, 1, "echo x > /dev/shm/f")
    s.ok("pause", paused, 1)
    s.kill_node()
    assert os.path.exists(f"/proc/{pid}")
    s.start_node()
    assert s.state(run_) == "RUNNING" and s.state(paused) == "PAUSED"
    assert pid in s.vmms().values(), "not the same VM process"
    assert s.sh(run_, 1, "kill -0 $(cat /dev/shm/pid) && echo alive") == "alive"
    s.refused("stale_generation", "start", run_, 1)
    s.ok("--restore", "start", paused, 2)
    assert s.sh(paused, 2, "cat /dev/shm/f") == "x"
    s.ok("kill", paused, 2)
    s.ok("kill", run_, 1)
    nothing_left(s)


def commands_wait_until_sandboxes_are_taken_over(s):
    """The node listens before it knows its sandboxes. A stopped jailer holds it there: what comes meanwhile is neither answered from half
    the truth nor done to half of it."""
    run_, paused = new_id(), new_id()
    s.ok("start", run_, 1)
    s.ok("start", paused, 1)
    s.sh(paused, 1, "echo x > /dev/shm/f")
    s.ok("pause", paused, 1)
    s.kill_node()
    s.jailer.send_signal(signal.SIGSTOP)
    try:
        s.start_node(ready=False)
        wait_for("the listeners", lambda: "503" in s.http("/readyz").split("\r\n")[0])
        s.refused("unavailable", "list")
        with ThreadPoolExecutor() as pool:
            kill = pool.submit(s.ctl, "kill", run_, 1)
            resume = pool.submit(s.ctl, "--restore", "start", paused, 2)
            wait_for("both to have come", lambda: connections(s.port) >= 2)
            assert not kill.done() and not resume.done()
            s.jailer.send_signal(signal.SIGCONT)
            assert kill.result()[0] == 0 and resume.result()[0] == 0, (kill.result(), resume.result())
    finally:
        s.jailer.send_signal(signal.SIGCONT)
    assert s.state(run_) == "KILLED", "adopted again after its kill"
    assert s.sh(paused, 2, "cat /dev/shm/f") == "x"
    s.ok("kill", paused, 2)
    nothing_left(s)


def connections(port):
    """Established TCP connections to a local port, by the kernel's table of the listening side."""
    with open("/proc/net/tcp") as f:
        return sum(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "01" for line in f)


def a_stop_before_all_is_taken_over(s):
    s.stop_node()
    s.jailer.send_signal(signal.SIGSTOP)
    try:
        s.start_node(ready=False)
        wait_for("the listeners", lambda: "503" in s.http("/readyz").split("\r\n")[0])
        s.stop_node()
        assert s.node.returncode == 0, s.node.returncode
    finally:
        s.jailer.send_signal(signal.SIGCONT)
    s.start_node()
    nothing_left(s)


def a_vm_that_died_meanwhile_is_lost(s):
    i = new_id()
    s.ok("start", i, 1)
    pid = only_vmm(s)
    s.kill_node()
    os.kill(pid, signal.SIGKILL)
    wait_for("its end", lambda: not os.path.exists(f"/proc/{pid}"))
    s.start_node()
    assert s.state(i) in ("LOST", "FAILED"), s.state(i)
    s.ok("kill", i, 1)
    nothing_left(s)


def a_stop_leaves_sandboxes(s):
    i = new_id()
    s.ok("start", i, 1)
    s.stop_node()
    assert len(s.vmms()) == 1, "the pool should be gone, the sandbox not"
    s.start_node()
    assert s.state(i) == "RUNNING"
    s.ok("kill", i, 1)
    nothing_left(s)


def the_deadline_is_kept_without_a_master(s):
    killed, paused = new_id(), new_id()
    kills, pauses = s.metric("cube_node_kills_total"), s.metric('cube_node_pauses_total{ok="true"}')
    s.ok("--remaining", 1000, "start", killed, 1)
    s.ok("--remaining", 1000, "--auto-pause", "start", paused, 1)
    # Asked by the metrics: a command would be a sign of a master.
    wait_for("the timeout actions", lambda: s.metric("cube_node_kills_total") > kills and
             s.metric('cube_node_pauses_total{ok="true"}') > pauses, 60)
    assert (s.state(killed), s.state(paused)) == ("KILLED", "PAUSED")
    extended = new_id()
    s.ok("--remaining", 20000, "start", extended, 1)
    s.ok("--remaining", 600000, "update", extended, 1)
    s.ok("--restore", "start", paused, 2)
    s.ok("kill", paused, 2)
    assert s.state(extended) == "RUNNING"
    s.ok("kill", extended, 1)
    nothing_left(s)


def logs_and_metrics(s):
    i = new_id()
    s.ok("start", i, 1)
    point = wait_for("a metric point", lambda: s.ok("metrics", i).splitlines(), 60)[-1]
    assert re.search(r"cpus=1 cpu=[\d.]+ mem=\d+/\d{9} disk=\d+/\d{10}", point), point
    s.ctl("logs", i)
    s.ok("kill", i, 1)
    assert s.metric('cube_node_starts_total{kind="create",ok="true"}') >= 1
    nothing_left(s)


def many_at_once(s):
    """More VMs than fit in any small number of descriptors of the jailer's or the node's."""
    ids = [new_id() for _ in range(70)]
    for i in ids:
        s.ok("start", i, 1)
    assert s.sh(ids[-1], 1, "hostname") == ids[-1] and s.sh(ids[0], 1, "hostname") == ids[0]
    for i in ids:
        s.ok("kill", i, 1)
    nothing_left(s)


@contextlib.contextmanager
def kill_that_waits(s):
    """A sandbox that ended by itself while a kill of it waits for the jailer, which stands still."""
    def used():
        return {p for n, p in s.vmms().items() if not (s.dir / "run/warm" / n).exists()}
    i, others = new_id(), used()
    s.ok("start", i, 1)
    (vmm,) = used() - others
    os.kill(vmm, signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        try:
            pause = pool.submit(s.ctl, "pause", i, 1)  # an operation that the kill wants to cut short
            wait_for("the pause to have begun", lambda: re.search(rf"^{i} .* snapshot=\w", s.ok("list"), re.M))
            s.jailer.send_signal(signal.SIGSTOP)
            kill = pool.submit(s.ctl, "kill", i, 1)
            wait_for("both to have come", lambda: connections(s.port) >= 2)
            s.ok("list")  # which comes behind it
            os.kill(vmm, signal.SIGKILL)
            assert pause.result()[0] != 0
            wait_for("the end to be seen", lambda: s.state(i) in ("FAILED", "KILLED"))
            yield i, kill
        finally:
            s.jailer.send_signal(signal.SIGCONT)
        assert kill.result()[0] == 0, kill.result()


def the_remembered_are_bounded(s):
    """However fast sandboxes come and go: the ones that ended first are forgotten, with their files; the newest, the living, and those that a
    command still waits with are not."""
    limit = s.keys["tombstones"]
    alive = new_id()
    s.ok("start", alive, 1)
    with kill_that_waits(s) as (waited, kill):
        ids = [new_id() for _ in range(limit + 20)]
        for i in ids:
            s.ok("kill", i, 1)
        held = s.dir / "state/sandboxes"
        wait_for(lambda: f"at most {limit} are remembered, but {len(list(held.iterdir()))}",
                 lambda: len(list(held.iterdir())) <= limit + 2, 60)
        assert s.state(waited) or kill.done(), "forgotten under a command"
    assert s.state(ids[-1]) == "KILLED" and not (held / ids[0]).exists(), "the wrong ones were forgotten"
    s.refused("stale_generation", "start", ids[-1], 1)
    assert s.sh(alive, 1, "hostname") == alive
    s.ok("kill", alive, 1)
    nothing_left(s)


TESTS = [receipt_states_every_fact, sockets_have_the_contract_modes, generations_only_grow,
         a_kill_of_an_older_generation_stays_one, a_kill_in_the_middle_of_a_start_leaves_nothing, wrong_commands_leave_nothing,
         pauses_keep_everything, filesystem_pause_boots_again, snapshots_fork, damage_is_refused, a_master_names_the_pause,
         a_rollback_to_nothing_changes_nothing, what_a_pause_writes_is_not_deleted, another_class_is_refused, guest_ends_by_itself, a_directory_that_is_used_again_is_empty,
         node_dies_and_comes_back, commands_wait_until_sandboxes_are_taken_over, a_stop_before_all_is_taken_over,
         a_vm_that_died_meanwhile_is_lost, a_stop_leaves_sandboxes, the_deadline_is_kept_without_a_master, logs_and_metrics, many_at_once, the_remembered_are_bounded]

if __name__ == "__main__":
    chosen = [t for t in TESTS if not sys.argv[1:] or t.__name__ in sys.argv[1:]]
    sys.exit(run(chosen, lambda: Stack("node", deadline_grace_ms="1s", master_grace_ms="1s", tombstones=200)))
