"""Bad input for cube-envd alone: hostile.py PORT PID. Each case: the right error, bounded memory, and the daemon still answers."""
import base64
import gzip
import http.client
import json
import os
import resource
import socket
import struct
import sys
import threading
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import hang  # noqa: E402

PORT, PID = int(sys.argv[1]), int(sys.argv[2])
SUITE = os.environ.get("SUITE", "guest hostile")
SLOW = bool(os.environ.get("SANITIZED"))  # a daemon that is thirty times as slow gets a part of the load


def envd_pid():
    """unshare execs the daemon: the pid is its own."""
    return PID


def rss_kib():
    if os.environ.get("SANITIZED"):
        return 0  # a sanitizer's own memory says nothing about the daemon's
    for line in open(f"/proc/{envd_pid()}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


def raw(data, half_close=False, timeout=20, limit=1 << 20):
    s = socket.create_connection(("127.0.0.1", PORT), timeout=timeout)
    out = b""
    try:
        s.sendall(data)
        if half_close:
            s.shutdown(socket.SHUT_WR)
    except (ConnectionError, socket.timeout):
        pass  # refused before all of it was there: the answer may have come all the same
    try:
        while len(out) < limit and (part := s.recv(65536)):
            out += part
    except (ConnectionError, socket.timeout):
        pass
    s.close()
    return out


def request(method, path, body=b"", headers=()):
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    head += "".join(f"{k}: {v}\r\n" for k, v in headers)
    out = raw(head.encode() + b"\r\n" + body, timeout=20)
    status = int(out[9:12]) if out[:5] == b"HTTP/" else 0
    return status, out.split(b"\r\n\r\n", 1)[-1]


def unary(path, body, ctype="application/json"):
    return request("POST", path, body, [("Content-Type", ctype)])


def stream(path, payload, flags=0, length=None, ctype="application/connect+json"):
    body = struct.pack(">BI", flags, len(payload) if length is None else length) + payload
    return request("POST", path, body, [("Content-Type", ctype)])


def alive():
    assert request("GET", "/health")[0] == 204


def status_of(data):
    out = raw(data)
    return int(out[9:12]) if out[:5] == b"HTTP/" else 0


def bad_heads():
    ok = b"Host: x\r\n\r\n"
    for data, want in (
        (b"GET /health HTTP/1.1\r\n\r\n", 400), (b"GET  /health HTTP/1.1\r\n" + ok, 400), (b"GET /health HTTP/2.0\r\n" + ok, 505),
        (b"GET /health HTTP/1.1\nHost: x\n\n", 0), (b"G\x00T / HTTP/1.1\r\n" + ok, 400), (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n c\r\n" + ok, 400), (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"POST /files HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n" + ok, 400),
        (b"POST /files HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n" + ok, 400),
        (b"POST /files HTTP/1.1\r\nContent-Length: +1\r\n" + ok, 400), (b"POST /files HTTP/1.1\r\nTransfer-Encoding: gzip\r\n" + ok, 501),
        (b"GET /%zz HTTP/1.1\r\n" + ok, 400), (b"GET /%00 HTTP/1.1\r\n" + ok, 400), (b"GET /" + b"a" * 40000 + b" HTTP/1.1\r\n" + ok, 431),
        (b"GET / HTTP/1.1\r\n" + b"".join(b"A%d: b\r\n" % i for i in range(200)) + ok, 431),
        (b"GET /nothing HTTP/1.1\r\nConnection: close\r\n" + ok, 404), (b"PUT /files HTTP/1.1\r\nConnection: close\r\n" + ok, 405),
        (b"GET /process.Process/Start HTTP/1.1\r\nConnection: close\r\n" + ok, 405),
    ):
        got = status_of(data) if want else 0
        assert got == want, (data[:60], got, want)
    alive()


def bad_chunks():
    head = b"POST /process.Process/List HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    for body in (b"zz\r\n", b"2\r\n{}x\r\n0\r\n\r\n", b"ffffffffffffffffff\r\n", b"-1\r\n", b"\r\n", b"2;" + b"a" * 70000):
        assert status_of(head + body) == 400, body[:30]
    assert status_of(head.replace(b"Host: x\r\n", b"Host: x\r\nConnection: close\r\n") + b"1;ext=1\r\n{\r\n001\r\n}\r\n0\r\nTrailer: x\r\n\r\n") == 200
    alive()


def bad_messages():
    deep = b'{"x":' * 20000 + b"1" + b"}" * 20000
    for path in ("/process.Process/List", "/process.Process/SendInput", "/filesystem.Filesystem/Stat", "/filesystem.Filesystem/ListDir"):
        for body in (b"", b"[]", b"null", b"{", b'{"path":}', b'{"path":1}', b'{"depth":-1}', b'{"depth":1e99}', b'{"path":"\\ud800"}', b'{"path":"\xff"}',
                     b'{"path":"a\\u0000b"}', b'{"path":"a","path":"b"}', deep, b'{"process":"x"}', b'{"process":{"pid":"x"}}', b'{"input":{"stdin":"@@"}}', b"{} {}"):
            known = b"path" in body and "filesystem" in path
            s, answer = unary(path, body)
            if body in (b"", b"[]", b"null", b"{", deep, b"{} {}", b'{"path":}') or known:
                assert s == 400 and json.loads(answer)["code"] == "invalid_argument", (path, body[:40], s, answer[:200])
            else:
                assert s in (200, 400, 401, 404), (path, body[:40], s)
        for body in (b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05ab", b"\x0b\x0c", b"\x08" + b"\xff" * 11, b"\x0a\x02\xff\xfe"):
            s, answer = unary(path, body, "application/proto")
            assert s in (400, 200, 404), (path, body, s, answer)
    assert unary("/process.Process/List", b"{}", "text/plain")[0] == 415
    assert unary("/process.Process/List", b"x" * (17 << 20))[0] in (413, 0)
    alive()


def bad_envelopes():
    good = json.dumps({"process": {"cmd": "/bin/true"}}).encode()
    for flags, payload, length in ((1, good, None), (2, good, None), (255, good, None), (0, good, len(good) + 1), (0, good, len(good) - 1), (0, good, 0xFFFFFFFF), (0, b"", None), (0, b"{", None)):
        s, answer = stream("/process.Process/Start", payload, flags, length)
        end = answer[answer.index(b'{"error"'):] if b'{"error"' in answer else b""
        assert s == 200 and b'"code"' in end, (flags, length, s, answer[:200])
    assert request("POST", "/process.Process/Start", b"\0\0", [("Content-Type", "application/connect+json")])[0] == 200
    head = b"POST /process.Process/StreamInput HTTP/1.1\r\nHost: x\r\nContent-Type: application/connect+json\r\nContent-Length: 100000\r\n\r\n"
    assert b"resource_exhausted" in raw(head + struct.pack(">BI", 0, 0x7FFFFFFF) + b"x" * 100)
    alive()


def bad_uploads():
    octet = [("Content-Type", "application/octet-stream")]
    multi = [("Content-Type", "multipart/form-data; boundary=B")]
    for path, body, headers, want in (
        ("/files", b"x", octet, 400), ("/files?path=/tmp", b"x", octet, 400), ("/files?path=%zz", b"x", octet, 400), ("/files?path=/a%00b", b"x", octet, 400),
        ("/files?path=/tmp/cube-h", b"x", [("Content-Type", "text/plain")], 400), ("/files?path=/tmp/cube-h", b"x", octet + [("Content-Encoding", "br")], 400),
        ("/files?path=/tmp/cube-h", b"not gzip", octet + [("Content-Encoding", "gzip")], 400), ("/files?path=/tmp/cube-h", b"x", octet + [("X-Metadata-a", "\xe9")], 400),
        ("/files?path=/tmp/cube-h", b"x", octet + [("X-Metadata-" + "k" * 300, "v")], 400), ("/files?path=/tmp/cube-h&username=no-such", b"x", octet, 401),
        ("/files?path=/tmp/cube-h", b"x", [("Content-Type", "multipart/form-data")], 400), ("/files?path=/tmp/cube-h", b"--B\r\n", multi, 400),
        ("/files", b"--B\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nx\r\n--B--", multi, 400),
        ("/files?path=/tmp/cube-h", b"--B\r\n" + b"A" * 20000, multi, 400), ("/files?path=/" + "a/" * 3000, b"x", octet, 400),
        ("/files?path=/proc/version/x", b"x", octet, 400), ("/files?path=" + "/tmp/" + "n" * 300, b"x", octet, 400),
    ):
        s, answer = request("POST", path, body, headers)
        assert s == want and json.loads(answer)["code"] == want, (path[:60], s, want, answer[:200])
    assert not os.path.exists("/tmp/cube-h"), "a refused upload left a file"
    twice = b"".join(b"--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/tmp/cube-h\"\r\n\r\nx\r\n" for _ in range(2)) + b"--B--\r\n"
    assert request("POST", "/files", twice, multi)[0] == 400
    os.unlink("/tmp/cube-h")
    alive()


def cut_upload():
    """An upload that is cut leaves the old file, and nothing else, in its directory."""
    os.makedirs("/tmp/cube-cut", exist_ok=True)
    open("/tmp/cube-cut/f", "w").write("old")
    s = socket.create_connection(("127.0.0.1", PORT))
    s.sendall(b"POST /files?path=/tmp/cube-cut/f HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: 1000000\r\n\r\n" + b"n" * 300000)
    time.sleep(0.1)
    assert open("/tmp/cube-cut/f").read() == "old", "a reader sees a half-written file"
    s.close()
    end = time.time() + 30
    while os.listdir("/tmp/cube-cut") != ["f"] or open("/tmp/cube-cut/f").read() != "old":
        assert time.time() < end, os.listdir("/tmp/cube-cut")
        time.sleep(0.02)
    os.unlink("/tmp/cube-cut/f")
    os.rmdir("/tmp/cube-cut")
    alive()


def ranges():
    data = bytes(range(256)) * 400
    assert request("POST", "/files?path=/tmp/cube-range", data, [("Content-Type", "application/octet-stream")])[0] == 200
    for value, want, part in (("bytes=0-0", 206, data[:1]), ("bytes=100-199", 206, data[100:200]), ("bytes=-5", 206, data[-5:]), ("bytes=102399-", 206, data[-1:]),
                              ("bytes=102400-", 416, None), ("bytes=5-2", 200, data), ("bytes=0-1,5-6", 200, data), ("chars=0-1", 200, data), ("bytes=-0", 416, None),
                              ("bytes=0-99999999999", 206, data)):
        s, body = request("GET", "/files?path=/tmp/cube-range", headers=[("Range", value)])
        assert s == want and (part is None or body == part), (value, s, len(body))
    old, new = "Mon, 01 Jan 2001 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT"
    for name, value, want in (("If-Modified-Since", new, 304), ("If-Modified-Since", old, 200), ("If-Unmodified-Since", old, 412), ("If-Unmodified-Since", new, 200),
                              ("If-Match", "*", 200), ("If-Match", '"x"', 412), ("If-None-Match", "*", 304), ("If-None-Match", '"x"', 200), ("If-Modified-Since", "x", 200)):
        assert request("GET", "/files?path=/tmp/cube-range", headers=[(name, value)])[0] == want, (name, value)
    assert request("GET", "/files?path=/tmp/cube-range", headers=[("If-Range", old), ("Range", "bytes=0-0")])[0] == 200
    assert request("GET", "/files?path=/tmp/cube-range", headers=[("Accept-Encoding", "identity;q=0, br")])[0] == 406
    assert request("GET", "/files?path=/tmp")[0] == 400 and request("GET", "/files?path=/no/such")[0] == 404 and request("GET", "/files?path=/dev/zero")[0] == 400
    assert int(request("GET", "/files?path=/proc/sys/kernel/pid_max")[1]) > 0, "a file of /proc is empty"
    os.unlink("/tmp/cube-range")


def encodings():
    """Plain bytes wherever the client takes them, gzip where it takes nothing else (a gzipped 100 MB read makes the SDK time out)."""
    data = b"the same again " * 20000
    assert request("POST", "/files?path=/tmp/cube-encoding", data, [("Content-Type", "application/octet-stream")])[0] == 200
    for accepted, want in ((None, None), ("", None), ("identity", None), ("gzip, deflate, br", None), ("gzip, deflate, br, zstd, identity", None), ("*", None),
                           ("gzip", "gzip"), ("gzip;q=1.0, identity;q=0", "gzip")):
        c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=20)
        c.putrequest("GET", "/files?path=/tmp/cube-encoding", skip_accept_encoding=True)
        if accepted is not None:
            c.putheader("Accept-Encoding", accepted)
        c.endheaders()
        answer = c.getresponse()
        body = answer.read()
        assert answer.status == 200 and answer.getheader("Content-Encoding") == want, (accepted, answer.status, answer.getheader("Content-Encoding"))
        assert (gzip.decompress(body) if want else body) == data, accepted
        c.close()
    os.unlink("/tmp/cube-encoding")


def compose():
    octet = [("Content-Type", "application/octet-stream")]
    for i in range(3):
        request("POST", f"/files?path=/tmp/cube-c/{i}", b"%d" % i * 1000, octet)
    s, body = unary("/files/compose", json.dumps({"source_paths": [f"/tmp/cube-c/{i}" for i in range(3)], "destination": "/tmp/cube-c/all"}).encode())
    assert s == 200 and json.loads(body) == {"path": "/tmp/cube-c/all", "name": "all", "type": "file"}, body
    assert request("GET", "/files?path=/tmp/cube-c/all")[1] == b"0" * 1000 + b"1" * 1000 + b"2" * 1000
    assert os.listdir("/tmp/cube-c") == ["all"]
    assert unary("/files/compose", json.dumps({"source_paths": ["/tmp/none"], "destination": "/tmp/cube-c/x"}).encode())[0] == 404
    assert unary("/files/compose", b"{}")[0] == 400
    os.unlink("/tmp/cube-c/all")
    os.rmdir("/tmp/cube-c")


def pipelining():
    out = raw(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 50 + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert out.count(b"HTTP/1.1 204") == 51, out.count(b"HTTP/1.1 204")


def idle_connections():
    """Ten thousand connections: half say nothing, half begin a head and stop; and one sends its head a byte at a time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    n = min(10000, hard - 200)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, n + 200), hard))
    before = rss_kib()
    conns = []
    for i in range(n):
        s = socket.socket()
        s.bind((f"127.0.{i % 4 + 1}.1", 0))
        s.connect(("127.0.0.1", PORT))
        if i % 2:
            s.sendall(b"GET /files?path=/tmp/" + b"x" * 200)
        conns.append(s)
    slow = conns[0]
    for b in b"GET /health HT":
        slow.sendall(bytes([b]))
    alive()
    grown = rss_kib() - before
    assert grown < 16384, f"{n} idle connections cost {grown} KiB"
    for s in conns:
        s.close()
    alive()


def many_bodies():
    """Bodies in memory are bounded over all connections."""
    conns = []
    for _ in range(12):
        s = socket.create_connection(("127.0.0.1", PORT))
        s.setblocking(True)
        s.settimeout(3)
        try:
            s.sendall(b"POST /process.Process/SendInput HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 16000000\r\n\r\n" + b" " * 15000000)
        except OSError:
            pass
        conns.append(s)
    alive()
    assert rss_kib() < 200000, rss_kib()
    for s in conns:
        s.close()
    alive()


def slow_uploads():
    """Uploads that stop in the middle hold a file each, not a buffer each."""
    conns = []
    for i in range(500):
        s = socket.create_connection(("127.0.0.1", PORT))
        s.sendall(b"POST /files?path=/tmp/cube-slow/%d HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: 100000\r\n\r\n" % i + b"n" * 3000)
        conns.append(s)
    before = rss_kib()
    alive()
    assert request("GET", "/files?path=/etc/hostname")[0] == 200, "other file calls wait for slow clients"
    assert rss_kib() < 24576 or not before, f"500 uploads that wait take {rss_kib()} KiB"
    for s in conns:
        s.close()
    alive()
    end = time.time() + 30
    while os.listdir("/tmp/cube-slow"):
        assert time.time() < end, os.listdir("/tmp/cube-slow")[:3]
        time.sleep(0.05)
    os.rmdir("/tmp/cube-slow")


def slow_downloads():
    """Downloads that nobody reads hold no buffer each."""
    open("/tmp/cube-big", "wb").write(b"d" * 8000000)
    open("/tmp/cube-64k", "wb").write(b"d" * 60000)
    conns = []
    for i in range(400):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", PORT))
        s.sendall(b"GET /files?path=/tmp/cube-%s HTTP/1.1\r\nHost: x\r\n\r\n" % (b"big" if i % 2 else b"64k") * (1 if i % 2 else 60))
        conns.append(s)
    time.sleep(0.3)
    alive()
    assert request("GET", "/files?path=/etc/hostname")[0] == 200
    assert rss_kib() < 24576, f"400 downloads that wait take {rss_kib()} KiB"
    for s in conns:
        s.close()
    os.unlink("/tmp/cube-big")
    os.unlink("/tmp/cube-64k")
    alive()


def deep_trees():
    """Two thousand levels: made, watched, listed and removed by one call each, deeper than any stack or descriptor limit."""
    path = "/tmp/cube-deep" + "/d" * 2000
    s, answer = unary("/filesystem.Filesystem/MakeDir", json.dumps({"path": path}).encode())
    assert s == 200, (s, answer[:200])
    base = os.open(path, os.O_DIRECTORY)  # and deeper than a path can name
    for _ in range(2000):
        os.mkdir("e", dir_fd=base)
        deeper = os.open("e", os.O_DIRECTORY, dir_fd=base)
        os.close(base)
        base = deeper
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=base))
    os.close(base)
    alive()
    s, answer = unary("/filesystem.Filesystem/CreateWatcher", b'{"path":"/tmp/cube-deep","recursive":true}')
    assert s == 200, (s, answer[:200])
    unary("/filesystem.Filesystem/RemoveWatcher", json.dumps({"watcherId": json.loads(answer)["watcherId"]}).encode())
    s, answer = unary("/filesystem.Filesystem/ListDir", b'{"path":"/tmp/cube-deep","depth":4294967295}')
    assert s == 200 and len(json.loads(answer)["entries"]) == 256, (s, len(json.loads(answer)["entries"]))
    s, answer = unary("/filesystem.Filesystem/Remove", b'{"path":"/tmp/cube-deep"}')
    assert s == 200 and not os.path.exists("/tmp/cube-deep"), (s, answer[:200])
    alive()


def unread_fifos():
    """FIFOs that nobody reads, and one that is read slowly: workers are not held."""
    octet = [("Content-Type", "application/octet-stream")]
    os.mkfifo("/tmp/cube-fifo")
    assert request("POST", "/files?path=/tmp/cube-fifo", b"x", octet)[0] == 400  # no reader: ENXIO
    reader = os.open("/tmp/cube-fifo", os.O_RDONLY | os.O_NONBLOCK)
    assert request("POST", "/files?path=/tmp/cube-fifo", b"hello", octet)[0] == 200 and os.read(reader, 10) == b"hello"
    conns = []
    for _ in range(20):
        s = socket.create_connection(("127.0.0.1", PORT))
        s.sendall(b"POST /files?path=/tmp/cube-fifo HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: 200000\r\n\r\n" + b"n" * 200000)
        conns.append(s)
    end = time.time() + 20
    while request("GET", "/files?path=/etc/hostname")[0] != 200:
        assert time.time() < end, "file calls wait for a FIFO"
    assert request("GET", "/files?path=/tmp/cube-fifo")[0] == 400
    for s in conns:
        s.close()
    os.close(reader)
    os.unlink("/tmp/cube-fifo")
    alive()


def own_descriptors():
    """Links of /proc into the daemon's own descriptors are no files."""
    if os.environ.get("NO_OPENAT2"):
        return  # valgrind does not know the system call that refuses them
    octet = [("Content-Type", "application/octet-stream")]
    for fd in range(12):
        assert request("GET", f"/files?path=/proc/self/fd/{fd}")[0] in (400, 404), fd
        assert request("POST", f"/files?path=/proc/self/fd/{fd}", b"x", octet)[0] in (400, 404), fd
    assert request("GET", "/files?path=/proc/self/root/etc/hostname")[0] == 400
    os.symlink("/proc/self/fd/1", "/tmp/cube-own")
    assert request("POST", "/files?path=/tmp/cube-own", b"x", octet)[0] in (400, 404)
    os.unlink("/tmp/cube-own")


def names_of_bytes():
    """Paths are bytes: what is not UTF-8 works through URLs, and answers stay valid JSON; in messages it is refused."""
    octet = [("Content-Type", "application/octet-stream")]
    s, answer = request("POST", "/files?path=/tmp/cube-%ff%c3(", b"odd", octet)
    assert s == 200 and json.loads(answer)[0]["type"] == "file", (s, answer)
    assert os.path.exists(b"/tmp/cube-\xff\xc3(") and request("GET", "/files?path=/tmp/cube-%ff%c3(") == (200, b"odd")
    os.unlink(b"/tmp/cube-\xff\xc3(")
    for path in ("/filesystem.Filesystem/Stat", "/filesystem.Filesystem/MakeDir", "/filesystem.Filesystem/Remove", "/filesystem.Filesystem/CreateWatcher"):
        s, answer = unary(path, b'{"path":"/tmp/cube-\xff"}')
        assert s == 400 and json.loads(answer)["code"] == "invalid_argument", (path, s, answer)
    for path in ("/tmp/%00", "/tmp/a%00b"):
        assert request("GET", f"/files?path={path}")[0] == 400
    alive()


def started(start, headers=b""):
    """A Start stream on a connection of its own; returns it and the pid."""
    msg = json.dumps(start).encode()
    s = socket.create_connection(("127.0.0.1", PORT), timeout=20)
    s.sendall(b"POST /process.Process/Start HTTP/1.1\r\nHost: x\r\nContent-Type: application/connect+json\r\n%sContent-Length: %d\r\n\r\n" % (headers, len(msg) + 5)
              + struct.pack(">BI", 0, len(msg)) + msg)
    out = b""
    while b'"pid":' not in out or b"}" not in out[out.index(b'"pid":'):]:
        part = s.recv(4096)
        assert part, out
        out += part
    return s, int(out[out.index(b'"pid":') + 6:].split(b"}")[0])


def waiting_messages():
    """Messages that wait for a full pipe, or for their own end, are bounded over all connections; packed ones, too."""
    import gzip
    if SLOW:
        return  # it is about memory, and a sanitizer's own says nothing
    holder, pid = started({"process": {"cmd": "sleep", "args": ["100"]}, "stdin": True})
    before, conns, answers = rss_kib(), [holder], b""
    body = gzip.compress(json.dumps({"process": {"pid": pid}, "input": {"stdin": base64.b64encode(bytes(11 << 20)).decode()}}).encode(), 1)
    for _ in range(40):
        s = socket.create_connection(("127.0.0.1", PORT), timeout=20)
        s.sendall(b"POST /process.Process/SendInput HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        conns.append(s)
    while b"resource_exhausted" not in answers:  # one of the forty is told
        for s in conns[1:]:
            s.settimeout(0.02)
            try:
                answers += s.recv(65536)
            except socket.timeout:
                pass
    part = struct.pack(">BI", 0, 15 << 20) + b" " * (14 << 20)
    for _ in range(12):
        s = socket.create_connection(("127.0.0.1", PORT), timeout=3)
        try:
            s.sendall(b"POST /process.Process/StreamInput HTTP/1.1\r\nHost: x\r\nContent-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % len(part) + part)
        except OSError:
            pass
        conns.append(s)
    alive()
    grown = rss_kib() - before
    assert grown < 160000, f"messages that wait hold {grown} KiB"
    for s in conns:
        s.close()
    end = time.time() + 20
    while rss_kib() - before > 40000:
        assert time.time() < end, f"{rss_kib() - before} KiB stay"
        time.sleep(0.05)
    unary("/process.Process/SendSignal", json.dumps({"process": {"pid": pid}, "signal": 9}).encode())


def many_envelopes():
    """Thousands of small messages in one piece: each is handed on, none on top of the other's stack."""
    count = 1000 if SLOW else 20000
    holder, pid = started({"process": {"cmd": "wc", "args": ["-c"]}, "stdin": True})
    one = json.dumps({"data": {"input": {"stdin": "eHh4"}}}).encode()
    msgs = [json.dumps({"start": {"process": {"pid": pid}}}).encode()] + [one, b'{"keepalive":{}}'] * count
    s, answer = request("POST", "/process.Process/StreamInput", b"".join(struct.pack(">BI", 0, len(m)) + m for m in msgs), [("Content-Type", "application/connect+json")])
    assert s == 200 and b"error" not in answer, (s, answer[-200:])
    unary("/process.Process/CloseStdin", json.dumps({"process": {"pid": pid}}).encode())
    out = b""
    while b"exit status" not in out:
        part = holder.recv(65536)
        assert part, out
        out += part
    assert base64.b64encode(b"%d\n" % (3 * count)) in out, out
    holder.close()


def resize_storm():
    """A terminal that is resized two thousand times while it prints ends with the last size."""
    holder, pid = started({"process": {"cmd": "/bin/sh", "args": ["-c", "i=0; while [ $i -lt 300 ]; do echo $i; i=$((i+1)); done; read x; stty size"]},
                           "pty": {"size": {"cols": 80, "rows": 24}}})
    s = socket.create_connection(("127.0.0.1", PORT), timeout=30)
    for i in range(2000):
        msg = json.dumps({"process": {"pid": pid}, "pty": {"size": {"cols": 20 + i, "rows": 1 + i % 500}}}).encode()
        s.sendall(b"POST /process.Process/Update HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(msg) + msg)
    got = b""
    while got.count(b"HTTP/1.1 200") < 2000:
        part = s.recv(65536)
        assert part and got.count(b"HTTP/1.1") == got.count(b"HTTP/1.1 200"), got[-300:]
        got += part
    s.close()
    for size in ({"cols": 70000, "rows": 1}, {"cols": -1, "rows": 1}):
        assert unary("/process.Process/Update", json.dumps({"process": {"pid": pid}, "pty": {"size": size}}).encode())[0] == 400
    unary("/process.Process/SendInput", json.dumps({"process": {"pid": pid}, "input": {"pty": base64.b64encode(b"\n").decode()}}).encode())
    out, text = b"", b""
    while b"exit status" not in out:
        part = holder.recv(65536)
        assert part, out[-300:]
        out += part
    for piece in out.split(b'"pty":"')[1:]:
        text += base64.b64decode(piece.split(b'"')[0])
    assert b"500 2019" in text, text[-200:]
    holder.close()


def unread_watchers():
    """Streams that nobody reads share a bound; what does not fit waits in the kernel, or they end with resource_exhausted."""
    os.makedirs("/tmp/cube-watched", exist_ok=True)
    msg, conns = json.dumps({"path": "/tmp/cube-watched", "includeEntry": True}).encode(), []
    for _ in range(8 if SLOW else 60):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.settimeout(20)
        s.connect(("127.0.0.1", PORT))
        s.sendall(b"POST /filesystem.Filesystem/WatchDir HTTP/1.1\r\nHost: x\r\nContent-Type: application/connect+json\r\nContent-Length: %d\r\n\r\n" % (len(msg) + 5)
                  + struct.pack(">BI", 0, len(msg)) + msg)
        head = b""
        while b'"start"' not in head and b"resource_exhausted" not in head:  # the host may allow fewer instances
            head += s.recv(1)
        conns.append(s)
    before = rss_kib()
    for i in range(4000):
        os.close(os.open(f"/tmp/cube-watched/{i}", os.O_CREAT))
    for _ in range(5):
        alive()
    grown = rss_kib() - before
    assert grown < 8192, f"60 unread watchers hold {grown} KiB"
    first, out = conns[0], b""
    while out.count(b"EVENT_TYPE_CREATE") < 4000 and b"resource_exhausted" not in out:
        part = first.recv(65536)
        assert part, out[-300:]
        out += part
    for s in conns:
        s.close()
    for i in range(4000):
        os.unlink(f"/tmp/cube-watched/{i}")
    os.rmdir("/tmp/cube-watched")
    alive()


class SlowHead(threading.Thread):
    """Sends a head byte by byte for as long as it is let; begins with the first test and is asked with the last."""

    def __init__(self):
        super().__init__(daemon=True)
        self.began, self.ended = time.time(), None

    def run(self):
        s = socket.create_connection(("127.0.0.1", PORT))
        s.settimeout(1)
        try:
            s.sendall(b"GET /health HTTP/1.1\r\nX: ")
            while self.ended is None and time.time() - self.began < 90:
                s.sendall(b"a")
                try:
                    if not s.recv(1):
                        break
                except socket.timeout:
                    pass
        except OSError:
            pass
        self.ended = time.time()


slow = SlowHead()
slow.start()


def slow_head():
    """A head has 30 s in all, however steadily its bytes come."""
    slow.join(100)
    assert slow.ended and 25 < slow.ended - slow.began < 60, slow.ended and slow.ended - slow.began


def packed_messages():
    """gzip as Connect has it: whole unary bodies, flagged envelopes; a bomb is refused at the limit, without the memory."""
    import gzip
    coding = [("Content-Type", "application/json"), ("Content-Encoding", "gzip")]
    streams = [("Content-Type", "application/connect+json"), ("Connect-Content-Encoding", "gzip")]
    call = lambda path, body, headers: request("POST", path, body, headers)  # noqa: E731
    s, answer = call("/filesystem.Filesystem/Stat", gzip.compress(b'{"path":"/tmp"}'), coding)
    assert s == 200 and json.loads(answer)["entry"]["name"] == "tmp", (s, answer)
    assert call("/filesystem.Filesystem/Stat", b'{"path":"/tmp"}', coding)[0] == 400
    assert call("/filesystem.Filesystem/Stat", gzip.compress(b'{"path":"/tmp"}')[:-3], coding)[0] == 400
    assert call("/filesystem.Filesystem/Stat", gzip.compress(b'{"path":"/tmp"}') + b"x", coding)[0] == 400
    assert call("/filesystem.Filesystem/Stat", b"{}", [coding[0], ("Content-Encoding", "br")])[0] == 501
    before = rss_kib()
    bomb = gzip.compress(b" " * (300 << 20))
    s, answer = call("/filesystem.Filesystem/Stat", bomb, coding)
    assert s == 429 and json.loads(answer)["code"] == "resource_exhausted", (s, answer)
    assert rss_kib() - before < 4096, rss_kib() - before
    msg = gzip.compress(json.dumps({"process": {"cmd": "echo", "args": ["packed"]}}).encode())
    plain = json.dumps({"process": {"cmd": "echo", "args": ["packed"]}}).encode()
    for flags, payload in ((1, msg), (0, plain)):  # a call that names a coding may still send a message as it is
        s, answer = call("/process.Process/Start", struct.pack(">BI", flags, len(payload)) + payload, streams)
        assert s == 200 and b"cGFja2VkCg==" in answer and b"error" not in answer, (flags, s, answer)
    s, answer = call("/process.Process/Start", struct.pack(">BI", 1, len(bomb)) + bomb, streams)
    assert s == 200 and b"resource_exhausted" in answer, (s, answer)
    alive()


def platform_options():
    """/init: what cannot be honoured is refused by name, with nothing of it in effect."""
    for body, name in (({"volumeMounts": [{"nfs_target": "x:/y", "path": "/mnt"}]}, "volumeMounts"), ({"hyperloopIP": "10.0.0.1"}, "hyperloopIP"),
                       ({"caBundle": "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"}, "caBundle")):
        s, answer = unary("/init", json.dumps({"envVars": {"LEAK": "1"}, **body}).encode())
        assert s == 400 and name in json.loads(answer)["message"], (s, answer)
    assert "LEAK" not in json.loads(request("GET", "/envs")[1])
    assert unary("/init", b'{"volumeMounts":[],"hyperloopIP":"","caBundle":null}')[0] == 204


def slow_reader():
    """A subscriber that does not read holds up neither memory nor others."""
    for pty in ({}, {"pty": {"size": {"cols": 80, "rows": 24}}}):
        unread_output({"process": {"cmd": "/bin/sh", "args": ["-c", "head -c 300000000 /dev/zero"]}, **pty})


def unread_output(start):
    msg = json.dumps(start).encode()
    s = socket.create_connection(("127.0.0.1", PORT))
    s.sendall(b"POST /process.Process/Start HTTP/1.1\r\nHost: x\r\nContent-Type: application/connect+json\r\nContent-Length: %d\r\n\r\n" % (len(msg) + 5)
              + struct.pack(">BI", 0, len(msg)) + msg)
    before = rss_kib()
    for _ in range(20):
        alive()
    assert rss_kib() - before < 4096, rss_kib() - before
    s.close()
    alive()


for title, fn in (("malformed heads", bad_heads), ("malformed chunks", bad_chunks), ("malformed messages", bad_messages), ("malformed envelopes", bad_envelopes),
                  ("refused uploads", bad_uploads), ("a cut upload", cut_upload), ("ranges and odd files", ranges), ("encodings", encodings), ("compose", compose), ("pipelining", pipelining),
                  ("10,000 idle connections", idle_connections), ("many large bodies", many_bodies), ("slow uploads", slow_uploads), ("slow downloads", slow_downloads), ("deep trees", deep_trees),
                  ("FIFOs nobody reads", unread_fifos), ("the daemon's own descriptors", own_descriptors), ("compressed messages", packed_messages),
                  ("options of /init", platform_options), ("a slow reader", slow_reader), ("names that are not UTF-8", names_of_bytes),
                  ("messages that wait", waiting_messages), ("40,000 small messages", many_envelopes), ("a storm of resizes", resize_storm), ("unread watchers", unread_watchers),
                  ("a slow head", slow_head)):
    if os.environ.get("ONLY", "") not in title:
        continue
    try:
        with hang.limit():
            fn()
        print(f"PASS {SUITE}: {title}", flush=True)
    except BaseException as e:  # noqa: BLE001 - a test that fails in any way is a failure
        at = traceback.extract_tb(e.__traceback__)[-1]
        print(f"FAIL {SUITE}: {title}: {type(e).__name__}: {e} at {at.lineno}: {at.line}".replace("\n", " ")[:700], flush=True)
