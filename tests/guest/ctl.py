"""The control connection of a guest (proto/init.proto) for tests: a few lines of protobuf by hand, so that no package is needed."""
import socket
import struct
import time


def varint(v):
    out = b""
    while v >= 0x80:
        out += bytes([v & 0x7F | 0x80])
        v >>= 7
    return out + bytes([v])


def field(num, value):
    """bytes/str/dict-less: ints become varints, bytes and str length-delimited."""
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, int):
        return varint(num << 3) + varint(value)
    if isinstance(value, str):
        value = value.encode()
    return varint(num << 3 | 2) + varint(len(value)) + value


def parse(data):
    """{field number: [values]}; varints as int, length-delimited as bytes."""
    out, i = {}, 0

    def read():
        nonlocal i
        v = shift = 0
        while True:
            b = data[i]
            i += 1
            v |= (b & 0x7F) << shift
            shift += 7
            if not b & 0x80:
                return v

    while i < len(data):
        key = read()
        if key & 7 == 0:
            value = read()
        else:
            n = read()
            value = data[i:i + n]
            i += n
        out.setdefault(key >> 3, []).append(value)
    return out


def identity(sandbox="itest", gen=1, token="", envs=None, user="", workdir="", thaw=True, network=True, random=b"r" * 64, ca=""):
    body = field(1, sandbox) + field(2, "base") + field(3, gen) + field(4, time.time_ns()) + field(5, random)
    body += field(6, sandbox) + field(7, bytes(range(16)))
    if token:
        body += field(8, token)
    for k, v in (envs or {}).items():
        body += field(9, field(1, k) + field(2, v))
    body += field(10, True)
    if user:
        body += field(11, user)
    if workdir:
        body += field(12, workdir)
    if network:
        body += field(13, field(1, "169.254.0.21/30") + field(2, "169.254.0.22") + field(3, "169.254.0.22") + field(4, 1450))
    if ca:
        body += field(15, ca)
    return body + field(16, thaw)


class Control:
    def __init__(self, path, timeout=30):
        deadline = time.time() + timeout
        while True:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(timeout)
            try:
                self.sock.connect(path)
                break
            except OSError:
                if time.time() > deadline:
                    raise
                time.sleep(0.01)
        self.next = 0
        self.events = []

    def send(self, op, body=b""):
        self.next += 1
        msg = field(1, self.next) + field(op, body)
        self.sock.sendall(struct.pack(">I", len(msg)) + msg)
        return self.next

    def recv(self):
        def exactly(n):
            out = b""
            while len(out) < n:
                part = self.sock.recv(n - len(out))
                if not part:
                    raise EOFError("control connection closed")
                out += part
            return out
        return parse(exactly(struct.unpack(">I", exactly(4))[0]))

    def call(self, op, body=b""):
        """One request, its one reply (events that come between are kept). Raises on an error reply."""
        want = self.send(op, body)
        while True:
            reply = self.recv()
            if reply.get(1, [0])[0] != want:
                self.events.append(reply)
                continue
            if 2 in reply:
                raise RuntimeError(f"{reply[2][0].decode()}: {reply[3][0].decode()} {reply}")
            return reply

    def hello(self):
        return parse(self.call(2, field(1, 1))[4][0])

    def set_identity(self, **kw):
        return parse(self.call(3, identity(**kw))[5][0])

    def freeze(self, sync=True):
        return self.call(4, field(1, sync))

    def thaw(self):
        return self.call(5)

    def health(self):
        return parse(self.call(6)[6][0])

    def metrics(self):
        return parse(self.call(7)[7][0])

    def subscribe(self):
        return self.call(8)

    def exec(self, argv, user="root", cwd="", envs=None, timeout_ms=30000, stdin=None):
        body = field(1, user) + b"".join(field(2, a) for a in argv)
        body += b"".join(field(3, field(1, k) + field(2, v)) for k, v in (envs or {}).items())
        want = self.send(9, body + field(4, cwd) + field(5, timeout_ms))
        if stdin is not None:
            self.send(11, field(1, want) + field(2, stdin) + field(3, True))
        out = err = b""
        while True:
            reply = self.recv()
            if reply.get(1, [0])[0] != want:
                continue
            if 2 in reply:
                raise RuntimeError(reply[3][0].decode())
            event = parse(reply[9][0])
            out += event.get(1, [b""])[0]
            err += event.get(2, [b""])[0]
            if 3 in event:
                return event.get(4, [0])[0], event.get(5, [0])[0], out, err
