"""A hostile client: smuggling past one parser into another, HTTP/2 downgrades, heads that never end, windows that never open, floods that nobody reads, TLS garbage.
After each attack the proxy serves others as before."""
import os
import random
import socket
import ssl
import struct
import sys
import threading
import time

from check import check, equal, run, test
from cluster import Cluster, wait_for
from service import Service
from test_http1 import SANITIZED, Raw, by, get

HEAD_TIMEOUT = 2
DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
MiB = 1 << 20


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def fields(*pairs):
    """A header block without compression or index."""
    def text(b):
        n = len(b)
        if n < 127:
            return bytes([n]) + b
        out, n = bytes([127]), n - 127
        while n >= 128:
            out, n = out + bytes([n % 128 + 128]), n // 128
        return out + bytes([n]) + b
    return b"".join(b"\0" + text(k if isinstance(k, bytes) else k.encode()) + text(v if isinstance(v, bytes) else v.encode()) for k, v in pairs)


class H2:
    """Raw frames over plaintext with prior knowledge."""

    def __init__(self, c, settings=b""):
        self.s = socket.create_connection(("127.0.0.1", c.port), 30)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.f = self.s.makefile("rb")
        self.s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, settings))

    def send(self, *frames):
        self.s.sendall(b"".join(frames))
        return self

    def read(self):
        """(type, flags, stream, payload), or None at the end."""
        try:
            head = self.f.read(9)
            if len(head) < 9:
                return None
            n = struct.unpack(">I", b"\0" + head[:3])[0]
            payload = self.f.read(n)
        except ConnectionResetError:
            return None
        return head[3], head[4], struct.unpack(">I", head[5:])[0], payload

    def outcome(self, stream):
        """"reset", "closed", or the status of the answer (its head is not compressed beyond the static table's :status)."""
        status = None
        while True:
            got = self.read()
            if got is None or got[0] == GOAWAY:
                return status or "closed"
            if got[2] != stream:
                continue
            if got[0] == RST:
                return status or "reset"
            if got[0] == HEADERS:
                first = got[3][0]
                status = {0x88: 200, 0x89: 204, 0x8c: 400, 0x8d: 404, 0x8e: 500}.get(first, "other")
            if got[1] & END_STREAM and got[0] in (HEADERS, DATA):
                return status

    def close(self):
        self.f.close()
        self.s.close()


def request(sb, path="/", method="GET", *more, port=8000):
    return fields((":method", method), (":scheme", "http"), (":path", path), (":authority", "%d-%s.cube.test" % (port, sb)), *more)


def alive(c, sb):
    equal(get(c, "/well", by(sb))[0], 200, "others are served")


@test
def hop_by_hop_names_cannot_take_the_framing_away(c, sb, svc):
    body = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    for name in ("Content-Length", "content-length, close", "Host", "Transfer-Encoding"):
        svc.seen.clear()
        k = Raw(c).send(b"POST /upload HTTP/1.1\r\n%sConnection: %s\r\nContent-Length: %d\r\n\r\n%s" % (by(sb).encode(), name.encode(), len(body), body))
        status, _, answer = k.answer()
        equal((status, answer.split()[0]), (200, b"%d" % len(body)), name)
        equal([s["path"] for s in svc.seen], ["/upload"], "requests at the service with Connection: " + name)
        check(svc.seen[0]["headers"]["host"].startswith("8000-" + sb), "the host is there")


@test
def an_early_answer_is_no_reset_unless_the_upload_goes_on(c, sb, svc):
    """grpc-js takes a reset right behind an answer for the answer: "Call ended without gRPC status"."""
    gone = "i" + "0" * len(sb[1:])
    for kind in ("application/grpc", "application/json"):
        k = H2(c).send(frame(HEADERS, END_HEADERS, 1, request(gone, "/t.T/Echo", "POST", ("content-type", kind), ("te", "trailers"))))
        check(k.outcome(1) not in ("reset", "closed"), "no answer to " + kind)
        k.send(frame(PING, 0, 0, b"12345678"))
        while True:
            got = k.read()
            check(got is not None and got[0] != RST, "a reset behind the answer to " + kind)
            if got[0] == PING:
                break
        for _ in range(5):
            k.send(frame(DATA, 0, 1, bytes(16384)))
        while True:
            got = k.read()
            check(got is not None, "the connection was closed")
            if got[0] == RST:
                equal(got[3], bytes(4), "code of the reset of an endless upload")
                break
        k.close()


