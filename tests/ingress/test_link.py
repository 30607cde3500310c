"""The relay's link: on one host the guest's descriptor is handed to the proxy, so that the stream outlives the relay, and what the relay reports stays true."""
import hashlib
import os
import re
import resource
import signal
import socket
import struct
import sys
import threading
import time

from check import Skip, check, equal, run, test
from cluster import BUILD, Cluster, die_with_parent, free_port, listening, sandbox_id, wait_for
from service import Service, pattern, pattern_sha
from test_http1 import Raw, by, get, upgrade
from test_lifecycle import BAD_MAC, CLOSED, LIMIT, NOT_READY, OK, STALE, UNKNOWN, preface

HELLO, OPEN, OPENED, MOVED, ENDED, HELD = range(1, 7)
MiB = 1 << 20
PER_SANDBOX = 40


def message(kind, *fields, count=0):
    return b"CBL1" + struct.pack(">BBH", 1, kind, count) + b"".join(f if isinstance(f, bytes) else struct.pack(">Q", f) for f in fields)


class Link:
    """A proxy's end, by hand."""

    def __init__(self, c):
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.s.settimeout(30)
        self.s.connect(str(c.run / "relay/link.sock"))
        hello = self.s.recv(4096)
        equal(hello, message(HELLO, (b"127.0.0.1:%d" % c.relay_port).ljust(64, b"\0")))
        self.last = 0

    def open(self, data):
        self.last += 1
        self.s.send(message(OPEN, self.last, data))
        return self.last

    def opened(self):
        """(stream, status, generation, socket)"""
        got, fds, _, _ = socket.recv_fds(self.s, 4096, 4, socket.MSG_CMSG_CLOEXEC)
        check(len(got) == 32 and got[:8] == message(OPENED) and got[16:20] == b"CBR1", "not an answer: %r" % got)
        check(len(fds) == (got[20] == OK), "descriptors beside %r: %r" % (got, fds))
        sock = socket.socket(fileno=fds[0]) if fds else None
        if sock:
            sock.settimeout(30)
        return struct.unpack(">Q", got[8:16])[0], got[20], struct.unpack(">Q", got[24:])[0], sock

    def ask(self, data):
        stream = self.open(data)
        answer = self.opened()
        equal(answer[0], stream)
        return answer

    def send(self, *m, **kw):
        self.s.send(message(*m, **kw))
        return self

    def is_dropped(self, seconds=30):
        self.s.settimeout(seconds)
        try:
            while self.s.recv(4096):
                pass
        except (ConnectionResetError, BrokenPipeError):
            pass
        self.s.close()


def activity(c, sb):
    """(generation, open, bytes, idle ms) of a sandbox; of one that the relay has not heard of yet, nothing open."""
    with socket.socket(socket.AF_UNIX) as a:
        a.connect(str(c.run / "relay/activity.sock"))
        for line in a.makefile().read().splitlines():
            if line.startswith(sb):
                return tuple(int(n) for n in line.split()[1:])
    return 0, 0, 0, -1
    return 0, 0, 0, -1


def metric(p, name):
    with socket.create_connection(("127.0.0.1", p.admin), 10) as s:
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        found = re.search("^" + re.escape(name) + r" (\d+)$", s.makefile().read(), re.M)
        return int(found.group(1)) if found else 0


def linked(c, *more):
    """Waits until the workers of the first proxy (and of `more`) have their links to the relay that runs now."""
    proxies = [c.proxies[0], *more]
    wait_for(lambda: metric(c.relay, "cube_relay_links") == WORKERS * len(proxies) and all(metric(p, "cube_proxy_relay_links") == WORKERS for p in proxies), why="the links")


def streams(p, way):
    return metric(p, 'cube_proxy_streams_total{way="%s"}' % way)


def relay_dies(c):
    c.relay.kill()
    c.relay.wait()
    c.children.remove(c.relay)


