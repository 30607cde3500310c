"""What an operator does, and what befalls a proxy, while clients are at work: an upgrade with streams of every kind open, a drain, a new certificate under load, no
descriptor left, an access log that clients cannot forge, histograms of every phase."""
import hashlib
import json
import os
import re
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

from check import check, equal, run, test
from cluster import Cluster, wait_for
from service import Service, pattern, pattern_sha
from test_attack import END_HEADERS, END_STREAM, DATA, GOAWAY, HEADERS, H2, frame, request
from test_http1 import Raw, by, get, upgrade
from test_limits import metric

MiB = 1 << 20


def end_stream(k, stream):
    """Reads to the end of a stream: its body, and whether a GOAWAY or a reset came before."""
    body, seen = b"", []
    while True:
        got = k.read()
        check(got is not None, "the connection ended before stream %d; seen %s" % (stream, seen))
        seen.append(got[0])
        if got[2] == stream and got[0] == DATA:
            body += got[3]
        check(not (got[2] == stream and got[0] == 3), "a reset of stream %d" % stream)
        if got[2] == stream and got[0] in (HEADERS, DATA) and got[1] & END_STREAM:
            return body


@test
def an_upgrade_drops_no_stream_of_any_kind(c, svc):
    sb, vm = c.sandbox({8000: svc.port})
    old = c.proxies[0]
    n = 4 * MiB
    ws = upgrade(c, sb)
    up = Raw(c).send("POST /upload HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n" % (by(sb), n))
    down = Raw(c).send("GET /download?n=%d HTTP/1.1\r\n%s\r\n" % (n, by(sb)))
    events = Raw(c).send("GET /sse?n=60 HTTP/1.1\r\n%s\r\n" % by(sb))
    h2 = H2(c).send(frame(HEADERS, END_HEADERS, 1, request(sb, "/upload", "POST")), frame(DATA, 0, 1, b"half "))
    blocks = list(pattern(n))
    up.send(blocks[0])
    down.head()
    got = events.head() and events.chunks()
    next(got)
    wait_for(lambda: len([s for s in svc.seen if s["path"] == "/upload"]) == 2, why="both uploads at the service")
    c.proxies[0] = c.start_proxy(0, port=old.port, tls_port=old.tls_port)
    equal(get(c, "/new", by(sb))[0], 200)
    for b in blocks[1:]:
        up.send(b)
    equal(up.answer()[2].split()[1].decode(), pattern_sha(n), "the upload that was in flight")
    h = hashlib.sha256()
    left = n
    while left:
        b = down.f.read(min(left, 65536))
        check(b, "the download was cut %d bytes before its end" % left)
        left -= len(b)
        h.update(b)
    equal(h.hexdigest(), pattern_sha(n), "the download that was in flight")
    equal(len(list(got)), 59, "events that were still to come")
    h2.send(frame(DATA, END_STREAM, 1, b"and half"))
    equal(end_stream(h2, 1).split()[:2], [b"13", hashlib.sha256(b"half and half").hexdigest().encode()], "the upload over HTTP/2")
    equal(ws.send("still here").f.read(10), b"still here")
    check(old.poll() is None, "the old process serves its last streams")
    for k in (ws, h2):
        k.s.shutdown(socket.SHUT_RDWR)
        k.s.close()
    for k in (up, down, events):
        k.s.close()
    wait_for(lambda: old.poll() is not None, 60, "the old process to end")
    c.children.remove(old)
    c.end(vm)


@test
def a_drain_tells_http2_clients_before_it_refuses(c, svc):
    """With one GOAWAY a request that is on its way would be lost: many clients do not send it again."""
    sb, vm = c.sandbox({8000: svc.port})
    p = c.start_proxy(7)
    at = type("At", (), {"port": p.port})
    k = H2(at).send(frame(HEADERS, END_HEADERS | END_STREAM, 1, request(sb, "/before")))
    end_stream(k, 1)
    p.send_signal(signal.SIGTERM)
    lasts, sent = [], False
    while True:
        got = k.read()
        if got is None:
            break
        if got[0] == GOAWAY:
            lasts.append(int.from_bytes(got[3][:4], "big"))
            if not sent:
                sent = True
                try:
                    k.send(frame(HEADERS, END_HEADERS | END_STREAM, 3, request(sb, "/crossed")))
                except OSError:
                    pass
    equal(lasts[0], 2**31 - 1, "the first word names no last stream")
    check(lasts[-1] in (1, 3), "the second does: %s" % lasts)
    if lasts[-1] == 3:  # the rule, but for a client that stood still for half a second
        check(any(s["path"] == "/crossed" for s in svc.seen), "the request that crossed the first word")
    p.wait(60)
    c.children.remove(p)
    c.end(vm)