@test
def odd_framing_is_refused(c, sb, svc):
    svc.seen.clear()
    for lines in ["Content-Length: +5", "Content-Length: 0x5", "Content-Length: 5 5", "Content-Length: 5,5", "Content-Length:", "Content-Length: -1", "Content-Length: 99999999999999999999",
                  "Content-Length: 5\r\nContent-length: 6", "Transfer-Encoding: chunked, identity", "Transfer-Encoding: identity, chunked", "Transfer-Encoding: gzip, chunked",
                  "Transfer-Encoding: \x0bchunked", "Transfer-Encoding: \"chunked\"", "Transfer_Encoding : chunked", "Transfer-Encoding\t: chunked", " Transfer-Encoding: chunked",
                  "X: 1\r\n\tTransfer-Encoding: chunked", "Content-Length: 5\r\nTransfer-Encoding: chunked", "X\x00Y: 1", "X\x7f: 1", ": 1", "X: a\x00b", "X: a\rTransfer-Encoding: chunked",
                  "X: a\nTransfer-Encoding: chunked"]:
        k = Raw(c).send("POST /odd HTTP/1.1\r\n%s%s\r\n\r\n0\r\n\r\n" % (by(sb), lines))
        status, headers, _ = k.answer()
        equal((status, headers.get("connection")), (400, "close"), lines)
        check(k.ended(), "still open after " + lines)
    for line in ["GET / HTTP/1.2", "GET / HTTP/2.0", "GET /", "GET  / HTTP/1.1", "GET / HTTP/1.1 ", "GET\t/ HTTP/1.1", "G\x00T / HTTP/1.1", "GET /\x00 HTTP/1.1", "GET /a b HTTP/1.1", "GET a HTTP/1.1",
                 "GET http:///x HTTP/1.1", "GET ftp://x/ HTTP/1.1", "GET /#f HTTP/1.1"]:
        k = Raw(c).send("%s\r\n%s\r\n" % (line, by(sb)))
        equal(k.answer()[0], 400, line)
    equal(svc.seen, [], "requests at the service")
    alive(c, sb)


class Trailing:
    """A service that answers with chunks and the trailers it is told."""

    def __init__(self):
        self.listener, self.trailers = socket.create_server(("127.0.0.1", 0)), b""
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            s = self.listener.accept()[0]
            s.recv(65536)
            s.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n" + self.trailers + b"\r\n\r\n")
            s.close()


BAD_TRAILERS = ["no colon", "GET /smuggled HTTP/1.1", "X : 1", ": 1", "X(: 1", "X: a\x00b", "X: a\rb", "X: 1\r\n folded", "ok: 1\r\nContent-Length: 5", "Transfer-Encoding: chunked", "Host: localhost",
                "Connection: close", "TE: trailers", "Upgrade: h2c", "Trailer: x", "Expect: 100-continue", "X-Forwarded-For: 127.0.0.1", "E2b-Sandbox-Id: x", "x: 1\r\n" * 100 + "x: 1", "x: " + "x" * 8192]