@test
def a_link_opens_what_tcp_opens_after_the_same_checks(c, svc):
    sb, vm = c.sandbox({8000: svc.port}, gen=7)
    wrong, now = "00" * 32, int(time.time())
    k = Link(c)
    for want, data in [(OK, preface(c, sb, 7)), (UNKNOWN, preface(c, sandbox_id(), 7, ticket=wrong)), (STALE, preface(c, sb, 6, ticket=wrong)),
                       (STALE, preface(c, sb, 8, ticket=wrong)), (BAD_MAC, preface(c, sb, 7, ticket=wrong)), (BAD_MAC, preface(c, sb, 7, expiry=now - 2)),
                       (BAD_MAC, preface(c, sb, 7, expiry=now + 120)), (CLOSED, preface(c, sb, 7, port=8001)), (CLOSED, preface(c, sb, 7, port=0))]:
        stream, status, gen, s = k.ask(data)
        equal(status, want)
        equal(gen, 0 if want == UNKNOWN else 7)
        if s:
            s.sendall(b"GET /x HTTP/1.0\r\n\r\n")
            s.shutdown(socket.SHUT_WR)
            check(s.makefile("rb").read().endswith(b"GET /x\n"), "the service's answer")
            equal(activity(c, sb)[1:], (1, 0, -1), "a stream of which nothing was said yet")
            k.send(MOVED, stream, 19, 100, 99, 1, 1, count=2)
            wait_for(lambda: activity(c, sb)[2] == 119, why="its bytes")
            check(activity(c, sb)[3] >= 0, "activity from the first byte on")
            k.send(ENDED, stream, 0, 5)
            wait_for(lambda: activity(c, sb)[1:3] == (0, 124), why="its end")
    c.end(vm)
    equal(k.ask(preface(c, sb, 7))[1], NOT_READY)
    k.s.close()


@test
def limits_hold_over_links_and_tcp_together(c, svc):
    sb, vm = c.sandbox({8000: svc.port})
    k, other = Link(c), Link(c)
    held = [k.ask(preface(c, sb, 1)) for _ in range(PER_SANDBOX - 1)] + [other.ask(preface(c, sb, 1))]
    equal({h[1] for h in held}, {OK})
    for link in (k, other):
        equal(link.ask(preface(c, sb, 1))[1], LIMIT)
    with socket.create_connection(("127.0.0.1", c.relay_port), 30) as s:
        s.sendall(preface(c, sb, 1))
        equal(s.recv(16)[4], LIMIT)
    equal(get(c, "/", by(sb))[0], 429)
    other.s.close()
    wait_for(lambda: activity(c, sb)[1] == PER_SANDBOX - 1, why="the link's end")
    equal(k.ask(preface(c, sb, 1))[1], OK)
    k.s.close()
    wait_for(lambda: activity(c, sb)[1] == 0, why="the link's end")
    for h in held:
        h[3].close()
    c.end(vm)


@test
def streams_that_are_held_are_counted_again_when_their_mac_is_right(c, svc):
    sb, vm = c.sandbox({8000: svc.port}, gen=3)
    k = Link(c)
    for stream, data in enumerate([preface(c, sb, 2), preface(c, sb, 3, ticket="00" * 32), preface(c, sb, 3, expiry=int(time.time()) - 2),
                                   preface(c, sandbox_id(), 3)], 1):
        k.send(HELD, stream, data, count=1).send(MOVED, stream, 1, 1, count=1).send(ENDED, stream, 5, 5)
    k.send(HELD, 10, preface(c, sb, 3))  # a spare: nothing has moved
    wait_for(lambda: activity(c, sb) == (3, 1, 0, -1), why="the spare")
    k.send(HELD, 11, preface(c, sb, 3), count=1)
    wait_for(lambda: activity(c, sb)[1] == 2 and activity(c, sb)[3] >= 0, why="the stream that was in use")
    k.send(ENDED, 10, 0, 0).send(ENDED, 11, 4, 4)
    wait_for(lambda: activity(c, sb)[1:3] == (0, 8), why="the ends")
    k.s.close()
    c.end(vm)


@test
def a_guest_that_says_nothing_holds_a_stream_for_the_handshake_timeout(c, svc):
    sb = sandbox_id()
    with socket.socket(socket.AF_UNIX) as vmm:
        vmm.bind(str(c.generation(sb, 1) / "in.sock"))
        vmm.listen(64)
        c.route(sb, 1)
        k = Link(c)
        t = time.monotonic()
        given_up = k.open(preface(c, sb, 1))
        waits = k.open(preface(c, sb, 1))
        wait_for(lambda: activity(c, sb)[1] == 2, why="both")
        k.send(ENDED, given_up, 0, 0)
        equal(k.opened()[:2], (waits, NOT_READY), "the other gets no answer")
        check(time.monotonic() - t > 1.9, "too early")
        wait_for(lambda: activity(c, sb)[1] == 0, why="none to be counted")
        k.s.close()


