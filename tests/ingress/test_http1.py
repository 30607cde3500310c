"""HTTP/1.1 through cube-proxy and cube-relay: routing, one URL, errors, smuggling, streaming, upgrades, disconnects. Byte by byte."""
import hashlib
import http.client
import http.server
import json
import os
import socket
import ssl
import sys
import threading
import time

from check import check, equal, run, test
from cluster import Cluster, sandbox_id, wait_for
from service import Service, pattern, pattern_sha

MiB = 1 << 20
BULK = (256 if os.environ.get("LONG") == "1" else 48) * MiB


class Raw:
    """A client that sends exactly what it is told."""

    def __init__(self, c, tls=False, timeout=40, port=None):
        self.s = socket.create_connection(("127.0.0.1", port or (c.tls_port if tls else c.port)), timeout)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            ctx = ssl.create_default_context(cafile=str(c.dir / "tls/ca.pem"))
            ctx.set_alpn_protocols(["http/1.1"])
            self.s = ctx.wrap_socket(self.s, server_hostname="localhost")
        self.f = self.s.makefile("rb")

    def send(self, b):
        self.s.sendall(b if isinstance(b, bytes) else b.encode())
        return self

    def head(self):
        line = self.f.readline()
        if not line:
            return None, {}
        headers = {}
        while True:
            l = self.f.readline()
            if l in (b"\r\n", b""):
                break
            k, v = l.decode("latin1").split(":", 1)
            headers[k.lower()] = v.strip()
        return int(line.split()[1]), headers

    def answer(self, no_body=False):
        status, headers = self.head()
        if status is None or no_body:
            return status, headers, b""
        if headers.get("transfer-encoding") == "chunked":
            return status, headers, b"".join(self.chunks())
        return status, headers, self.f.read(int(headers.get("content-length", 0)))

    def chunks(self):
        self.trailers = {}
        while True:
            n = int(self.f.readline().split(b";")[0], 16)
            if n == 0:
                while True:
                    l = self.f.readline().strip()
                    if not l:
                        return
                    k, v = l.decode().split(":", 1)
                    self.trailers[k.lower()] = v.strip()
            yield self.f.read(n)
            self.f.readline()

    def ended(self, seconds=20):
        self.s.settimeout(seconds)
        try:
            return self.f.read() == b""
        except ConnectionResetError:
            return True


def by(sandbox, port=8000):
    return "Host: %d-%s.cube.test\r\n" % (port, sandbox)


def get(c, path, host, headers="", tls=False):
    return Raw(c, tls).send("GET %s HTTP/1.1\r\n%s%s\r\n" % (path, host, headers)).answer()


def memory_is_flat(c, after):
    """The ceiling of the streaming matrix, for the proxy and the relay, asked after each row of it."""
    proxy, relay = rss(c.proxies[0]), rss(c.relay)
    print("   resident high-water after %s: proxy %.1f MiB, relay %.1f MiB" % (after, proxy, relay))
    check(SANITIZED or (proxy <= 16 and relay <= 16), "memory after %s: proxy %.1f, relay %.1f MiB" % (after, proxy, relay))


def rss(p):
    for line in open("/proc/%d/status" % p.pid):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024


@test
def routes_by_host_headers_and_path_on_one_connection(c, sb, svc, other):
    k = Raw(c)
    for host, headers, path, want in [
            (by(sb), "", "/a?q=1", b"GET /a?q=1\n"), ("Host: localhost\r\n", "E2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: 8000\r\n" % sb, "/b", b"GET /b\n"),
            ("Host: 127.0.0.1\r\n", "", "/sandbox/%s/8000/c?d=1" % sb, b"GET /c?d=1\n"), (by(other[0], 9000), "", "/d", b"GET /d\n"),
            ("Host: sandbox.cube.test\r\n", "e2b-sandbox-id: %s-6532622b\r\ne2b-sandbox-port: 8000\r\n" % sb, "/e", b"GET /e\n"),
            ("Host: 127.0.0.1:1\r\n", "", "/health", b"api /health")]:
        status, _, body = k.send("GET %s HTTP/1.1\r\n%s%s\r\n" % (path, host, headers)).answer()
        equal((status, body), (200, want), path)


