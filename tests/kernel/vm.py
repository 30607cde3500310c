"""Drives cube-vmm for the kernel tests: boot, run commands in the guest, snapshot, restore.

Speaks the node's side of proto/vmm.proto with a hand-written encoder, so that it also runs where only python3 is (the
emulated machine of tests/svm). Paths are given by the caller; every file it makes is below the directory of the Vm.
"""
import array
import fcntl
import os
import select
import shutil
import socket
import struct
import subprocess
import time

MAC = bytes((0x02, 0, 0, 0, 0, 0x15))
PATIENCE = 120  # seconds for a command in the guest: a guard against a hang
AGENT_CMDLINE = "root=/dev/vdb rootfstype=erofs ro init=/agent"


class VmError(Exception):
    pass


class Patience:
    """How long to wait for a guest: seconds in which this process could run. A test that was stopped (or a laptop that slept) loses a second, not its turn."""

    def __init__(self, seconds):
        self.left = seconds

    def wait(self, s):
        """Until `s` can be read: False when the patience is at its end."""
        while self.left > 0:
            start, step = time.monotonic(), min(1, self.left)
            readable = select.select([s], [], [], step)[0]
            self.left -= min(step, time.monotonic() - start)
            if readable:
                return True
        return False


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def message(*fields):
    """Protobuf bytes of (number, value): int and bool as varint, str and bytes length-delimited; zero is left out."""
    out = b""
    for number, value in fields:
        if isinstance(value, (bool, int)):
            if value:
                out += varint(number << 3) + varint(int(value))
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def parse(data):
    """The fields of a message: {number: last value}; nested messages stay bytes."""
    fields, i = {}, 0

    def number():
        nonlocal i
        value = shift = 0
        while True:
            byte = data[i]
            i += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while i < len(data):
        key = number()
        if key & 7 == 0:
            fields[key >> 3] = number()
        elif key & 7 == 2:
            n = number()
            fields[key >> 3] = data[i:i + n]
            i += n
        else:
            raise VmError("unexpected wire type %d" % (key & 7))
    return fields