@test
def trailers_are_as_strict_as_heads_in_both_directions(c, sb, svc):
    svc.seen.clear()
    for bad in BAD_TRAILERS:
        k = Raw(c).send("POST /upload HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n\r\n" % by(sb))
        status, headers, body = k.send(b"3\r\nabc\r\n0\r\n%s\r\n\r\n" % bad.encode()).answer()
        equal((status, headers.get("connection"), body), (400, "close", b"Invalid chunked body"), bad[:40])
        check(k.ended(), "still open after " + bad[:40])
    wait_for(lambda: all(s.get("end") for s in svc.seen), why="the ends at the service")
    check(not any(s["end"] == "done" for s in svc.seen), "a service took such a request for whole")
    status, _, body = Raw(c).send("POST /upload HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: good\r\nHosts:\r\n\r\n" % by(sb)).answer()
    equal((status, body.split()[-1]), (200, b"good"))
    # Over HTTP/2, where nghttp2 itself refuses some of them.
    for bad, want in [(("host", "localhost"), 400), (("content-length", "5"), "reset"), (("trailer", "x"), 400), (("x-forwarded-for", "127.0.0.1"), 400), (("e2b-sandbox-id", "x"), 400),
                      (("connection", "close"), "reset"), ((":path", "/x"), "reset"), (("x", "a\0b"), "reset"), (("x", "x" * 16000), "other")]:
        svc.seen.clear()
        many = [bad] * (3 if want == "other" else 1)
        blocks = [fields(t) for t in many]
        k = H2(c).send(frame(HEADERS, END_HEADERS, 1, request(sb, "/upload", "POST")), frame(DATA, 0, 1, b"abc"), frame(HEADERS, END_STREAM | (END_HEADERS if len(many) == 1 else 0), 1, blocks[0]),
                       *[frame(CONTINUATION, END_HEADERS if i == len(blocks) - 1 else 0, 1, b) for i, b in enumerate(blocks) if i])
        got = k.outcome(1)
        check(got in (want, "closed") if want == "reset" else got == want, "trailer %s over HTTP/2 gave %s" % (bad[0], got))
        k.close()
        wait_for(lambda: all(s.get("end") for s in svc.seen), why="the ends at the service")
        check(not any(s["end"] == "done" for s in svc.seen), "a service took a request with the trailer %s for whole" % bad[0])
    # From a service: its answer does not end as if it were whole.
    t = Trailing()
    sb2, vm = c.sandbox({8000: t.port})
    for bad in BAD_TRAILERS + ["X-Sum: good"]:
        t.trailers = bad.encode()
        k = Raw(c).send("GET / HTTP/1.1\r\n%s\r\n" % by(sb2))
        whole = b""
        try:
            while not whole.endswith(b"\r\n\r\n") or b"0\r\n" not in whole:
                b = k.s.recv(65536)
                if not b:
                    break
                whole += b
        except ConnectionResetError:
            pass
        k2 = H2(c).send(frame(HEADERS, END_HEADERS | END_STREAM, 1, request(sb2)))
        kinds = []
        while True:
            got = k2.read()
            if got is None or (got[2] == 1 and (got[0] == RST or got[1] & END_STREAM and got[0] in (HEADERS, DATA))):
                kinds.append(got and got[0])
                break
        k2.close()
        good = bad == "X-Sum: good"
        equal((whole.endswith(b"\r\n\r\n") and b"\r\n0\r\n" in whole, kinds[0] in (HEADERS, DATA)), (good, good), "an answer with the trailer %r was passed on as whole (h1, h2)" % bad[:40])
    c.end(vm)
    alive(c, sb)


@test
def hosts_that_two_readers_would_read_differently(c, sb, svc):
    good = "8000-%s.cube.test" % sb
    for host in [good + "\r\nHost: localhost", good + ", localhost", good + "@localhost", good + "/x", good + "?x", good + " x", good + "\t", "a b", good + "\\x"]:
        status = get(c, "/", "Host: %s\r\n" % host)[0]
        check(status in ((200, 400) if host.endswith("\t") else (400,)), "%r gave %s" % (host, status))
    # The absolute form decides (RFC 9112 §3.2.2), and the service sees no other name.
    svc.seen.clear()
    equal(Raw(c).send("GET http://%s/abs HTTP/1.1\r\nHost: localhost\r\n\r\n" % good).answer()[0], 200)
    equal((svc.seen[-1]["target"], svc.seen[-1]["headers"]["host"]), ("/abs", good))


@test
def internal_paths_of_envd_cannot_be_disguised(c, sb, svc):
    svc.seen.clear()
    for path in ["/init", "/INIT/../init", "/./init", "//init", "/x/../init", "/%69nit", "/%2finit", "/init/", "/init?x", "/init;x", "/%2e/init", "/freeze", "/upgrade", "/Unfreeze",
                 "/collapse", "/fsfreeze", "/fsthaw", "/" + "a" * 130 + "/../init", "/" + "a/../" * 500 + "init", "/init%00x"]:
        for target in (path, "http://49983-%s.cube.test%s" % (sb, path)):
            equal(get(c, target, by(sb, 49983))[0], 404, target)
        equal(get(c, "/sandbox/%s/49983%s" % (sb, path), "Host: localhost\r\n")[0], 404, path)
    equal(svc.seen, [], "requests at the service")
    # Before any look-up: for a sandbox that nobody has heard of as well.
    equal(get(c, "/init", "Host: 49983-i0%s.cube.test\r\n" % ("z" * 19))[0], 404)