@test
def a_new_certificate_comes_while_clients_connect(c, svc):
    sb, vm = c.sandbox({8000: svc.port})
    tls = c.dir / "tls"
    ctx = ssl.create_default_context(cafile=str(tls / "ca.pem"))
    stop, errors, serials, n = threading.Event(), [], set(), [0]

    def load():
        while not stop.is_set():
            try:
                with socket.create_connection(("127.0.0.1", c.tls_port), 30) as s, ctx.wrap_socket(s, server_hostname="8000-x.cube.test") as t:
                    serials.add(t.getpeercert()["serialNumber"])
                    t.sendall(("GET /tls HTTP/1.1\r\n%sConnection: close\r\n\r\n" % by(sb)).encode())
                    if b" 200 " not in t.recv(4096):
                        errors.append("no 200")
                    n[0] += 1
            except OSError as e:
                errors.append(repr(e))
    kept = Raw(c, tls=True)
    equal(kept.send("GET /kept HTTP/1.1\r\n%s\r\n" % by(sb)).answer()[0], 200)
    threads = [threading.Thread(target=load, daemon=True) for _ in range(2)]
    for t in threads:
        t.start()
    for i in range(2):
        before = len(serials)
        subprocess.run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout %s/n.key -subj /CN=cube.test -out %s/n.csr && printf 'subjectAltName=DNS:*.cube.test,DNS:localhost' > %s/ext && "
                       "openssl x509 -req -in %s/n.csr -CA %s/ca.pem -CAkey %s/ca.key -CAcreateserial -days 30 -extfile %s/ext -out %s/n.pem" % ((tls,) * 8),
                       shell=True, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        os.replace(tls / "n.key", tls / "ingress.key")
        os.replace(tls / "n.pem", tls / "ingress.pem")
        wait_for(lambda: len(serials) > max(before, 1 + i), 60, "the new certificate")
    stop.set()
    for t in threads:
        t.join()
    equal(errors, [], "errors of %d connections" % n[0])
    equal(kept.send("GET /kept HTTP/1.1\r\n%s\r\n" % by(sb)).answer()[0], 200, "a connection of before")
    c.end(vm)