@test
def a_proxy_takes_its_own_hosts_relay_over_the_link_and_others_over_tcp(c, svc):
    linked(c)
    near, far = c.proxies
    sb, vm = c.sandbox({8000: svc.port, 49983: svc.port})
    before = [streams(p, way) for p in (near, far) for way in ("link", "tcp")]
    for p in (near, far):
        k = Raw(c, port=p.port)
        for port in (8000, 49983):
            equal(k.send("GET /both HTTP/1.1\r\n%s\r\n" % by(sb, port)).answer()[0], 200)
    grown = [streams(p, way) - b for (p, way), b in zip([(p, way) for p in (near, far) for way in ("link", "tcp")], before)]
    check(grown[0] >= 2 and grown[1] == 0 and grown[2] == 0 and grown[3] >= 2, "streams by way: %r" % grown)
    # A second node on this host: another run directory, another address.
    home, port = c.dir / "node2", free_port()
    other, vm2 = c.sandbox({8000: svc.port})
    (home / "relay").mkdir(parents=True)
    os.rename(c.run / "sb", home / "sb")
    (c.run / "sb").mkdir()
    conf = c.dir / "node2.yaml"
    conf.write_text("common:\n  run_dir: %s\n  state_dir: %s\nrelay:\n  listen: 127.0.0.1:%d\n  admin_listen: 127.0.0.1:%d\n" % (home, home, port, free_port()))
    relay = c.spawn([BUILD / "node/relay/cube-relay", "--config", conf], "relay2")
    wait_for(lambda: listening(port), why="the second relay")
    c.route(other, 1, relay="127.0.0.1:%d" % port)
    before = streams(near, "tcp")
    equal(wait_for(lambda: get(c, "/there", by(other))[0] == 200, why="the other node"), True)
    check(streams(near, "tcp") > before, "another node's stream came over the link")
    relay.kill()
    c.end(relay)
    c.end(vm)
    c.end(vm2)


@test
def streams_outlive_a_killed_relay_and_are_counted_by_the_next(c, svc):
    linked(c)
    sb, vm = c.sandbox({8000: svc.port})
    ws = upgrade(c, sb)
    equal(ws.send("before").f.read(6), b"before")
    up = Raw(c).send("POST /upload HTTP/1.1\r\n%sConnection: close\r\nContent-Length: %d\r\n\r\n" % (by(sb), 8 * MiB))
    blocks = list(pattern(8 * MiB))
    for b in blocks[:40]:
        up.send(b)
    wait_for(lambda: activity(c, sb)[1] == 2 and activity(c, sb)[2] > MiB, why="both streams, counted")
    relay_dies(c)
    equal(ws.send("during").f.read(6), b"during")
    for b in blocks[40:80]:
        up.send(b)
    fresh, vm2 = c.sandbox({49983: svc.port})
    equal(get(c, "/health", by(fresh, 49983))[0], 503, "no new stream without a relay")
    c.relay = c.start_relay()
    wait_for(lambda: activity(c, sb)[1] == 2, why="the streams at the new relay")
    check(activity(c, sb)[3] >= 0, "streams that were in use keep their sandbox awake")
    for b in blocks[80:]:
        up.send(b)
    equal(up.answer()[2].split(), [b"%d" % (8 * MiB), pattern_sha(8 * MiB).encode()])
    equal(ws.send("after").f.read(5), b"after")
    wait_for(lambda: activity(c, sb)[2] > 0, why="the bytes at the new relay")
    ws.s.shutdown(socket.SHUT_RDWR)
    ws.s.close()
    up.s.close()
    wait_for(lambda: activity(c, sb)[1] <= 1, why="the WebSocket's end at the new relay")  # the upload's stream may be kept for another request
    linked(c)
    c.end(vm)
    c.end(vm2)