@test
def h2_downgrade_injects_nothing(c, sb, svc):
    svc.seen.clear()
    bad = [(("x", "a\r\nInjected: 1"),), (("x", "a\nb"),), (("x\r\ny", "1"),), (("X-Upper", "1"),), (("transfer-encoding", "chunked"),), (("connection", "close"),), (("te", "gzip"),),
           (("host", "localhost"),), (("content-length", "5"), ("content-length", "6")), (("x y", "1"),), (("x", "a\0b"),)]
    for more in bad:
        k = H2(c).send(frame(HEADERS, END_HEADERS | END_STREAM, 1, request(sb, "/inj", "GET", *more)))
        got = k.outcome(1)
        check(got in ("reset", "closed", 400), "%r gave %s" % (more, got))
        k.close()
    for path in ["/ HTTP/1.1\r\nInjected: 1", "/a b", "", "x", "/\0", "/#f"]:
        k = H2(c).send(frame(HEADERS, END_HEADERS | END_STREAM, 1, request(sb, path)))
        got = k.outcome(1)
        check(got in ("reset", "closed", 400), "path %r gave %s" % (path, got))
        k.close()
    equal(svc.seen, [], "requests at the service")
    for said, sent in ((5, b"abcdefghij"), (5, b"abc")):  # more and less than announced
        k = H2(c).send(frame(HEADERS, END_HEADERS, 1, request(sb, "/upload", "POST", ("content-length", str(said)))), frame(DATA, END_STREAM, 1, sent))
        got = k.outcome(1)
        check(got in ("reset", "closed", 400), "a body of %d for %d gave %s" % (len(sent), said, got))
        k.close()
    check(not any(s.get("end") == "done" for s in svc.seen), "no service took such a body for whole")
    alive(c, sb)


@test
def heads_that_never_end_are_cut(c, sb, svc):
    t = time.monotonic()
    slow = [H2(c).send(frame(HEADERS, END_STREAM, 1, request(sb, "/never"))), H2(c).send(frame(HEADERS, END_HEADERS | END_STREAM, 1, request(sb, "/never"))[:20])]
    for part in (b"PRI * HTTP/2.0\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\4\0\0\0"):  # a preface of which the rest does not come
        slow.append(H2.__new__(H2))
        slow[-1].s = socket.create_connection(("127.0.0.1", c.port), 30)
        slow[-1].s.sendall(part)
        slow[-1].f = slow[-1].s.makefile("rb")
    h1 = Raw(c).send("GET /never HTTP/1.1\r\nX: ")
    tls = socket.create_connection(("127.0.0.1", c.tls_port), 30)
    tls.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    other = H2(c).send(frame(HEADERS, END_HEADERS | END_STREAM, 1, request(sb, "/quiet")))  # a complete head may wait for its answer
    equal(h1.answer()[0], 408)
    for k in slow:
        while k.read() is not None:
            pass
    try:
        equal(tls.recv(1), b"", "the end of a handshake that never came")
    except ConnectionResetError:
        pass
    took = time.monotonic() - t
    check(took >= HEAD_TIMEOUT * 0.9, "cut after %.1f s, before the time was over" % took)
    alive(c, sb)
    equal(get(c, "/well", by(sb))[0], 200)
    other.s.settimeout(0.2)
    try:
        while other.read() is not None:
            pass
        check(False, "a stream that waits for its service was cut")
    except (socket.timeout, TimeoutError):
        pass
    other.close()


def rss_now(p):
    for line in open("/proc/%d/status" % p.pid):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024


@test
def windows_that_never_open_hold_little(c, sb, svc):
    before = rss_now(c.proxies[0])
    held = []
    svc.seen.clear()
    for _ in range(2):
        k = H2(c, settings=struct.pack(">HI", 4, 0))  # initial window 0
        k.send(*[frame(HEADERS, END_HEADERS | END_STREAM, 1 + 2 * i, request(sb, "/download?n=16777216")) for i in range(30)])
        held.append(k)
    wait_for(lambda: len(svc.seen) == 60 and all(s.get("sent", 0) > MiB for s in svc.seen), why="60 downloads that the service has begun")
    grown = rss_now(c.proxies[0]) - before
    print("   60 streams without a window hold %.1f MiB" % grown)
    check(SANITIZED or grown <= 60 * 0.2, "memory grew by %.1f MiB" % grown)
    alive(c, sb)
    for k in held:
        k.close()