@test
def api_by_domain_over_tls(c, sb, svc, other):
    status, _, body = get(c, "/v2/x", "Host: api.cube.test\r\n", tls=True)
    equal((status, body), (200, b"api /v2/x"))


@test
def path_route_is_sandboxed_and_prefix_free(c, sb, svc, other):
    status, headers, _ = get(c, "/sandbox/%s/8000/x" % sb, "Host: localhost\r\n")
    equal(headers.get("content-security-policy"), "sandbox allow-scripts allow-forms")
    status, headers, _ = get(c, "/x", by(sb))
    check("content-security-policy" not in headers, "policy on a host route")


@test
def wrong_addresses_are_400_with_the_contracts_text(c, sb, svc, other):
    for host, headers, want in [("Host: foo\r\n", "", b"Invalid host"), ("Host: 80-a_b.cube.test\r\n", "", None),
                                ("Host: x-%s.cube.test\r\n" % sb, "", b"Invalid sandbox port"), ("Host: localhost\r\n", "E2b-Sandbox-Id: %s\r\n" % sb, b"missing header"),
                                ("Host: sandbox.cube.test\r\n", "", b"missing header")]:
        status, _, body = get(c, "/", host, headers)
        equal(status, 400, host)
        if want:
            equal(body, want, host)


@test
def error_bodies_are_exact(c, sb, svc, other):
    gone = sandbox_id()
    status, headers, body = get(c, "/", by(gone))
    equal((status, body), (502, b'{"sandboxId":"%s","message":"The sandbox was not found","code":502}' % gone.encode()))
    equal(headers["content-type"], "application/json")
    t = time.monotonic()
    status, _, body = get(c, "/", by(sb, 8001))
    equal((status, body), (502, b'{"sandboxId":"%s","message":"The sandbox is running but port is not open","port":8001,"code":502}' % sb.encode()))
    check(time.monotonic() - t > 0.9, "a closed port is tried for a second")
    for path in ["/init", "//init", "/%69nit", "/freeze?x"]:
        status, _, body = get(c, path, by(sb, 49983))
        equal((status, json.loads(body)["code"]), (404, 404), path)
    status, headers, body = get(c, "/", by(gone), "User-Agent: Mozilla/5.0 Firefox\r\nAccept: text/html\r\nSec-Fetch-Mode: navigate\r\n")
    equal((status, headers["content-type"]), (502, "text/html; charset=utf-8"))
    check(b"not running" in body, "the page says what is wrong")
    status, headers, body = get(c, "/x", by(gone), "Content-Type: application/connect+json\r\n")
    equal((status, headers["content-type"], body[0]), (200, "application/connect+json", 2))
    equal(json.loads(body[5:])["error"], {"code": "unavailable", "message": "The sandbox was not found"})
    status, headers, body = get(c, "/x", by(gone), "Content-Type: application/grpc\r\n")
    equal((status, headers["grpc-status"], headers["grpc-message"]), (200, "14", "The sandbox was not found"))


@test
def a_service_that_has_just_started_is_waited_for(c, sb, svc, other):
    # A refused port is tried for a second. Where the machine let more than that pass before our service listened, the try says nothing.
    for _ in range(8):
        if service_starts_late(c):
            return
    check(False, "none of eight services that began to listen after 0.35 s was waited for")


def service_starts_late(c):
    l = socket.socket()
    l.bind(("127.0.0.1", 0))  # bound but not listening: refused
    port = l.getsockname()[1]
    s2, vm = c.sandbox({7000: port})

    def serve():
        time.sleep(0.35)
        l.listen(5)
        s, _ = l.accept()
        s.recv(4096)
        s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup")
    threading.Thread(target=serve, daemon=True).start()
    status, _, body = get(c, "/", by(s2, 7000))
    c.end(vm)
    if status == 502:
        return False
    equal((status, body), (200, b"up"))
    return True


