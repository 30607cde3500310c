"""A service as a user would run in a sandbox: HTTP/1.1 on plain sockets, one thread per connection, exact about every byte. What it saw is in
`seen` (a list of dicts), so that a test can ask whether an abort has arrived."""
import base64
import hashlib
import socket
import threading
import time

BLOCK = hashlib.sha512(b"cube").digest() * 1024  # 64 KiB


def pattern(n):
    whole, rest = divmod(n, len(BLOCK))
    for _ in range(whole):
        yield BLOCK
    if rest:
        yield BLOCK[:rest]


def pattern_sha(n):
    h = hashlib.sha256()
    for b in pattern(n):
        h.update(b)
    return h.hexdigest()


class Gone(Exception):
    pass


class Conn:
    def __init__(self, sock):
        self.s, self.buf = sock, b""

    def recv(self, n=65536):
        if self.buf:
            b, self.buf = self.buf[:n], self.buf[n:]
            return b
        return self.s.recv(n)

    def line(self):
        while b"\n" not in self.buf:
            b = self.s.recv(65536)
            if not b:
                raise Gone
            self.buf += b
        l, self.buf = self.buf.split(b"\n", 1)
        return l.rstrip(b"\r").decode("latin1")

    def exactly(self, n):
        while n:
            b = self.recv(min(n, 65536))
            if not b:
                raise Gone
            n -= len(b)
            yield b

    def send(self, b):
        self.s.sendall(b)


class Request:
    def __init__(self, c):
        self.c = c
        first = c.line()
        if not first:
            raise Gone
        self.method, self.target, _ = first.split(" ")
        self.headers = {}
        while True:
            l = c.line()
            if not l:
                break
            k, v = l.split(":", 1)
            self.headers[k.lower()] = v.strip()
        path, _, query = self.target.partition("?")
        self.path, self.query = path, dict(kv.split("=", 1) for kv in query.split("&") if kv)
        self.trailers = {}

    def body(self):
        if self.headers.get("transfer-encoding") == "chunked":
            while True:
                n = int(self.c.line().split(";")[0], 16)
                if n == 0:
                    while True:
                        l = self.c.line()
                        if not l:
                            return
                        k, v = l.split(":", 1)
                        self.trailers[k.lower()] = v.strip()
                for b in self.c.exactly(n):
                    yield b
                self.c.line()
        else:
            yield from self.c.exactly(int(self.headers.get("content-length", 0)))


class Service:
    def __init__(self):
        self.seen = []
        self.connections = 0
        self.l = socket.socket()
        self.l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.l.bind(("127.0.0.1", 0))
        self.l.listen(512)
        self.port = self.l.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            s, _ = self.l.accept()
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            threading.Thread(target=self.serve, args=(Conn(s),), daemon=True).start()

    def saw(self, **what):
        self.seen.append(what)

    def last(self, path):
        for s in reversed(self.seen):
            if s["path"] == path:
                return s
        return None

    def serve(self, c):
        try:
            while True:
                r = Request(c)
                rec = {"path": r.path, "headers": r.headers, "target": r.target, "end": None, "method": r.method}
                self.seen.append(rec)
                try:
                    keep = getattr(self, "do_" + r.path.strip("/").split("/")[0].replace("-", "_"), self.do_other)(c, r, rec)
                    rec["end"] = "done"
                except (Gone, OSError) as e:
                    rec["end"] = "gone"
                    raise
                if keep is False:
                    c.s.close()
                    return
        except (Gone, OSError, ValueError):
            c.s.close()

    def reply(self, c, body, status="200 OK", headers=""):
        c.send(("HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n" % (status, len(body), headers)).encode() + body)

    def do_other(self, c, r, rec):
        for _ in r.body():
            pass
        self.reply(c, ("%s %s\n" % (r.method, r.target)).encode(), headers="X-Seen-Host: %s\r\nX-Seen-Cookie: %s\r\n" % (r.headers.get("host", ""), r.headers.get("cookie", "")))

    def do_upload(self, c, r, rec):
        h, n = hashlib.sha256(), 0
        slow = float(r.query.get("slow", 0))
        for b in r.body():
            h.update(b)
            n += len(b)
            rec["bytes"] = n
            if slow:
                time.sleep(slow)
        rec["trailers"] = r.trailers
        self.reply(c, ("%d %s %s" % (n, h.hexdigest(), r.trailers.get("x-sum", ""))).encode())

    def do_download(self, c, r, rec):
        n = int(r.query["n"])
        kind = r.query.get("kind", "length")
        if kind == "length":
            c.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % n)
        elif kind == "chunked":
            c.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n")
        else:
            c.send(b"HTTP/1.1 200 OK\r\n\r\n")
        sent = 0
        for b in pattern(n):
            c.send(b"%x;ext=1\r\n%s\r\n" % (len(b), b) if kind == "chunked" else b)
            sent += len(b)
            rec["sent"] = sent
        if kind == "chunked":
            c.send(b"0\r\nx-sum: %s\r\n\r\n" % pattern_sha(n).encode())
        return kind != "close"

    def do_truncate(self, c, r, rec):
        c.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
        return False

    def do_truncate_chunked(self, c, r, rec):
        c.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        return False

    def do_hangup(self, c, r, rec):
        return False

    def do_garbage(self, c, r, rec):
        c.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx")
        return False

    def do_sse(self, c, r, rec):
        c.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        n = int(r.query.get("n", 1000000))
        for i in range(n):
            e = b"data: %d\n\n" % i
            c.send(b"%x\r\n%s\r\n" % (len(e), e))
            rec["sent"] = i
            time.sleep(0.02)
        c.send(b"0\r\n\r\n")

    def do_quiet(self, c, r, rec):
        """Answers nothing and waits for the client to leave."""
        if not c.recv(1):
            raise Gone

    def do_duplex(self, c, r, rec):
        """Each piece of the request comes back at once."""
        c.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\n\r\n")
        for b in r.body():
            c.send(b"%x\r\n%s\r\n" % (len(b), b))
        c.send(b"0\r\n\r\n")

    def do_expect(self, c, r, rec):
        rec["expect"] = r.headers.get("expect")
        if r.query.get("refuse"):
            self.reply(c, b"no", "417 Expectation Failed")
            return False
        c.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        return self.do_upload(c, r, rec)

    def do_early(self, c, r, rec):
        self.reply(c, b"too much", "413 Payload Too Large", "Connection: close\r\n")
        return False

    def do_code(self, c, r, rec):
        """Any status with a length of 5 and, where a body may follow, a body of 5."""
        for _ in r.body():
            pass
        n = int(r.query["n"])
        body = b"" if r.method == "HEAD" or n in (204, 304) else b"12345"
        c.send(b"HTTP/1.1 %d Some Word\r\nETag: \"e\"\r\nContent-Length: 5\r\n\r\n%s" % (n, body))

    def do_full(self, c, r, rec):
        """Takes a little of the body, refuses the rest and hangs up: what it has not read makes that a reset."""
        c.recv(100)
        self.reply(c, b"too much", "413 Payload Too Large", "Connection: close\r\n")
        return False

    def do_block(self, c, r, rec):
        self.reply(c, bytes(int(r.query["n"])))  # head and body in one piece

    def do_ws(self, c, r, rec):
        key = r.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        c.send(("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n" % accept).encode())
        while True:  # raw echo of frames; half-close is answered with a last word
            b = c.recv()
            if not b:
                c.send(b"BYE")
                return False
            c.send(b)
