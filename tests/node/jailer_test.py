#!/usr/bin/env python3
"""cube-jailer alone, asked over its socket as cube-node does: what a restart of it keeps, and what a request that fails leaves."""
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "guest"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
import hang  # noqa: E402
from ctl import field, parse  # noqa: E402

BUILD = pathlib.Path(os.environ.get("CUBE_BUILD_DIR", "build"))
NODE_UID = 59002


class Jailer:
    def __init__(self, limit=None, group=None):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="N-jailer-", dir="/tmp"))
        os.chmod(self.dir, 0o755)
        (self.dir / "run").mkdir()
        (self.dir / "cube.yaml").write_text(f"common:\n  run_dir: {self.dir}/run\n  state_dir: {self.dir}/state\n"
                                            f"jailer:\n  cgroup: {self.dir.name}\n")
        self.args = [BUILD / "node/jailer/cube-jailer", "--config", self.dir / "cube.yaml"]
        self.limit, self.group = limit, group
        self.start()

    def start(self):
        path = self.dir / "run/jailer.sock"
        path.unlink(missing_ok=True)
        log = open(self.dir / "log", "ab")
        self.process = subprocess.Popen(self.args, stdout=log, stderr=log, preexec_fn=self.prepare)
        end = time.monotonic() + 60
        while True:
            assert self.process.poll() is None, (self.dir / "log").read_text()
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                self.socket.connect(str(path))
                break
            except OSError:
                assert time.monotonic() < end, "the jailer does not listen"
                time.sleep(0.01)
        self.ask(2, field(1, 1))

    def prepare(self):
        if self.limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, self.limit)
        if self.group:
            (self.group / "cgroup.procs").write_text("0")

    def ask(self, operation, body):
        """Sends a request, returns the fields of its reply."""
        self.socket.send(field(1, 1) + field(operation, body))
        while True:
            data, fds, _, _ = socket.recv_fds(self.socket, 1 << 20, 4)
            assert data, "the jailer hung up: " + (self.dir / "log").read_text()[-500:]
            for fd in fds:
                os.close(fd)
            reply = {number: values[-1] for number, values in parse(data).items()}
            if reply.get(1) == 1:  # the rest are events
                return reply

    def restart(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.socket.close()
        self.start()

    def down(self):
        self.process.terminate()
        self.process.wait()
        subprocess.run([*self.args, "--sweep"], capture_output=True, preexec_fn=self.prepare)
        shutil.rmtree(self.dir, ignore_errors=True)


def the_nodes_pins_stay_the_nodes_over_a_restart():
    j = Jailer()
    try:
        for _ in range(2):
            st = (j.dir / "run/bpf").stat()
            assert (st.st_uid, st.st_gid, st.st_mode & 0o777) == (NODE_UID, NODE_UID, 0o700), (st.st_uid, st.st_gid, oct(st.st_mode))
            j.restart()
    finally:
        j.down()


def an_interface_of_another_is_never_ours():
    name = "jt" + os.urandom(3).hex()
    subprocess.run(["ip", "link", "add", name, "type", "veth", "peer", "name", name + "p"], check=True)
    j = Jailer()
    try:
        assert 2 in j.ask(6, field(1, name.encode())), "a TAP with the name of another interface was made"
        assert j.ask(7, field(1, name.encode())).get(2) == b"not_found"
        assert os.path.exists(f"/sys/class/net/{name}"), "the jailer removed an interface that it did not make"
    finally:
        subprocess.run(["ip", "link", "del", name], stderr=subprocess.DEVNULL)
        j.down()


def it_takes_the_descriptors_that_its_vms_need():
    """Shells and units give 1,024, and two per VM are held. Without CAP_SYS_RESOURCE the hard limit is what there is."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    j = Jailer(limit=(256, hard))
    try:
        now, most = resource.prlimit(j.process.pid, resource.RLIMIT_NOFILE)
        assert now >= 2 * 4096 or now == most > 256, (now, most)
    finally:
        j.down()


def a_group_above_may_allow_less_than_a_vm_asks_for():
    """As in a container with half a processor: cgroup v1 refuses a larger limit below it (v2 applies the least by itself)."""
    own = re.search(r"^\d+:(?:.*,)?cpu(?:,.*)?:/(.*)$", pathlib.Path("/proc/self/cgroup").read_text(), re.M)
    mount = re.search(r"^\S+ (\S+) cgroup \S*\bcpu\b", pathlib.Path("/proc/mounts").read_text(), re.M)
    if not own or not mount:
        return
    group = pathlib.Path(mount[1]) / own[1] / f"jt{os.urandom(3).hex()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_quota_us").write_text("50000")
        j = Jailer(group=group)
        try:
            for operation, limits in ((3, field(2, 1000)), (9, field(2, 300)), (9, field(2, 2000))):
                got = j.ask(operation, field(1, b"vm-1") + field(2, field(1, 256 << 20) + limits + field(3, 32)))
                assert 2 not in got, got
                quota = (group / j.dir.name / "vm-1/cpu.cfs_quota_us").read_text()
                assert quota == ("30000\n" if limits == field(2, 300) else "-1\n"), quota
        finally:
            j.down()
    finally:
        group.rmdir()


def main():
    if os.geteuid() != 0:
        print("SKIP jailer_test.py: root is needed")
        return 0
    failed = 0
    for test in (the_nodes_pins_stay_the_nodes_over_a_restart, an_interface_of_another_is_never_ours,
                 it_takes_the_descriptors_that_its_vms_need, a_group_above_may_allow_less_than_a_vm_asks_for):
        try:
            with hang.limit():
                test()
            print(f"PASS {test.__name__}", flush=True)
        except (AssertionError, hang.Hang, OSError, subprocess.SubprocessError) as e:
            failed = 1
            at = traceback.extract_tb(e.__traceback__)[-1]
            print(f"FAIL {test.__name__}: {type(e).__name__}: {e} at {at.lineno}: {at.line}".replace("\n", " ")[:700], flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
