"""What holds for the whole process, whatever the number of its threads: limits per sandbox and per client address, and the entry in discovery."""
import hashlib
import json
import os
import re
import select
import signal
import socket
import struct
import sys
import threading
import time

from check import check, equal, run, test
from cluster import Cluster, wait_for
from service import Service, pattern_sha
from test_attack import CONTINUATION, DATA, END_HEADERS, END_STREAM, H2, HEADERS, WINDOW, fields, frame, request, rss_now
from test_http1 import SANITIZED, Raw, by, get, upgrade

MiB = 1 << 20
PER_SANDBOX, PER_CLIENT = 6, 20


def fill(c, sb, svc, n):
    """`n` requests that the service holds, on connections of their own, so that every thread has some."""
    before = len([s for s in svc.seen if s["path"] == "/quiet"])
    held = [Raw(c).send("GET /quiet HTTP/1.1\r\n%s\r\n" % by(sb)) for _ in range(n)]
    wait_for(lambda: len([s for s in svc.seen if s["path"] == "/quiet"]) == before + n, why="the requests at the service")
    return held


def end(k):
    k.f.close()
    k.s.close()


@test
def requests_per_sandbox_are_limited_over_all_threads(c, svc):
    sb, vm = c.sandbox({8000: svc.port})
    other, vm2 = c.sandbox({8000: svc.port})
    held = fill(c, sb, svc, PER_SANDBOX)
    for _ in range(12):  # whichever thread gets it
        status, headers, body = get(c, "/", by(sb))
        equal((status, json.loads(body)["connectionLimit"], headers.get("retry-after")), (429, PER_SANDBOX, "1"))
    equal(get(c, "/", by(other))[0], 200, "another sandbox is not concerned")
    end(held.pop())
    wait_for(lambda: get(c, "/", by(sb))[0] == 200, why="room for one")
    for k in held:
        end(k)
    c.end(vm)
    c.end(vm2)


@test
def a_burst_to_a_route_that_is_not_known_yet_is_served(c, svc):
    big = Cluster(proxies=0, config="  threads: 1\n")
    try:
        big.proxies = [big.start_proxy()]
        big.port = big.proxies[0].port
        sb, vm = big.sandbox({8000: svc.port})
        os.kill(big.children[0].pid, signal.SIGSTOP)  # Redis holds the look-up until all are there
        h2 = [H2(big) for _ in range(15)]
        for k in h2:
            k.send(*[frame(HEADERS, END_HEADERS | END_STREAM, 1 + 2 * i, request(sb, "/burst")) for i in range(80)])
        time.sleep(0.5)
        os.kill(big.children[0].pid, signal.SIGCONT)
        for k in h2:
            ended = set()
            while len(ended) < 80:
                kind, flags, stream, payload = k.read()
                if kind == HEADERS:
                    equal(payload[0], 0x88, "status 200 of stream %d" % stream)
                if flags & END_STREAM and kind in (HEADERS, 0):
                    ended.add(stream)
    finally:
        big.close()


def came_from(address, port):
    s = socket.socket()
    s.bind((address, 0))
    s.connect(("127.0.0.1", port))
    s.settimeout(20)
    return s


def alive(s, host):
    try:
        s.sendall(("GET / HTTP/1.1\r\n%s\r\n" % host).encode())
        return s.recv(12) == b"HTTP/1.1 200"
    except OSError:
        return False


@test
def connections_per_client_address_are_limited_over_all_threads(c, svc):
    sb, vm = c.sandbox({8000: svc.port})
    held = [came_from("127.0.0.2", c.port) for _ in range(PER_CLIENT)]
    check(all(alive(s, by(sb)) for s in held), "as many as the limit are served")
    for _ in range(12):
        s = came_from("127.0.0.2", c.port)
        check(not alive(s, by(sb)), "one more is closed")
        s.close()
    s = came_from("127.0.0.3", c.port)
    check(alive(s, by(sb)), "another address is served")
    s.close()
    held.pop().close()

    def room():
        s = came_from("127.0.0.2", c.port)
        ok = alive(s, by(sb))
        s.close()
        return ok
    wait_for(room, why="room for one")
    for s in held:
        s.close()
    c.end(vm)