@test
def floods_that_nobody_reads_end_or_wait(c, sb, svc):
    before = rss_now(c.proxies[0])
    for what in (frame(PING, 0, 0, b"12345678"), frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535)), frame(WINDOW, 0, 0, struct.pack(">I", 1))):
        k = H2(c)
        k.s.settimeout(2)
        sent, ended = 0, False
        try:
            while sent < 32 * MiB:
                k.s.sendall(what * 2000)
                sent += len(what) * 2000
        except (socket.timeout, TimeoutError):
            pass  # held back
        except OSError:
            ended = True
        print("   %d MiB of frames of type %d: %s" % (sent // MiB, what[3], "ended" if ended else "taken or held back"))
        k.close()
    k = H2(c).send(frame(HEADERS, END_HEADERS, 1, request(sb, "/upload", "POST")))
    try:
        for _ in range(200):
            k.send(frame(DATA, 0, 1) * 1000)
    except OSError:
        pass
    k.close()
    grown = rss_now(c.proxies[0]) - before
    check(SANITIZED or grown <= 8, "memory grew by %.1f MiB" % grown)
    alive(c, sb)


class Endless:
    """A service that answers with interim heads for ever. `most` bytes at the most, so that a proxy without a bound fails this and no more."""

    def __init__(self, most):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.most, self.sent, self.open = self.listener.getsockname()[1], most, 0, True
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        head = b"HTTP/1.1 103 Early Hints\r\nLink: <" + b"x" * 6000 + b">\r\n\r\n"
        s = self.listener.accept()[0]
        s.settimeout(10)
        s.recv(65536)
        try:
            while self.sent < self.most:
                s.sendall(head)
                self.sent += len(head)
        except OSError:
            pass
        self.open = False
        s.close()


@test
def interim_answers_that_nobody_reads_are_bounded(c, sb, svc):
    for h2 in (False, True):
        endless = Endless(48 * MiB)
        sb2, vm = c.sandbox({8000: endless.port})
        before = rss_now(c.proxies[0])
        if h2:
            k = H2(c).send(frame(HEADERS, END_HEADERS | END_STREAM, 1, request(sb2)))
        else:
            k = Raw(c).send("GET / HTTP/1.1\r\n%s\r\n" % by(sb2))
        wait_for(lambda: not endless.open, why="the end of the interim answers")
        grown = rss_now(c.proxies[0]) - before
        print("   %.1f MiB of interim answers, the proxy holds %.1f MiB" % (endless.sent / MiB, grown))
        check(SANITIZED or grown <= 8, "memory grew by %.1f MiB" % grown)
        k.f.close()
        k.s.close()
        c.end(vm)
    alive(c, sb)


@test
def compressed_heads_do_not_grow_without_bound(c, sb, svc):
    # One entry of 4 KB in the dynamic table, named 8,000 times: 32 MB for a decoder that keeps them all.
    big = b"\x40" + b"\x01x" + b"\x7f\x81\x1e" + b"v" * 3968
    k = H2(c).send(frame(HEADERS, END_STREAM, 1, request(sb, "/bomb") + big + b"\xbe" * 8000)[:9 + 16384])
    before = rss_now(c.proxies[0])
    block = request(sb, "/bomb") + big
    k = H2(c)
    k.send(frame(HEADERS, END_STREAM, 1, block), frame(CONTINUATION, END_HEADERS, 1, b"\xbe" * 8000))
    got = k.outcome(1)
    check(got in ("reset", "closed", "other", 400), "outcome %s" % got)
    check(SANITIZED or rss_now(c.proxies[0]) - before <= 8, "memory")
    check(not any(s["path"] == "/bomb" for s in svc.seen), "it reached the service")
    k.close()
    alive(c, sb)


@test
def tls_garbage_in_numbers(c, sb, svc):
    rnd = random.Random(7)
    hello = b"\x16\x03\x01"
    for i in range(300):
        s = socket.create_connection(("127.0.0.1", c.tls_port), 10)
        n = rnd.randrange(1, 600)
        junk = bytes(rnd.getrandbits(8) for _ in range(n))
        s.sendall(junk if i % 3 == 0 else hello + struct.pack(">H", n) + junk if i % 3 == 1 else hello + struct.pack(">H", 16384) + junk)
        s.close()
    ctx = ssl.create_default_context(cafile=str(c.dir / "tls/ca.pem"))
    ctx.set_alpn_protocols(["spdy/3", "x" * 200])
    try:
        ctx.wrap_socket(socket.create_connection(("127.0.0.1", c.tls_port), 20), server_hostname="localhost").close()
        check(False, "a client that speaks nothing that we speak is told so (RFC 7301 §3.2)")
    except ssl.SSLError as e:
        check("NO_APPLICATION_PROTOCOL" in str(e).upper().replace(" ", "_"), str(e))
    equal(get(c, "/", by(sb), tls=True)[0], 200)
    check(c.proxies[0].poll() is None, "the proxy lives")


@test
def an_upgrade_to_h2c_is_not_passed_on(c, sb, svc):
    for upgrade in ("h2c", "websocket, h2c", "h2c, websocket"):
        svc.seen.clear()
        k = Raw(c).send("GET /up HTTP/1.1\r\n%sConnection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n" % (by(sb), upgrade))
        equal(k.answer()[0], 200)
        check("upgrade" not in svc.seen[0]["headers"] and "http2-settings" not in svc.seen[0]["headers"], "passed on: %s" % svc.seen[0]["headers"])


@test
def requests_behind_answers_that_nobody_reads_wait(c, sb, svc):
    for what, one in (("answers of a service", b"GET /block?n=4000 HTTP/1.1\r\n%s\r\n" % by(sb).encode()), ("answers of the proxy", b"GET / HTTP/1.1\r\nHost: 1-i0nobody.cube.test\r\nAccept: text/html\r\n\r\n")):
        before = rss_now(c.proxies[0])
        k = socket.socket()
        k.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        k.connect(("127.0.0.1", c.port))
        k.settimeout(1)
        sent = 0
        try:
            while sent < 8 * MiB:
                sent += k.send(one * 100)
        except (socket.timeout, TimeoutError):
            pass
        t = time.monotonic()
        for _ in range(20):
            alive(c, sb)
        took = time.monotonic() - t
        check(took < 10, "20 requests of another client took %.1f s meanwhile" % took)
        grown = rss_now(c.proxies[0]) - before
        print("   %d requests without reading: %.1f MiB more for %s" % (sent // len(one), grown, what))
        check(SANITIZED or grown <= 4, "memory grew by %.1f MiB" % grown)
        # They were held back, not lost: the answers come once they are read.
        k.settimeout(30)
        got = b""
        while got.count(b"HTTP/1.1 ") < 200:
            b = k.recv(65536)
            check(b, "the end after %d answers" % got.count(b"HTTP/1.1 "))
            got += b
        k.close()
        alive(c, sb)


@test
def slow_readers_of_the_last_answer_get_all_of_it(c, sb, svc):
    """The connection closes behind it, but not before it was read: what still waits in the proxy must not be lost. Where a reader has to pause for that depends
    on the kernel's buffers, so each pauses at another point, longer than a proxy that only throws away what is left to read would wait (2 s)."""
    n, got = 200000, {}

    def read(pause):
        k = socket.socket()
        k.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        k.connect(("127.0.0.1", c.port))
        k.settimeout(30)
        k.sendall(b"GET /block?n=%d HTTP/1.0\r\n%s\r\n" % (n, by(sb).encode()))
        total = 0
        while True:
            if pause and n - total <= pause:
                pause = 0
                time.sleep(3)
            b = k.recv(8192)
            if not b:
                break
            total += len(b)
        got[threading.current_thread()] = total
        k.close()
    readers = [threading.Thread(target=read, args=(pause,), daemon=True) for pause in range(24000, 120000, 3000)]
    for r in readers:
        r.start()
    for r in readers:
        r.join()
    short = [got.get(r) for r in readers if got.get(r, 0) < n]
    check(not short, "readers that got less than %d bytes, and an orderly end or an error: %s" % (n, short))


if __name__ == "__main__":
    svc = Service()
    with Cluster(config="  head_timeout: %ds\n  threads: 1\n  stream_buffer: 262144\n" % HEAD_TIMEOUT) as c:
        sb, vm = c.sandbox({8000: svc.port, 49983: svc.port})
        code = run("ingress attack", c, sb, svc)
    sys.exit(code)