@test
def an_upgraded_relay_leaves_its_streams_to_the_next_and_ends(c, svc):
    linked(c)
    sb, vm = c.sandbox({8000: svc.port})
    ws = upgrade(c, sb)
    equal(ws.send("one").f.read(3), b"one")
    stop, wrong, n = threading.Event(), [], [0]

    def load():
        while not stop.is_set():
            try:
                status = get(c, "/load", by(sb))[0]
            except Exception as e:
                status = e
            n[0] += 1
            if status != 200:
                wrong.append(status)
    threads = [threading.Thread(target=load, daemon=True) for _ in range(2)]
    for t in threads:
        t.start()
    try:
        wait_for(lambda: n[0] > 20, why="requests before")
        old, seen = c.relay, n[0]
        c.relay = c.start_relay()
        equal(old.wait(40), 0, "the old relay's end")
        c.children.remove(old)
        wait_for(lambda: n[0] > seen + 50, why="requests beside")
    finally:
        stop.set()
        for t in threads:
            t.join()
    equal(wrong, [], "answers of %d" % n[0])
    equal(ws.send("two").f.read(3), b"two")
    linked(c)
    wait_for(lambda: activity(c, sb)[1] >= 1 and activity(c, sb)[3] >= 0, why="the WebSocket at the new relay")
    ws.s.shutdown(socket.SHUT_RDWR)
    ws.s.close()
    c.end(vm)


@test
def what_a_killed_proxy_held_is_no_longer_counted(c, svc):
    sb, vm = c.sandbox({8000: svc.port})
    p = c.start_proxy(5)
    linked(c, p)
    held = [upgrade(c, sb, port=p.port) for _ in range(10)]
    wait_for(lambda: activity(c, sb)[1] == 10, why="the streams")
    p.kill()
    p.wait()
    c.children.remove(p)
    wait_for(lambda: activity(c, sb)[1] == 0 and metric(c.relay, "cube_relay_links") == WORKERS, why="the counts")
    for k in held:
        check(k.ended(), "the client's end")
    c.end(vm)


@test
def a_descriptor_for_which_a_proxy_has_no_room_is_not_counted(c, svc):
    sb, vm = c.sandbox({8000: svc.port})
    p = c.start_proxy(6)
    linked(c, p)
    k = Raw(c, port=p.port)
    equal(k.send("GET / HTTP/1.1\r\n%s\r\n" % by(sandbox_id())).answer()[0], 502)
    usual = resource.prlimit(p.pid, resource.RLIMIT_NOFILE)
    fds = "/proc/%d/fd" % p.pid
    most = max(int(n) for n in os.listdir(fds)) + 1
    resource.prlimit(p.pid, resource.RLIMIT_NOFILE, (most, usual[1]))
    clients = [Raw(c, port=p.port) for _ in range(32)]  # they take what is free below the limit
    wait_for(lambda: len(os.listdir(fds)) == most, why="all descriptors to be taken")
    equal(k.send("GET / HTTP/1.1\r\n%s\r\n" % by(sb)).answer()[0], 503)
    wait_for(lambda: activity(c, sb)[1] == 0, why="none to be counted")
    resource.prlimit(p.pid, resource.RLIMIT_NOFILE, usual)
    equal(k.send("GET / HTTP/1.1\r\n%s\r\n" % by(sb)).answer()[0], 200)
    for x in clients + [k]:
        x.s.close()
    p.kill()
    c.end(p)
    linked(c)
    c.end(vm)


def as_another_user(f, *args):
    """Runs f in a process of a user that is neither root nor anybody's here; it stays until its pipe is closed. Returns (pid, pipe, what f said)."""
    said, say = os.pipe()
    stay, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(said)
            os.close(go)
            die_with_parent()
            os.setgroups([])
            os.setresgid(61234, 61234, 61234)
            os.setresuid(61234, 61234, 61234)
            os.write(say, str(f(*args)).encode())
            os.read(stay, 1)
        finally:
            os._exit(0)
    os.close(say)
    os.close(stay)
    what = os.read(said, 1000)
    os.close(said)
    return pid, go, what


@test
def links_of_other_users_keep_no_proxy_out(c, svc):
    if os.geteuid() != 0:
        raise Skip("needs root, to be another user")
    for d in (c.dir, c.run):
        d.chmod(0o711)  # as on a host
    linked(c)
    before = metric(c.relay, "cube_relay_links")

    def hostile():
        kept, welcome = [], 0
        for _ in range(400):
            kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            kept[-1].connect(str(c.run / "relay/link.sock"))
        for s in kept:
            try:
                welcome += len(s.recv(4096)) > 0
            except ConnectionResetError:
                pass
        globals()["hostage"] = kept
        return welcome
    pid, go, welcome = as_another_user(hostile)
    try:
        equal((welcome, metric(c.relay, "cube_relay_links") - before), (b"32", 32), "links of another user")
        p = c.start_proxy(9)
        linked_more = lambda: metric(c.relay, "cube_relay_links") == before + 32 + WORKERS
        wait_for(linked_more, why="the links of a proxy that comes after")
        sb, vm = c.sandbox({8000: svc.port})
        was = streams(p, "link")
        equal(Raw(c, port=p.port).send("GET / HTTP/1.1\r\n%s\r\n" % by(sb)).answer()[0], 200)
        check(streams(p, "link") > was, "its stream came over TCP")
        c.end(p)
        c.end(vm)
    finally:
        os.close(go)
        os.waitpid(pid, 0)
    wait_for(lambda: metric(c.relay, "cube_relay_links") == before, why="the other user's links to be gone")