@test
def a_proxy_is_in_discovery_until_it_drains(c, svc):
    members = lambda: [m.decode() for m in c.redis("ZRANGEBYSCORE", "{c0}:svc:proxy", int(time.time() * 1000), "+inf")]
    wait_for(lambda: len(members()) == len(c.proxies), why="every proxy in discovery")
    listens = sorted(m.split()[1] for m in members())
    equal(listens, sorted("127.0.0.1:%d" % p.port for p in c.proxies))
    instance, address = members()[0].split()
    equal(c.redis("GET", "{c0}:svc:proxy:" + instance).decode(), address)
    check(0 < int(c.redis("PTTL", "{c0}:svc:proxy:" + instance)) <= 3000, "it has a time to live")
    gone = c.proxies.pop()
    gone.send_signal(signal.SIGTERM)
    gone.wait(20)
    c.children.remove(gone)
    wait_for(lambda: "127.0.0.1:%d" % gone.port not in [m.split()[1] for m in members()], 20, "the drained one to be gone")
    equal(len(members()), len(c.proxies))


def most_unread(way):
    """How far a fast sender gets ahead of a reader that stops after 48 MiB; both ends have small buffers of their own."""
    head, held, fast = b"", 0, 48 * MiB
    with socket.socket() as l:
        l.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        l.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        l.bind(("127.0.0.1", 0))
        l.listen(1)
        with socket.socket() as k:
            k.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            k.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
            s = way(l, k)
            sender, reader = (k, s)
            with s:
                while b"\r\n\r\n" not in head:
                    head += s.recv(4096)
                if head.startswith(b"GET"):
                    s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 30))
                    sender, reader, head = s, k, b""
                got, sent, block = len(head), 0, bytes(MiB)
                sender.setblocking(False)
                reader.setblocking(False)
                while True:
                    r, w, _ = select.select([reader] if got < fast else [], [sender], [], 1)
                    if not r and not w:
                        return (sent - got) / MiB
                    if w:
                        sent += sender.send(block)
                    while r and got < fast:  # as fast as it can, so that the kernel makes the buffers large
                        try:
                            got += len(reader.recv(MiB))
                        except BlockingIOError:
                            break


@test
def a_reader_that_stops_holds_its_sender(c, svc):
    def start(request):
        def way(l, k):
            mine, vm = c.sandbox({8000: l.getsockname()[1]})
            k.connect(("127.0.0.1", c.port))
            k.sendall(request % by(mine).encode())
            l.settimeout(30)
            return l.accept()[0]
        return way
    for what, request in (("an upload", b"POST / HTTP/1.1\r\n%%sContent-Length: %d\r\n\r\n" % (1 << 30)), ("a download", b"GET / HTTP/1.1\r\n%s\r\n")):
        held = most_unread(start(request))
        print("   %s that was fast and is read no more: %.1f MiB on the way" % (what, held))
        # Three connections; the programs hold little, and the kernel at most `stream_buffer` (1 MiB) for each, beside what is unsent.
        check(held < 7, "a sender was let %.1f MiB ahead" % held)


def metric(p, line):
    """The number behind the first match of `line` in a process' metrics."""
    with socket.create_connection(("127.0.0.1", p.admin), 10) as s:
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        text = s.makefile().read()
    return int(re.search(line + r" (\d+)", text).group(1))


def left(s):
    """Whether the proxy has closed the connection; it has said nothing before."""
    waiting = select.poll()
    waiting.register(s, select.POLLIN)
    return bool(waiting.poll(0))


HELD = 4 * MiB