@test
def traffic_tokens_are_checked_on_every_port_but_envds(c, sb, svc, other):
    token = "t" * 64
    s2, vm = c.sandbox({8000: svc.port, 49983: svc.port}, private=1, traffic_sha256=hashlib.sha256(token.encode()).hexdigest())
    status, _, body = get(c, "/", by(s2))
    equal((status, b"is missing" in body), (403, True))
    status, _, body = get(c, "/", by(s2), "e2b-traffic-access-token: %s\r\n" % ("x" * 64))
    equal((status, b"is invalid" in body), (403, True))
    status, _, body = get(c, "/", by(s2), "E2B-Traffic-Access-Token: %s\r\n" % token)
    equal(status, 200)
    check("e2b-traffic-access-token" not in svc.seen[-1]["headers"], "the token is not for the service")
    equal(get(c, "/health", by(s2, 49983))[0], 200)
    c.end(vm)


@test
def posts_do_not_meet_the_end_of_a_kept_connection(c, sb, svc, other):
    """Services close kept connections after a second or two of silence, without a word, and a POST that meets that would be lost."""
    s2, vm = c.sandbox({8000: svc.port})
    before = svc.connections
    k = Raw(c)
    for i in range(2):
        equal(k.send("POST /p HTTP/1.1\r\n%sContent-Length: 2\r\n\r\nhi" % by(s2)).answer()[0], 200)
        time.sleep(0 if i else 0.6)
    equal(svc.connections - before, 2, "connections of two POSTs with 0.6 s between them")
    c.end(vm)


@test
def masked_host(c, sb, svc, other):
    s2, vm = c.sandbox({8000: svc.port, 49983: svc.port}, mask_host="inner.test:${PORT}")
    equal(get(c, "/", by(s2))[1]["x-seen-host"], "inner.test:8000")
    equal(svc.seen[-1]["headers"]["x-forwarded-host"], "8000-%s.cube.test" % s2)
    equal(get(c, "/", by(s2, 49983))[1]["x-seen-host"], "49983-%s.cube.test" % s2)
    c.end(vm)
    s3, vm = c.sandbox({8000: svc.port}, mask_host="x\r\nInjected: 1")
    equal(get(c, "/", by(s3))[0], 503, "a route with a line break is not used")
    c.end(vm)