def cpu_s(p):
    f = open("/proc/%d/stat" % p.pid).read().rsplit(")", 1)[1].split()
    return (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK")


@test
def without_descriptors_clients_wait_and_the_proxy_rests(c, svc):
    sb, vm = c.sandbox({8000: svc.port})
    p = c.start_proxy(8)
    used = max(int(f) for f in os.listdir("/proc/%d/fd" % p.pid))
    resource.prlimit(p.pid, resource.RLIMIT_NOFILE, (used + 40, used + 40))
    held = [socket.create_connection(("127.0.0.1", p.port), 10) for _ in range(80)]
    wait_for(lambda: max(int(f) for f in os.listdir("/proc/%d/fd" % p.pid)) == used + 39, why="the last descriptor to be taken")
    before, t = cpu_s(p), time.monotonic()
    time.sleep(1)
    spent, took = cpu_s(p) - before, time.monotonic() - t
    check(spent < 0.1 * took, "%.2f s of the processor's time in %.2f s of waiting" % (spent, took))
    last = socket.create_connection(("127.0.0.1", p.port), 60)
    last.sendall(("GET /waited HTTP/1.1\r\n%s\r\n" % by(sb)).encode())
    for s in held:
        s.close()
    check(b" 200 " in last.recv(4096), "who has waited is served")
    last.close()
    c.end(p)
    c.end(vm)


ENTRY = sorted("ts client sandbox port request status in out us trace".split())


def log_lines(c, mark, n):
    return wait_for(lambda: (lambda found: found if len(found) >= n else None)([l for l in open(c.dir / "access.log", "rb").read().split(b"\n") if mark.encode() in l]), why="%d lines of %s" % (n, mark))


@test
def clients_cannot_forge_the_access_log(c, svc):
    sb, vm = c.sandbox({8000: svc.port})
    mark = os.urandom(6).hex()
    evil = '/%s","status":200,"x":"\\' % mark
    raw = b"/%s\xff\xfe\xe2\x80\xa8\xc2\x85" % mark.encode()
    equal(get(c, evil, by(sb))[0], 200)
    equal(Raw(c).send(b"GET " + raw + b" HTTP/1.1\r\n" + by(sb).encode() + b"\r\n").answer()[0], 200)
    for trace in ("00-%s-b7ad6b7169203331-01" % ("0" * 32), '00-0af7651916cd43dd8448eb211c8031"\\-b7ad6b7169203331-01', "00-short"):
        equal(get(c, "/" + mark + "/trace", by(sb), "traceparent: %s\r\n" % trace)[0], 200)
    equal(get(c, "/" + mark + "/" + "a" * 20000, by(sb))[0], 200)
    equal(Raw(c).send("GET /%s HTTP/1.1\r\nHost: 1-%s.a\"b\r\n\r\n" % (mark, sb)).answer()[0], 400)
    lines = log_lines(c, mark, 7)
    equal(len(lines), 7, "lines of seven requests")
    for i, line in enumerate(sorted(lines, key=lambda l: json.loads(l)["status"])):  # each thread writes its own
        entry = json.loads(line)
        equal((entry["status"], entry["sandbox"], sorted(entry)), ((200, sb) if i < 6 else (400, "")) + (ENTRY,), line)
        check(re.fullmatch("[0-9a-f]{32}", entry["trace"]) and entry["trace"].strip("0"), "trace of %s" % line)
        check(len(entry["request"]) <= 100, "a line of its own length")
    c.end(vm)


@test
def heads_that_are_refused_are_in_the_access_log(c, svc):
    """With what is known of them: method and path, and nothing that may be a secret."""
    sb, vm = c.sandbox({8000: svc.port})
    secret, marks = os.urandom(6).hex(), [os.urandom(6).hex() for _ in range(9)]
    long = "X: %s\r\n" % ("x" * 40000)
    for mark, want, raw in [(marks[0], 400, "GET /%s?q=" + secret + " HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), (marks[1], 400, "GET /%s HTTP/1.1\r\nX: a\nb\r\n\r\n"),
                            (marks[2], 431, "GET /%s HTTP/1.1\r\n" + long + "\r\n"), (marks[3], 400, "GET /%s\x01\r\x1b[31m" + secret + " HTTP/1.1\r\nHost: x\r\n\r\n"),
                            (marks[4], 400, "GET /%s" + "y" * 500 + " HTTP/9.9\r\n\r\n")]:
        equal(Raw(c).send(raw % mark).answer()[0], want, raw)
    for first in ("%s: \x16\x03\x01%s\r\n\r\n" % (secret, secret), "\x16\x03\x01\r\n\r\n", secret + "\r\n\r\n"):
        equal(Raw(c).send(first).answer()[0], 400)
    for mark, want, more in [(marks[5], 400, ("x", "a\0b")), (marks[6], 400, ("Upper", "1")), (marks[7], 431, ("x", "x" * 33000))]:
        block = request(sb, "/%s?q=%s" % (mark, secret), "GET", more)
        k = H2(c).send(frame(HEADERS, END_STREAM, 1, block[:16000]), *[frame(9, 0, 1, block[i:i + 16000]) for i in range(16000, len(block), 16000)], frame(9, END_HEADERS, 1))
        k.outcome(1)
        k.close()
    k = H2(c).send(frame(HEADERS, END_STREAM, 1, request(sb, "/" + marks[8])), frame(DATA, 0, 1, b"in the middle of a head"))
    while k.read() is not None:
        pass
    for mark, want in zip(marks, [400, 400, 431, 400, 400, 400, 400, 431, 400]):
        lines = [json.loads(l) for l in log_lines(c, mark, 1)]
        equal([(e["status"], e["sandbox"], e["client"], sorted(e)) for e in lines], [(want, "", "127.0.0.1", ENTRY)], "lines of " + mark)
        check(lines[0]["request"].startswith("GET /" + mark) and len(lines[0]["request"]) < 80, "request %r" % lines[0]["request"])
        check(not any(ord(ch) < 32 for ch in lines[0]["request"]), "a control character in %r" % lines[0]["request"])
    log_lines(c, '"request":"-"', 3)  # each thread writes its own, in its time
    text = open(c.dir / "access.log").read()
    check(secret not in text, "a query, or what may be one, in the log")
    equal(text.count('"request":"-"'), 3, "lines of heads of which nothing is known")
    c.end(vm)


@test
def every_phase_has_a_histogram(c, svc):
    sb, vm = c.sandbox({8000: svc.port})
    count = lambda phase: metric(c.proxies[0], 'cube_proxy_phase_seconds_count{phase="%s"}' % phase)
    phases = ("route", "connect", "first_byte", "total")
    before = [count(p) for p in phases]
    for i in range(5):
        equal(get(c, "/h", by(sb))[0], 200)
    wait_for(lambda: all(count(p) - b >= 5 for p, b in zip(phases, before)), why="five more in each of %s" % (phases,))
    c.end(vm)


if __name__ == "__main__":
    svc = Service()
    with Cluster(config="  drain_timeout: 3s\n") as c:
        code = run("ingress operation", c, svc)
    sys.exit(code)