@test
def what_waits_in_the_process_is_bounded(c, svc):
    """Heads that never end, then requests with large heads that nobody answers: the ones that hold most go, small ones stay."""
    small = Cluster(proxies=0, config="  threads: 1\n  max_buffered: %d\n" % HELD)
    try:
        p = small.start_proxy()
        small.proxies, small.port = [p], p.port
        sb, vm = small.sandbox({8000: svc.port})
        equal(get(small, "/", by(sb))[0], 200)
        patient = Raw(small).send("GET / HTTP/1.1\r\nX: ")
        before, n = rss_now(p), 800
        half = [Raw(small) for _ in range(n)]
        for k in half:
            k.send(b"GET / HTTP/1.1\r\nX: " + b"x" * 31000)
        stay = lambda: sum(not left(k.s) for k in half)
        wait_for(lambda: stay() <= HELD // 32768, why="the heads above the limit to be dropped")
        held = rss_now(p) - before
        print("   %d half heads of 31 KB each: %d stay, the proxy holds %.1f MiB" % (n, stay(), held))
        check(SANITIZED or held < 18, "%.1f MiB held" % held)  # the limit, and the heads of one turn (256 sockets)
        wait_for(lambda: metric(p, 'event="dropped_for_memory"}') >= n - HELD // 32768, why="all of them to be counted")
        for k in half:
            end(k)
        equal(patient.send("y\r\n%s\r\n" % by(sb)).answer()[0], 200, "a small head that took its time")
        k = H2(small)
        try:
            for i in range(250):
                k.send(frame(HEADERS, END_STREAM, 1 + 2 * i, request(sb, "/quiet", "GET", ("x", "x" * 15000))),
                       frame(CONTINUATION, END_HEADERS, 1 + 2 * i, fields(("x", "x" * 14000))))
        except ConnectionError:
            pass
        wait_for(lambda: k.read() is None, why="the client with the large heads to be dropped")
        k.close()
        equal(patient.send("GET / HTTP/1.1\r\n%s\r\n" % by(sb)).answer()[0], 200, "others are served")
    finally:
        small.close()


@test
def a_client_that_reads_one_stream_of_many_gets_it_whole(c, svc):
    """The others hold what a client may hold in all, so this one gets little at a time, but it gets it."""
    many = Cluster(proxies=0, config="  threads: 1\n")
    try:
        p = many.start_proxy()
        many.proxies, many.port = [p], p.port
        sb, vm = many.sandbox({8000: svc.port})
        equal(get(many, "/", by(sb))[0], 200)
        before, n, streams = rss_now(p), 3 * MiB, 150
        svc.seen.clear()
        k = H2(many, settings=struct.pack(">HI", 4, 0))  # initial window 0
        k.send(*[frame(HEADERS, END_HEADERS | END_STREAM, 1 + 2 * i, request(sb, "/download?n=%d" % n)) for i in range(streams)])
        wait_for(lambda: len(svc.seen) == streams and all(s.get("sent", 0) for s in svc.seen), why="the downloads to begin")
        k.send(frame(WINDOW, 0, 0, struct.pack(">I", n)), frame(WINDOW, 0, 2 * streams - 1, struct.pack(">I", n)))
        got = hashlib.sha256()
        while True:
            kind, flags, stream, payload = k.read()
            if kind == DATA and stream == 2 * streams - 1:
                got.update(payload)
                if flags & END_STREAM:
                    break
        equal(got.hexdigest(), pattern_sha(n), "bytes of the stream that was read")
        held = rss_now(p) - before
        print("   %d streams of one client, of which it reads one: the proxy holds %.1f MiB" % (streams, held))
        check(SANITIZED or held < 8, "%.1f MiB held" % held)
        k.close()
    finally:
        many.close()


@test
def a_body_that_comes_too_slowly_is_given_up_and_only_that(c, svc):
    """What counts is time in which the service would take bytes and the client sends none; streams of messages and answers that have begun may be silent."""
    slow = Cluster(proxies=0, config="  threads: 1\n  body_timeout: 1s\n  body_min_rate: 1000\n")
    try:
        p = slow.start_proxy()
        slow.proxies, slow.port = [p], p.port
        sb, vm = slow.sandbox({8000: svc.port})
        t = time.monotonic()
        stays = [Raw(slow).send("POST /duplex HTTP/1.1\r\n%sContent-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\n\r\n" % by(sb)),
                 Raw(slow).send("POST /upload HTTP/1.1\r\n%sContent-Type: application/connect+proto\r\nTransfer-Encoding: chunked\r\n\r\n" % by(sb)),
                 Raw(slow).send("POST /duplex HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n\r\n" % by(sb)), Raw(slow).send("GET /quiet HTTP/1.1\r\n%s\r\n" % by(sb)), upgrade(slow, sb)]
        for i in (0, 2):
            stays[i].head()
        # Its first bytes allow it a minute, however long this machine stands still.
        steady = Raw(slow).send(b"POST /upload HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n" % (by(sb).encode(), 20 * 65536) + bytes(65536))
        lazy = [Raw(slow).send("POST /upload HTTP/1.1\r\n%sContent-Length: 1000000\r\n\r\n" % by(sb)),
                Raw(slow).send("POST /upload HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n\r\n" % by(sb)).send("f4240\r\n")]
        h2 = H2(slow).send(frame(HEADERS, END_HEADERS, 1, request(sb, "/upload", "POST")))
        h2.s.settimeout(0.05)
        ends = {}
        sent, got = 1, b""
        while len(ends) < 3 and time.monotonic() - t < 60:
            if sent < 20:
                steady.send(bytes(65536))
                sent += 1
            for i, k in enumerate(lazy):
                if i not in ends and left(k.s):
                    ends[i] = k.answer()[0]
                elif i not in ends:
                    k.send("x")
            if 2 not in ends:
                try:
                    h2.send(frame(DATA, 0, 1, b"x"))
                    got += h2.s.recv(65536)
                except TimeoutError:
                    pass
                if b"408" in got:  # in the body
                    ends[2] = 408
            time.sleep(0.1)
        equal(ends, {0: 408, 1: 408, 2: 408}, "answers to bodies of ten bytes a second")
        check(time.monotonic() - t >= 1, "too early")
        wait_for(lambda: metric(p, 'event="slow_bodies"}') == 3, why="three of them to be counted, and no other")
        while sent < 20:
            steady.send(bytes(65536))
            sent += 1
        equal(steady.answer()[0], 200, "a body that comes fast enough")
        time.sleep(max(0, t + 3 - time.monotonic()))
        check(not any(left(k.s) for k in stays), "streams that may be silent")
        equal(stays[1].send("0\r\n\r\n").answer()[0], 200)
        equal(metric(p, 'event="slow_bodies"}'), 3, "bodies given up")
        for k in stays + lazy + [steady, h2]:
            end(k)
    finally:
        slow.close()


@test
def a_body_that_the_service_takes_slowly_is_not_given_up(c, svc):
    slow = Cluster(proxies=0, config="  threads: 1\n  body_timeout: 1s\n  body_min_rate: 100000000\n")  # bytes earn next to nothing
    try:
        p = slow.start_proxy()
        slow.proxies, slow.port = [p], p.port
        sb, vm = slow.sandbox({8000: svc.port})
        n = 12 * MiB
        k = Raw(slow).send("POST /upload?slow=0.015 HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n" % (by(sb), n))  # 192 blocks: 3 s and more at the service
        t = time.monotonic()
        k.send(bytes(n))
        equal(k.answer()[0], 200)
        check(time.monotonic() - t > 2, "it was not slow")
    finally:
        slow.close()


@test
def kept_connections_of_one_sandbox_are_bounded(c, svc):
    """A guest that serves all its ports, and a client that asks each of them."""
    few = Cluster(proxies=0, config="  threads: 1\n")
    try:
        p = few.start_proxy()
        few.proxies, few.port = [p], p.port
        ports = range(9000, 9300)
        sb, vm = few.sandbox({port: svc.port for port in ports})
        k = Raw(few)
        for port in ports:
            equal(k.send("GET / HTTP/1.1\r\n%s\r\n" % by(sb, port)).answer()[0], 200)
        wait_for(lambda: metric(few.relay, "cube_relay_streams") <= 256, why="what is more than it may keep to be closed")
    finally:
        few.close()


if __name__ == "__main__":
    svc = Service()
    with Cluster(proxies=2, config="  threads: 4\n  max_connections_per_sandbox: %d\n  max_connections_per_client: %d\n  stream_buffer: 1048576\n" % (PER_SANDBOX, PER_CLIENT), relay_config="  stream_buffer: 1048576\n") as c:
        code = run("ingress limits", c, svc)
    sys.exit(code)