@test
def a_relay_goes_by_the_name_that_routes_give_it(c, svc):
    """relay.address is what routes say, relay.listen is where it listens: behind a translated address they differ."""
    home, port, listen = c.dir / "node3", free_port(), free_port()
    (home / "relay").mkdir(parents=True)
    (home / "sb").mkdir()
    conf, admin = c.dir / "node3.yaml", free_port()
    conf.write_text("common:\n  run_dir: %s\n  state_dir: %s\nrelay:\n  listen: 127.0.0.1:%d\n  address: 127.0.0.9:%d\n  admin_listen: 127.0.0.1:%d\n" % (home, home, listen, port, admin))
    relay = c.spawn([BUILD / "node/relay/cube-relay", "--config", conf], "relay3")
    wait_for(lambda: listening(listen) and listening(admin), why="the relay with another name")
    p = c.start_proxy(10, link=home / "relay/link.sock")
    wait_for(lambda: metric(p, "cube_proxy_relay_links") == WORKERS, why="its links")
    sb, vm = c.sandbox({8000: svc.port})
    os.rename(c.run / "sb" / sb, home / "sb" / sb)
    for relay_name, way, other in (("127.0.0.9:%d" % port, "link", "tcp"), ("127.0.0.1:%d" % listen, "tcp", "link")):
        c.route(sb, 1, relay=relay_name)
        before = streams(p, way), streams(p, other)

        def served():
            k = Raw(c, port=p.port)
            ok = k.send("GET / HTTP/1.1\r\n%sConnection: close\r\n\r\n" % by(sb)).answer()[0] == 200
            k.f.close()
            k.s.close()
            return ok and streams(p, way) > before[0]
        wait_for(served, why="a stream to %s by %s" % (relay_name, way))
        if way == "link":
            equal(streams(p, other), before[1], "nobody listens on the other name")
    relay.kill()
    c.end(relay)
    c.end(p)
    c.end(vm)


@test
def a_relay_that_stands_still_holds_no_stream_up(c, svc):
    """SIGSTOP: its socket takes questions and answers none. What it has handed over goes on, new streams end with 503 within the time for connecting, and when it
    goes on it has counted nothing wrong."""
    linked(c)
    p = c.start_proxy(11, more="  connect_timeout: 1s\n")
    linked(c, p)
    sb, vm = c.sandbox({8000: svc.port, 49983: svc.port})
    fresh, vm2 = c.sandbox({8000: svc.port, 49983: svc.port})
    ws = upgrade(c, sb, port=p.port)
    equal(ws.send("before").f.read(6), b"before")
    up = Raw(c, port=p.port).send("POST /upload HTTP/1.1\r\n%sContent-Length: 9\r\n\r\nhalf " % by(sb))
    wait_for(lambda: activity(c, sb)[1] == 2, why="both streams, counted")
    k = Raw(c, port=p.port)
    equal(k.send("GET /health HTTP/1.1\r\n%s\r\n" % by(fresh)).answer()[0], 200)
    os.kill(c.relay.pid, signal.SIGSTOP)
    try:
        t = time.monotonic()
        status = k.send("GET /health HTTP/1.1\r\n%s\r\n" % by(fresh)).answer()[0]
        check(status == 200 or time.monotonic() - t > 1, "a kept stream gave %d" % status)  # kept for 4 s: a machine that stood still for so long has none
        equal(ws.send("during").f.read(6), b"during")
        t = time.monotonic()
        new = [Raw(c, port=p.port).send("GET /health HTTP/1.1\r\n%s\r\n" % by(sb, 49983)) for _ in range(4)]
        equal([n.answer()[0] for n in new], [503] * 4, "new streams while the relay stands still")
        print("   503 after %.1f s" % (time.monotonic() - t))
        equal(ws.send("still").f.read(5), b"still")
        equal(up.send("full").answer()[0], 200)
    finally:
        os.kill(c.relay.pid, signal.SIGCONT)
    wait_for(lambda: Raw(c, port=p.port).send("GET /health HTTP/1.1\r\n%sConnection: close\r\n\r\n" % by(sb, 49983)).answer()[0] == 200, why="new streams when it goes on")
    ws.s.shutdown(socket.SHUT_RDWR)
    ws.s.close()
    c.end(p)
    wait_for(lambda: activity(c, sb)[1] == 0 and activity(c, fresh)[1] == 0, why="the counts")
    linked(c)
    c.end(vm)
    c.end(vm2)