class Vm:
    """One cube-vmm process and its guest. `dir` keeps sockets, console and layer."""

    def __init__(self, vmm, dir, memory=512, vcpus=1):
        self.dir, self.memory, self.vcpus = dir, memory, vcpus
        os.makedirs(dir, exist_ok=True)
        control = os.path.join(dir, "control")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._forget(control)
        listener.bind(control)
        listener.listen(4)
        kvm = os.open("/dev/kvm", os.O_RDWR)
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        self.log = open(os.path.join(dir, "vmm.log"), "ab")
        fds = (listener.fileno(), kvm, proc)
        high = [os.dup(fd) for fd in fds]

        def inherit():
            # Two steps, so that no target overwrites a source that is still needed.
            moved = [os.dup2(fd, 20 + i) for i, fd in enumerate(high)]
            for i, fd in enumerate(moved):
                os.dup2(fd, 3 + i)

        self.process = subprocess.Popen([vmm, "--memory-mib", str(memory), "--vcpus", str(vcpus)], close_fds=False,
                                        preexec_fn=inherit, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        for fd in high + [kvm, proc]:
            os.close(fd)
        listener.close()
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.connect(control)
        self.next_id = 0
        self.exit = None
        self.facts = parse(self._request(2, message((1, 1)))[4])

    @staticmethod
    def _forget(path):
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def _listen(self, name):
        path = os.path.join(self.dir, name)
        self._forget(path)
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.bind(path)
        s.listen(64)
        return s

    def _request(self, op, body, files=(), timeout=120):
        self.next_id += 1
        data = message((1, self.next_id), (op, body))
        fds = array.array("i", [f.fileno() for f in files])
        self.control.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if files else [])
        patience = Patience(timeout)
        while True:
            if not patience.wait(self.control):
                raise VmError("no answer from cube-vmm to request %d in %d s" % (op, timeout))
            data = self.control.recv(65536)
            if not data:
                raise VmError("cube-vmm ended: %s; %s" % (self.exit, self.console()[-2000:]))
            reply = parse(data)
            if 8 in reply and not reply.get(1):
                self.exit = parse(reply[8])
                continue
            if reply.get(1) == self.next_id:
                if reply.get(2):
                    raise VmError("%s: %s" % (reply[2].decode(), reply.get(3, b"").decode()))
                return reply

    def _open_layer(self, n):
        # Not append mode: the VMM writes at offsets.
        return os.fdopen(os.open(os.path.join(self.dir, "layer%d" % n), os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)

    def _wiring(self, disks, files, net):
        """disks: [(base path, read_only)], net: open TAP or None; appends to files and returns the message."""
        def add(f):
            files.append(f)
            return len(files) - 1

        fields = [(1, "itest"), (2, 1)]
        for n, (base, read_only) in enumerate(disks):
            f = open(base, "rb")
            disk = [(1, add(f)), (2, read_only), (4, os.fstat(f.fileno()).st_size), (7, "disk%d" % n)]
            if not read_only:
                disk.append((3, add(self._open_layer(n))))
            fields.append((3, message(*disk)))
        if net:
            fields.append((4, message((1, add(os.fdopen(os.dup(net.fileno()), "r+b", buffering=0))), (2, MAC), (3, True))))
        for number, name in ((5, "ctl"), (6, "in")):
            fields.append((number, add(self._listen(name))))
        fields.append((7, add(open(os.path.join(self.dir, "console"), "ab"))))
        fields += [(8, self.vcpus), (9, self.memory)]
        return message(*fields)

    def kind(self):
        """pvm or hardware."""
        return self.facts.get(6, b"").decode()

    def boot(self, kernel, disks, cmdline=AGENT_CMDLINE, net=None):
        self.disks = disks
        files = []
        wiring = self._wiring(disks, files, net)
        files.append(open(kernel, "rb"))
        self._request(3, message((1, wiring), (2, len(files) - 1), (3, cmdline)), files)
        for f in files:
            f.close()

    def snapshot(self, out, resume=False):
        """Full snapshot into the directory `out`, with the layers as they are at that moment. Freezes unless resume."""
        os.makedirs(out, exist_ok=True)
        files = [open(os.path.join(out, name), "w+b") for name in ("state", "memory")]
        reply = self._request(5, message((1, 0), (2, 1), (3, False), (4, False)), files)
        for f in files:
            f.close()
        for n, (_, read_only) in enumerate(self.disks):
            if not read_only:
                subprocess.run(["cp", "--sparse=always", os.path.join(self.dir, "layer%d" % n), out], check=True)
        if resume:
            self._request(9, b"")
        return parse(reply.get(6, b""))

    def restore(self, snap, disks, net=None):
        self.disks = disks
        for n, (_, read_only) in enumerate(disks):
            if not read_only:
                subprocess.run(["cp", "--sparse=always", os.path.join(snap, "layer%d" % n), self.dir], check=True)
        files = []
        wiring = self._wiring(disks, files, net)
        for name in ("state", "memory"):
            files.append(open(os.path.join(snap, name), "rb"))
        reply = self._request(4, message((1, wiring), (2, len(files) - 2), (3, len(files) - 1)), files)
        for f in files:
            f.close()
        return parse(reply.get(5, b""))

    def grow(self, disk, size):
        """Makes a disk longer under the running guest."""
        self._request(11, message((1, disk), (2, size)))

    def connect(self, timeout=60):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.settimeout(timeout)
        s.connect(os.path.join(self.dir, "ctl"))
        return s

    def run(self, command, timeout=None):
        """Runs a shell command in the guest: (status, output)."""
        timeout = timeout or PATIENCE
        patience = Patience(timeout)
        s = self.connect(timeout)
        data = command.encode()
        s.sendall(struct.pack("<I", len(data)) + data)
        out = b""

        def read(n):
            got = b""
            while len(got) < n:
                if not patience.wait(s):
                    raise VmError("%r took longer than %d s; output so far: %s" % (command, timeout, out[-2000:].decode(errors="replace")))
                part = s.recv(n - len(got))
                if not part:
                    raise VmError("the guest closed the connection of %r; %s" % (command, self.console()[-2000:]))
                got += part
            return got

        try:
            while True:
                kind, length = struct.unpack("<BI", read(5))
                body = read(length)
                if kind == 2:
                    return struct.unpack("<i", body)[0], out.decode(errors="replace")
                out += body
        finally:
            s.close()

    def check(self, command, timeout=None):
        status, out = self.run(command, timeout)
        if status:
            raise VmError("%r ended with %d: %s" % (command, status, out[-2000:]))
        return out

    def vcpu_times(self):
        """Seconds that the vCPU threads together have run, and waited for a processor of the host while they could have."""
        ran = waited = 0
        tasks = "/proc/%d/task" % self.process.pid
        for task in os.listdir(tasks):
            try:
                with open(os.path.join(tasks, task, "comm")) as name, open(os.path.join(tasks, task, "schedstat")) as times:
                    if name.read().startswith("vcpu"):
                        on, queued = times.read().split()[:2]
                        ran, waited = ran + int(on), waited + int(queued)
            except FileNotFoundError:
                continue
        return ran / 1e9, waited / 1e9

    def vcpu_sleeps(self):
        """How often the vCPU threads have gone to sleep: once per interrupt of an idle guest."""
        count, tasks = 0, "/proc/%d/task" % self.process.pid
        for task in os.listdir(tasks):
            with open(os.path.join(tasks, task, "status")) as f:
                text = f.read()
            if text.startswith("Name:\tvcpu"):
                count += int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0])
        return count

    def vmm_log(self):
        with open(os.path.join(self.dir, "vmm.log"), "rb") as f:
            return f.read().decode(errors="replace")

    def console(self):
        try:
            with open(os.path.join(self.dir, "console"), "rb") as f:
                return f.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.control.close()
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


def tap(name, address):
    """A TAP device with an address (CIDR) on this side, or None where there is no tun driver."""
    try:
        f = open("/dev/net/tun", "r+b", buffering=0)
    except OSError:
        return None
    flags = 0x0002 | 0x1000 | 0x4000  # IFF_TAP, IFF_NO_PI, IFF_VNET_HDR
    fcntl.ioctl(f, 0x400454CA, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(f, 0x400454D8, struct.pack("i", 12))  # TUNSETVNETHDRSZ
    subprocess.run("ip addr add %s dev %s && ip link set %s up" % (address, name, name), shell=True, check=True)
    return f


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def fake_tsc(snap, factor):
    """Rewrites the state file of a snapshot (node/vmm/state.h) as if a host with another TSC frequency had made it."""
    path = os.path.join(snap, "state")
    with open(path, "r+b") as f:
        header = bytearray(f.read(88))
        khz = struct.unpack_from("<I", header, 28)[0]
        struct.pack_into("<I", header, 28, int(khz * factor))
        struct.pack_into("<I", header, 84, crc32c(header[:84]))
        f.seek(0)
        f.write(header)


def remove(path):
    shutil.rmtree(path, ignore_errors=True)