@test
def smuggling_set_is_refused_and_the_connection_closed(c, sb, svc, other):
    before = len(svc.seen)
    h = by(sb)
    for text in ["POST / HTTP/1.1\r\n%sContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "POST / HTTP/1.1\r\n%sContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
                 "POST / HTTP/1.1\r\n%sContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "POST / HTTP/1.1\r\n%sTransfer-Encoding: xchunked\r\n\r\n",
                 "POST / HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", "GET / HTTP/1.1\r\n%sX: a\r\n b\r\n\r\n",
                 "GET / HTTP/1.1\n%s\n\n", "GET / HTTP/1.1\r\n%sHost: other\r\n\r\n", "GET / HTTP/1.1\r\n%sX : a\r\n\r\n", "GET / HTTP/1.1\r\n%sX: a\rb\r\n\r\n",
                 "POST / HTTP/1.0\r\n%sTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "GET / HTTP/1.1\r\n%sX: a\x00b\r\n\r\n"]:
        k = Raw(c).send(text % h)
        status, headers, _ = k.answer()
        equal((status, headers.get("connection")), (400, "close"), text)
        check(k.ended(), "still open after " + text)
    equal(len(svc.seen), before, "requests that reached the service")
    k = Raw(c).send("CONNECT x:1 HTTP/1.1\r\n%s\r\n" % h)
    equal(k.answer()[0], 405)


@test
def bad_chunks_never_end_well(c, sb, svc, other):
    for body in ["5\r\nhelloX", "0x5\r\nhello\r\n0\r\n\r\n", "5\nhello\r\n", "+5\r\nhello\r\n", "fffffffffffffffff\r\n"]:
        k = Raw(c).send("POST /upload HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n" % by(sb))
        wait_for(lambda: svc.last("/upload") and svc.last("/upload").get("bytes") == 3, why="the first chunk")
        k.send(body)
        status, _, _ = k.answer()
        check(status in (400, None), "answer %s to %r" % (status, body))
        wait_for(lambda: svc.last("/upload")["end"] == "gone", why="the abort")
        svc.seen.clear()


@test
def large_heads_are_431_and_slow_ones_do_not_block_others(c, sb, svc, other):
    k = Raw(c).send("GET / HTTP/1.1\r\n%sX: %s\r\n\r\n" % (by(sb), "a" * 40000))
    equal(k.answer()[0], 431)
    slow = Raw(c)
    for ch in "GET / HTTP/1.1\r\n":
        slow.send(ch)
    equal(get(c, "/", by(sb))[0], 200)
    equal(slow.send(by(sb) + "\r\n").answer()[0], 200)


@test
def pipelined_requests_are_answered_in_order(c, sb, svc, other):
    k = Raw(c).send("".join("GET /p%d HTTP/1.1\r\n%s\r\n" % (i, by(sb)) for i in range(20)))
    for i in range(20):
        equal(k.answer()[2], b"GET /p%d\n" % i)


def upload(c, sb, svc, tls, chunked, n):
    k = Raw(c, tls, timeout=120)
    k.send("POST /upload HTTP/1.1\r\n%s%s\r\n\r\n" % (by(sb), "Transfer-Encoding: chunked" if chunked else "Content-Length: %d" % n))
    for b in pattern(n):
        k.send(b"%x\r\n%s\r\n" % (len(b), b) if chunked else b)
    if chunked:
        k.send("0\r\nX-Sum: abc\r\n\r\n")
    status, _, body = k.answer()
    equal((status, body.decode()), (200, "%d %s %s" % (n, pattern_sha(n), "abc" if chunked else "")))


@test
def upload_and_download_matrix_is_byte_exact_in_flat_memory(c, sb, svc, other):
    for tls in (False, True):
        for chunked in (False, True):
            upload(c, sb, svc, tls, chunked, BULK)
        for kind in ("length", "chunked", "close"):
            k = Raw(c, tls, timeout=120).send("GET /download?n=%d&kind=%s HTTP/1.1\r\n%s\r\n" % (BULK, kind, by(sb)))
            status, headers = k.head()
            h = hashlib.sha256()
            if kind == "length":
                left = int(headers["content-length"])
                while left:
                    b = k.f.read(min(left, 65536))
                    left -= len(b)
                    h.update(b)
            else:
                equal(headers.get("transfer-encoding"), "chunked", "framing of " + kind)
                for b in k.chunks():
                    h.update(b)
            equal(h.hexdigest(), pattern_sha(BULK), "sha of " + kind)
            if kind == "chunked":
                equal(k.trailers.get("x-sum"), pattern_sha(BULK), "trailer")
    memory_is_flat(c, "uploads and downloads")


@test
def http10_client_gets_decoded_chunks_and_close(c, sb, svc, other):
    k = Raw(c).send("GET /download?n=100000&kind=chunked HTTP/1.0\r\n%s\r\n" % by(sb))
    status, headers = k.head()
    check("transfer-encoding" not in headers, "no chunks for HTTP/1.0")
    equal(hashlib.sha256(k.f.read()).hexdigest(), pattern_sha(100000))


@test
def truncated_answers_are_not_taken_for_whole(c, sb, svc, other):
    for path in ("/truncate", "/truncate-chunked"):
        k = Raw(c).send("GET %s HTTP/1.1\r\n%s\r\n" % (path, by(sb)))
        k.head()
        try:
            rest = k.f.read()
            check(b"0\r\n\r\n" not in rest and len(rest) < 1000, "looks whole")
        except ConnectionResetError:
            pass
    equal(get(c, "/garbage", by(sb))[0], 502)
    equal(get(c, "/hangup", by(sb))[0], 502)


@test
def sse_flows_at_once_and_a_leaving_client_is_noticed(c, sb, svc, other):
    for tls in (False, True):
        k = Raw(c, tls).send("GET /sse?n=40 HTTP/1.1\r\n%s\r\n" % by(sb))
        k.head()
        equal(b"".join(k.chunks()), b"".join(b"data: %d\n\n" % i for i in range(40)), "the whole stream")
        k = Raw(c, tls).send("GET /sse HTTP/1.1\r\n%s\r\n" % by(sb))
        k.head()
        t = time.monotonic()
        got = k.chunks()
        for i in range(10):
            equal(next(got), b"data: %d\n\n" % i)
        check(time.monotonic() - t < 20, "events are held back")
        k.s.shutdown(socket.SHUT_RDWR)
        k.s.close()
        wait_for(lambda: svc.last("/sse")["end"] == "gone", 20, "the service to see the end")
    memory_is_flat(c, "SSE")
    k = Raw(c).send("GET /quiet HTTP/1.1\r\n%s\r\n" % by(sb))
    wait_for(lambda: svc.last("/quiet"), why="the request")
    k.f.close()
    k.s.close()
    wait_for(lambda: svc.last("/quiet")["end"] == "gone", 20, "the service to see the end before an answer")


@test
def aborted_upload_aborts_the_service(c, sb, svc, other):
    k = Raw(c).send("POST /upload HTTP/1.1\r\n%sContent-Length: 1000\r\n\r\nabc" % by(sb))
    wait_for(lambda: svc.last("/upload") and svc.last("/upload").get("bytes") == 3, why="the bytes")
    k.f.close()
    k.s.close()
    wait_for(lambda: svc.last("/upload")["end"] == "gone", 20, "the abort")


@test
def connect_stream_is_duplex(c, sb, svc, other):
    for tls in (False, True):
        k = Raw(c, tls).send("POST /duplex HTTP/1.1\r\n%sContent-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\n\r\n" % by(sb))
        equal(k.head()[0], 200)
        got = k.chunks()
        for i in range(50):
            piece = b"\0\0\0\0\2{}%d" % i
            k.send(b"%x\r\n%s\r\n" % (len(piece), piece))
            equal(next(got), piece)
        k.send(b"0\r\n\r\n")
        equal(list(got), [])
    memory_is_flat(c, "Connect streams")


@test
def expect_100_is_the_services_decision(c, sb, svc, other):
    k = Raw(c).send("POST /expect HTTP/1.1\r\n%sExpect: 100-continue\r\nContent-Length: 5\r\n\r\n" % by(sb))
    equal(k.head()[0], 100)
    equal(k.send("hello").answer()[0], 200)
    k = Raw(c).send("POST /expect?refuse=1 HTTP/1.1\r\n%sExpect: 100-continue\r\nContent-Length: 5\r\n\r\n" % by(sb))
    equal(k.answer()[0], 417)


@test
def early_answer_reaches_a_client_that_is_still_sending(c, sb, svc, other):
    k = Raw(c).send("POST /early HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n" % (by(sb), 1 << 20))
    status, headers, body = k.answer()
    equal((status, headers.get("connection"), body), (413, "close", b"too much"))
    for chunked in (False, True):  # the service's reset comes behind its answer, and must not overtake it on any hop
        for _ in range(20):
            k = Raw(c).send("POST /full HTTP/1.1\r\n%s%s\r\n\r\n" % (by(sb), "Transfer-Encoding: chunked" if chunked else "Content-Length: %d" % (8 * MiB)))

            def pour():
                try:
                    for _ in range(128):
                        k.send(b"10000\r\n" + bytes(65536) + b"\r\n" if chunked else bytes(65536))
                except OSError:
                    pass
            t = threading.Thread(target=pour, daemon=True)
            t.start()
            status, headers, body = k.answer()
            equal((status, body), (413, b"too much"), "chunked %s" % chunked)
            t.join()
    # Many clients look at the answer only when they have sent everything. One that stands still for seconds is cut off, so a busy machine may need a few tries.
    check(any(sends_all_then_looks(c, sb) for _ in range(5)), "none of five clients that sent 12 MiB before they looked got the answer")


def sends_all_then_looks(c, sb):
    try:
        k = Raw(c).send("POST /early HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n" % (by(sb), 12 * MiB)).send(bytes(12 * MiB))
        return k.answer()[0] == 413
    except OSError:
        return False


def upgrade(c, sb, tls=False, port=None):
    k = Raw(c, tls, port=port).send("GET /ws HTTP/1.1\r\n%sUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n" % by(sb))
    status, headers = k.head()
    equal((status, headers.get("upgrade"), headers.get("sec-websocket-accept")), (101, "websocket", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="))
    return k


@test
def websocket_pumps_both_ways_and_passes_half_close(c, sb, svc, other):
    for tls in (False, True):
        k = upgrade(c, sb, tls)
        for n in (1, 100, 70000, 3 * MiB):
            data = (b"%d," % n) * (n // 2 + 1)
            if tls:  # Python's TLS sockets cannot send and receive from two threads at once
                for at in range(0, min(len(data), MiB), 50000):
                    piece = data[at:at + 50000]
                    equal(k.send(piece).f.read(len(piece)) == piece, True, "echo of a piece")
                continue
            threading.Thread(target=k.send, args=(data,), daemon=True).start()
            equal(hashlib.sha256(k.f.read(len(data))).hexdigest(), hashlib.sha256(data).hexdigest(), "echo of %d" % n)
        if not tls:
            k.s.shutdown(socket.SHUT_WR)
            equal(k.f.read(), b"BYE", "after our half-close")
    memory_is_flat(c, "WebSockets")


@test
def who_asks_for_trailers_asks_the_service(c, sb, svc, other):
    for te, more, want in (("trailers", "TE", ("trailers", "TE")), ("gzip;q=0.5, trailers", "TE", ("trailers", "TE")), ("gzip", "TE", (None, None))):
        equal(get(c, "/te", by(sb), "TE: %s\r\nConnection: %s\r\n" % (te, more))[0], 200)
        seen = svc.last("/te")["headers"]
        equal((seen.get("te"), seen.get("connection")), want, te)
    k = Raw(c)  # answers without a body, though their heads may name a length, and the next request behind each
    for method, n, length in (("GET", 204, None), ("GET", 304, "5"), ("HEAD", 200, "5"), ("GET", 204, None)):
        status, headers, _ = k.send("%s /code?n=%d HTTP/1.1\r\n%s\r\n" % (method, n, by(sb))).answer(no_body=True)
        equal((status, headers.get("content-length"), headers.get("etag")), (n, length, '"e"'), "%s %d" % (method, n))
    equal(k.send("GET /code?n=200 HTTP/1.1\r\n%s\r\n" % by(sb)).answer()[2], b"12345")


@test
def keep_alive_reuses_streams_to_the_service(c, sb, svc, other):
    s2, vm = c.sandbox({8000: svc.port})
    before = svc.connections
    k = Raw(c)
    for i in range(50):
        equal(k.send("GET /k HTTP/1.1\r\n%s\r\n" % by(s2)).answer()[0], 200)
    equal(svc.connections - before, 1)
    c.end(vm)


@test
def tls_garbage_and_plain_http_on_the_tls_port(c, sb, svc, other):
    for junk in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"A" * 500, bytes(range(256)) * 8):
        s = socket.create_connection(("127.0.0.1", c.tls_port), 5)
        s.sendall(junk)
        try:
            s.recv(4096)
        except OSError:
            pass
        s.close()
    equal(get(c, "/", by(sb), tls=True)[0], 200)


class Api(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = ("api " + self.path).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


SANITIZED = "asan" in str(__import__("cluster").BUILD) or "tsan" in str(__import__("cluster").BUILD)

if __name__ == "__main__":
    svc = Service()
    with Cluster(config="  head_timeout: 5s\n") as c:
        api = http.server.ThreadingHTTPServer(("127.0.0.1", c.api_port), Api)
        threading.Thread(target=api.serve_forever, daemon=True).start()
        sb, vm = c.sandbox({8000: svc.port, 49983: svc.port})
        other = c.sandbox({9000: svc.port})
        code = run("ingress http1", c, sb, svc, other)
    sys.exit(code)