@test
def nonsense_floods_and_silence_on_a_link_hurt_nobody_else(c, svc):
    linked(c)
    sb, vm = c.sandbox({8000: svc.port})
    ws = upgrade(c, sb)
    good = preface(c, sb, 1)
    for junk in [b"x", b"GET / HTTP/1.1\r\n\r\n", message(OPENED, 1, bytes(16)), message(HELLO, bytes(64)), message(OPEN, 1, bytes(64)), message(OPEN, 1, good) + b"x",
                 message(MOVED, 1, 1, 1, count=2), message(99), message(HELD, 1, good, count=2), message(OPEN, 1, good)[:-1], os.urandom(60000),
                 b"CBL2" + message(OPEN, 1, good)[4:]]:
        k = Link(c)
        k.s.send(junk)
        k.is_dropped()
    k = Link(c)
    stream = k.ask(good)[0]
    k.s.send(message(OPEN, stream, good))  # a number twice
    k.is_dropped()
    # Descriptors beside a message are thrown away.
    k = Link(c)
    fds = len(os.listdir("/proc/%d/fd" % c.relay.pid))
    for i in range(20):
        socket.send_fds(k.s, [message(ENDED, 1, 1, 1)], [0, 1, 2])
    equal(k.ask(good)[1], OK)
    wait_for(lambda: len(os.listdir("/proc/%d/fd" % c.relay.pid)) <= fds, why="the relay to hold no descriptor more")
    k.s.close()
    # More questions than may be unanswered, to guests that do not answer.
    mute = [sandbox_id() for _ in range(-(-520 // PER_SANDBOX))]
    vmms = []
    for m in mute:
        vmms.append(socket.socket(socket.AF_UNIX))
        vmms[-1].bind(str(c.generation(m, 1) / "in.sock"))
        vmms[-1].listen(64)
    k = Link(c)
    try:
        for i in range(520):
            k.open(preface(c, mute[i % len(mute)], 1))
    except (BrokenPipeError, ConnectionResetError):
        pass
    k.is_dropped()
    wait_for(lambda: not any(activity(c, m)[1] for m in mute), why="the flood to be forgotten")
    for v in vmms:
        v.close()
    # One that asks and never reads: the relay stops reading it.
    k = Link(c)
    k.s.setblocking(False)
    asked = 0
    try:
        while asked < 100000:
            k.open(preface(c, sb, 1, ticket="00" * 32))
            asked += 1
    except BlockingIOError:
        pass
    check(asked < 100000, "it never stopped")
    wait_for(lambda: metric(c.relay, "cube_relay_links") == WORKERS + 1, why="the earlier links to be gone")
    many = []
    for _ in range(300):
        many.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        many[-1].connect(str(c.run / "relay/link.sock"))  # waits while the queue is full
    welcome = [len(s.recv(4096)) for s in many]
    equal((sum(n > 0 for n in welcome), metric(c.relay, "cube_relay_links")), (256 - WORKERS - 1, 256), "links beside the proxy's and the silent one")
    equal(get(c, "/", by(sb))[0], 200, "a request beside")
    equal(ws.send("still").f.read(5), b"still")
    k.s.setblocking(True)
    for _ in range(asked):  # and answers in their order once it reads
        equal(k.opened()[1], BAD_MAC)
    for x in many + [k.s]:
        x.close()
    ws.s.close()
    linked(c)
    c.end(vm)


WORKERS = 2

if __name__ == "__main__":
    svc = Service()
    with Cluster(proxies=2, tcp=(1,), config="  threads: %d\n" % WORKERS,
                 relay_config="  handshake_timeout: 2s\n  max_streams_per_sandbox: %d\n" % PER_SANDBOX) as c:
        code = run("ingress link", c, svc)
    sys.exit(code)
