"""Generations, wake, relay checks, restarts and upgrades: what happens to requests while sandboxes come and go."""
import hashlib
import hmac
import json
import os
import queue
import random
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

from check import check, equal, run, test
from cluster import BUILD, Cluster, die_with_parent, listening, sandbox_id, wait_for
from service import Service
from test_http1 import Raw, by, get, upgrade

OK, STALE, UNKNOWN, CLOSED, NOT_READY, BAD_MAC, LIMIT = range(7)


class Lifecycle:
    """The Wake service; `calls` holds (sandbox, gen)."""

    def __init__(self, c):
        self.calls = queue.Queue()
        key = c.dir / "keys" / "lifecycle.key"
        if not key.exists():
            key.write_text(os.urandom(32).hex() + "\n")
            key.chmod(0o600)
        self.p = subprocess.Popen([str(BUILD / "tests/ingress/wake-server"), "127.0.0.1:%d" % c.lifecycle_port, str(c.dir / "keys")],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        equal(self.p.stdout.readline(), "ready\n")
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.p.stdout:
            _, sandbox, gen = line.split()
            self.calls.put((sandbox, int(gen)))

    def answer(self, line):
        self.p.stdin.write(line + "\n")
        self.p.stdin.flush()


def preface(c, sandbox, gen, port=8000, ticket=None, expiry=None, magic=b"CBR1", version=1):
    head = magic + struct.pack(">BBH", version, 0, port) + sandbox.encode().ljust(24, b"\0") + struct.pack(
        ">QII", gen, int(time.time()) + 30 if expiry is None else expiry, random.getrandbits(32))
    return head + hmac.new(bytes.fromhex(ticket or c.ticket(sandbox, gen)), head, hashlib.sha256).digest()[:16]


def relay_ask(c, data, then=b""):
    s = socket.create_connection(("127.0.0.1", c.relay_port), 30)
    s.sendall(data)
    got = b""
    while len(got) < 16:
        b = s.recv(16 - len(got))
        if not b:
            return None, 0, s
        got += b
    equal(got[:4] + got[5:8], b"CBR1\0\0\0")
    return got[4], struct.unpack(">Q", got[8:])[0], s


@test
def relay_checks_in_the_contracts_order(c, svc, life):
    sb, vm = c.sandbox({8000: svc.port}, gen=7)
    wrong = "00" * 32
    now = int(time.time())
    for want, data in [(OK, preface(c, sb, 7)), (UNKNOWN, preface(c, sandbox_id(), 7, ticket=wrong)), (STALE, preface(c, sb, 6, ticket=wrong)),
                       (STALE, preface(c, sb, 8, ticket=wrong)), (BAD_MAC, preface(c, sb, 7, ticket=wrong)), (BAD_MAC, preface(c, sb, 7, expiry=now - 2)),
                       (BAD_MAC, preface(c, sb, 7, expiry=now + 120)), (CLOSED, preface(c, sb, 7, port=8001)), (CLOSED, preface(c, sb, 7, port=0)),
                       (UNKNOWN, preface(c, "i0" + "0" * 19, 7, ticket=wrong))]:
        status, gen, s = relay_ask(c, data)
        equal(status, want)
        if want in (STALE, BAD_MAC, OK, CLOSED):
            equal(gen, 7)
        s.close()
    for junk in [preface(c, sb, 7, magic=b"XXXX"), preface(c, sb, 7, version=9), b"GET / HTTP/1.1\r\n" * 4, preface(c, "../../etc/passwd", 7, ticket=wrong)]:
        try:
            equal(relay_ask(c, junk)[0], None, "an answer to junk")
        except ConnectionResetError:
            pass
    c.end(vm)
    equal(relay_ask(c, preface(c, sb, 7))[0], NOT_READY)


@test
def relay_passes_bytes_and_half_close(c, svc, life):
    sb, vm = c.sandbox({8000: svc.port})
    status, _, s = relay_ask(c, preface(c, sb, 1))
    equal(status, OK)
    s.sendall(b"GET /x HTTP/1.0\r\n\r\n")
    s.shutdown(socket.SHUT_WR)
    got = b""
    while True:
        b = s.recv(4096)
        if not b:
            break
        got += b
    check(got.endswith(b"GET /x\n"), "answer after half-close: %r" % got)
    with socket.socket(socket.AF_UNIX) as a:
        a.connect(str(c.run / "relay/activity.sock"))
        lines = [l.split() for l in a.makefile().read().splitlines()]
    mine = [l for l in lines if l[0] == sb]
    check(mine and mine[0][1] == "1" and int(mine[0][3]) > 20 and int(mine[0][4]) >= 0, "activity %r" % lines)
    c.end(vm)


@test
def more_streams_than_wait_in_the_vmms_queue_are_not_refused(c, svc, life):
    sb = sandbox_id()
    with socket.socket(socket.AF_UNIX) as vmm:
        vmm.bind(str(c.generation(sb, 1) / "in.sock"))
        vmm.listen(1)
        vmm.settimeout(20)
        asked = [socket.create_connection(("127.0.0.1", c.relay_port), 30) for _ in range(12)]
        for s in asked:
            s.sendall(preface(c, sb, 1))
        time.sleep(0.3)  # none is accepted for a while
        served = []
        for _ in asked:
            v = vmm.accept()[0]
            served.append(v)
            v.recv(2)
            v.sendall(b"\0")
        for s in asked:
            equal(s.recv(16)[4:5], b"\0", "the relay's answer")
        for s in asked + served:
            s.close()


@test
def a_new_generation_is_reached_and_the_old_one_never_again(c, svc, life):
    old, new = Service(), Service()
    sb, vm1 = c.sandbox({8000: old.port})
    keep = [Raw(c) for _ in range(4)]
    for k in keep:
        equal(k.send("GET /a HTTP/1.1\r\n%s\r\n" % by(sb)).answer()[0], 200)
    quiet = Raw(c).send("GET /sse HTTP/1.1\r\n%s\r\n" % by(sb))
    quiet.head()
    vm2 = c.vm(sb, 2, {8000: new.port})  # the old VM still answers: only the generation keeps it out
    n = len(old.seen)
    t = time.monotonic()
    c.route(sb, 2)
    wait_for(lambda: old.last("/sse")["end"] == "gone", 20, "the old stream to end")
    print("   old stream ended %.1f ms after the route changed" % ((time.monotonic() - t) * 1000))
    for k in keep:
        equal(k.send("GET /b HTTP/1.1\r\n%s\r\n" % by(sb)).answer()[0], 200)
    equal(len(old.seen), n, "requests that reached the old generation")
    equal([s["path"] for s in new.seen], ["/b"] * 4)
    c.end(vm1)
    c.end(vm2)


class Tunnels:
    """A service that upgrades every connection and keeps what comes after; one thread. From the first that ends on it talks to all others."""

    def __init__(self):
        self.l = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port, self.said, self.ended, self.open = self.l.getsockname()[1], [], 0, set()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        ready = selectors.DefaultSelector()
        ready.register(self.l, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                s = key.fileobj
                if s is self.l:
                    s = s.accept()[0]
                    s.setblocking(False)
                    ready.register(s, selectors.EVENT_READ)
                    continue
                try:
                    got = s.recv(65536)
                except ConnectionError:
                    got = b""
                if not got:
                    ready.unregister(s)
                    s.close()
                    self.open.discard(s)
                    self.ended += 1
                    for other in self.open if self.ended == 1 else ():
                        try:
                            other.send(b"old")
                        except OSError:
                            pass
                elif s in self.open:
                    self.said.append(got)
                else:
                    s.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
                    self.open.add(s)


@test
def thousands_of_old_streams_end_between_the_requests_of_others(c, svc, life):
    """One thread, and a client that always has requests waiting for it: they are served between the ends. And from the first end on no old stream carries a byte."""
    one, old, n = Cluster(config="  threads: 1\n"), Tunnels(), 1200
    try:
        sb, vm = one.sandbox({8000: old.port})
        held, many = [], b"GET /init HTTP/1.1\r\n%s\r\n" % by(sb, 49983).encode() * 200  # answered by the proxy itself
        for i in range(n):
            k = Raw(one).send("GET /tunnel HTTP/1.1\r\n%sConnection: Upgrade\r\nUpgrade: x\r\n\r\n" % by(sb))
            equal(k.head()[0], 101)
            held.append(k)
        wait_for(lambda: len(old.open) == n, why="the streams at the service")
        beside, stop = Raw(one), threading.Event()

        def ask():
            while not stop.is_set():
                beside.send(many)

        def take():
            try:
                while beside.s.recv(262144):
                    pass
            except ConnectionResetError:
                pass
        threads = [threading.Thread(target=f, daemon=True) for f in (ask, take)]
        for t in threads:
            t.start()
        ends = select.poll()
        for k in held:
            ends.register(k.s, select.POLLIN)
        one.route(sb, 2)
        ends.poll(60000)
        for k in held:
            try:
                k.s.send(b"late")
            except OSError:
                pass
        for k in held:
            check(k.ended(60), "a byte of the old generation came through, or no end")
        wait_for(lambda: old.ended == n, why="the ends at the service")
        stop.set()
        threads[0].join()
        equal(old.said, [], "what the old generation was told after the first end")
        beside.s.shutdown(socket.SHUT_RDWR)
        threads[1].join()
        one.end(one.proxies.pop())  # so that its log is whole
        order = ["/tunnel" in l for l in open(one.dir / "access.log")]
        first, last = order.index(True), len(order) - order[::-1].index(True)
        between = order[first:last].count(False)
        equal(order.count(True), n, "lines of the streams")
        print("   %d requests of another client were served between the ends of %d streams" % (between, n))
        check(between > 0, "all streams were closed in one turn")
    finally:
        one.close()


@test
def a_missed_event_is_mended_by_the_relays_answer(c, svc, life):
    new = Service()
    sb, vm1 = c.sandbox({8000: svc.port})
    equal(get(c, "/", by(sb))[0], 200)
    vm2 = c.vm(sb, 2, {8000: new.port})
    c.redis("HSET", "{c0}:rt:" + sb, "gen", 2, "ticket", c.ticket(sb, 2))  # no event
    equal(get(c, "/", by(sb))[0], 200)
    wait_for(lambda: get(c, "/n", by(sb))[0] == 200 and new.seen, 40, "a request at the new generation")
    c.end(vm1)
    c.end(vm2)


@test
def dead_paused_and_redis_away(c, svc, life):
    sb, vm = c.sandbox({8000: svc.port})
    equal(get(c, "/", by(sb))[0], 200)
    # The event is on its way to the proxy's threads: how long it takes is measured by `cube bench ingress`.
    c.route(sb, 1, state="paused")
    wait_for(lambda: get(c, "/", by(sb))[0] == 502, why="the pause being known")
    c.route(sb, 1)
    wait_for(lambda: get(c, "/", by(sb))[0] == 200, why="the resume being known")
    c.end(vm)
    c.route(sb, 1, state="gone")

    def gone():
        status, _, body = get(c, "/", by(sb))
        return (status, json.loads(body)["message"]) == (502, "The sandbox was not found")
    wait_for(gone, why="the end being known")


@test
def after_a_loss_of_data_known_routes_stay_in_use_until_the_records_are_back(c, svc, life):
    sb, vm = c.sandbox({8000: svc.port})
    stranger = sandbox_id()
    equal(get(c, "/", by(sb))[0], 200)
    equal(get(c, "/", by(stranger))[0], 502)
    clients = len(c.redis("CLIENT", "LIST").splitlines())
    c.redis("FLUSHALL")
    c.redis("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    wait_for(lambda: len(c.redis("CLIENT", "LIST").splitlines()) == clients, why="the proxy at Redis again")
    for state in ("", "recovering"):
        if state:
            c.redis("HSET", "{c0}:meta", "state", state)
        for i in range(20):
            equal(get(c, "/", by(sb))[0], 200, "a sandbox that runs, in a cell that is %s" % (state or "empty"))
            equal(get(c, "/", by(stranger))[0], 503, "a sandbox of which nothing is known")
            time.sleep(0.01)
    c.redis("HSET", "{c0}:meta", "state", "ready")
    equal(get(c, "/", by(stranger))[0], 502)
    equal(get(c, "/", by(sb))[0], 502, "the records are back, and it is not among them")
    c.route(sb, 1)
    equal(get(c, "/", by(sb))[0], 200)
    c.end(vm)


@test
def wake_parks_and_then_answers_once_for_all(c, svc, life):
    sb = sandbox_id()
    c.route(sb, 1, state="paused", auto_resume=1)
    clients = [Raw(c) for _ in range(20)]
    for i, k in enumerate(clients):
        k.send("GET /w%d HTTP/1.1\r\n%s\r\n" % (i, by(sb)))
    equal(life.calls.get(timeout=30), (sb, 1))
    time.sleep(0.1)
    check(life.calls.empty(), "one wake per sandbox")
    vm = c.vm(sb, 2, {8000: svc.port})
    c.route(sb, 2, auto_resume=1)
    life.answer("ok 2 12")
    for i, k in enumerate(clients):
        status, headers, body = k.answer()
        equal((status, body), (200, b"GET /w%d\n" % i))
        equal(headers.get("server-timing"), "wake;dur=12")
    c.end(vm)


@test
def wake_works_for_a_websocket_and_an_upload(c, svc, life):
    sb = sandbox_id()
    c.route(sb, 1, state="paused", auto_resume=1)
    done = queue.Queue()
    threading.Thread(target=lambda: done.put(upgrade(c, sb)), daemon=True).start()
    up = Raw(c).send("POST /upload HTTP/1.1\r\n%sContent-Length: 3000000\r\n\r\n" % by(sb))
    threading.Thread(target=lambda: up.send(b"u" * 3000000), daemon=True).start()
    life.calls.get(timeout=30)
    vm = c.vm(sb, 2, {8000: svc.port})
    c.route(sb, 2, auto_resume=1)
    life.answer("ok 2 5")
    ws = done.get(timeout=30)
    equal(ws.send("ping").f.read(4), b"ping")
    equal(up.answer()[2].split()[0], b"3000000")
    c.end(vm)


@test
def a_failed_wake_says_why_and_asks_again_next_time(c, svc, life):
    sb = sandbox_id()
    c.route(sb, 1, state="paused", auto_resume=1)
    for line, want in [("fail sandbox_capacity_unavailable no room: memory", 503), ("fail rate_limited team limit", 429), ("fail conflict still pausing", 409)]:
        k = Raw(c).send("GET / HTTP/1.1\r\n%s\r\n" % by(sb))
        life.calls.get(timeout=30)
        life.answer(line)
        status, _, body = k.answer()
        equal(status, want)
        check(line.split(" ", 2)[2].encode() in body, "the reason in %r" % body)


@test
def waking_needs_credentials_where_the_sandbox_has_them(c, svc, life):
    envd, traffic = "e" * 64, "t" * 64
    sha = lambda s: hashlib.sha256(s.encode()).hexdigest()
    sb = sandbox_id()
    c.route(sb, 1, state="paused", auto_resume=1, private=1, envd_sha256=sha(envd), traffic_sha256=sha(traffic))
    for port, headers, want in [(8000, "", 403), (8000, "e2b-traffic-access-token: wrong\r\n", 403), (49983, "", 403), (49983, "X-Access-Token: wrong\r\n", 403)]:
        equal(get(c, "/health", by(sb, port), headers)[0], want)
    check(life.calls.empty(), "nothing was woken")
    k = Raw(c).send("GET /health HTTP/1.1\r\n%sX-Access-Token: %s\r\n\r\n" % (by(sb, 49983), envd))
    life.calls.get(timeout=30)
    vm = c.vm(sb, 2, {49983: svc.port})
    c.route(sb, 2, auto_resume=1, private=1, envd_sha256=sha(envd), traffic_sha256=sha(traffic))
    life.answer("ok 2 1")
    equal(k.answer()[0], 200)
    c.end(vm)


@test
def a_relay_that_is_away_is_503_and_comes_back(c, svc, life):
    sb, vm = c.sandbox({8000: svc.port, 49983: svc.port})
    equal(get(c, "/health", by(sb, 49983))[0], 200)
    c.relay.kill()
    c.relay.wait()
    c.children.remove(c.relay)
    fresh, vm2 = c.sandbox({49983: svc.port})  # of the other one the proxy may hold a stream, which a relay's end does not concern
    equal(get(c, "/health", by(fresh, 49983))[0], 503, "a live sandbox is not reported dead")
    k = Raw(c).send("GET /late HTTP/1.1\r\n%s\r\n" % by(sb))
    c.relay = c.start_relay()
    equal(k.answer()[0], 200, "waits for the relay")
    c.end(vm)
    c.end(vm2)


@test
def relay_restart_hands_the_socket_over_and_keeps_streams(c, svc, life):
    sb, vm = c.sandbox({8000: svc.port})
    far = c.start_proxy(1)  # over TCP, as on another host: its streams stay with the old relay (those of a link: test_link.py)
    ws = upgrade(c, sb, port=far.port)
    old = c.relay
    stop, errors, n = threading.Event(), [], [0]

    def load():
        while not stop.is_set():
            try:
                status = Raw(c, port=random.choice([c.port, far.port])).send("GET /load HTTP/1.1\r\n%s\r\n" % by(sb)).answer()[0]
            except Exception as e:
                status = e
            n[0] += 1
            if status != 200:
                errors.append(status)
    t = threading.Thread(target=load, daemon=True)
    t.start()
    wait_for(lambda: n[0] > 20, why="requests before")
    seen, c.relay = n[0], c.start_relay()
    wait_for(lambda: n[0] > seen + 50, why="requests beside")
    stop.set()
    t.join()
    equal(errors, [], "errors of %d requests" % n[0])
    equal(ws.send("still here").f.read(10), b"still here")
    check(old.poll() is None, "the old relay serves its last stream")
    ws.s.shutdown(socket.SHUT_RDWR)
    ws.s.close()
    wait_for(lambda: old.poll() is not None, 40, "the old relay to end")
    c.children.remove(old)
    c.end(far)
    c.end(vm)


@test
def proxy_upgrade_drops_no_request_and_no_stream(c, svc, life):
    sb, vm = c.sandbox({8000: svc.port})
    ws = upgrade(c, sb)
    keep = Raw(c)
    equal(keep.send("GET /k HTTP/1.1\r\n%s\r\n" % by(sb)).answer()[0], 200)
    old = c.proxies[0]
    stop, errors, n = threading.Event(), [], [0]

    def load():
        while not stop.is_set():
            try:
                status = get(c, "/load", by(sb))[0]
            except Exception as e:
                status = e
            n[0] += 1
            if status != 200:
                errors.append(status)
    threads = [threading.Thread(target=load, daemon=True) for _ in range(3)]
    for t in threads:
        t.start()
    wait_for(lambda: n[0] > 20, why="requests before")
    seen, c.proxies[0] = n[0], c.start_proxy(0, port=old.port, tls_port=old.tls_port)
    wait_for(lambda: n[0] > seen + 50, why="requests beside")
    stop.set()
    for t in threads:
        t.join()
    equal(errors, [], "errors of %d requests" % n[0])
    equal(ws.send("still here").f.read(10), b"still here")
    status, headers, _ = keep.send("GET /k HTTP/1.1\r\n%s\r\n" % by(sb)).answer()
    equal((status, headers.get("connection")), (200, "close"), "the old process sends its clients away politely")
    check(old.poll() is None, "the old process serves its last stream")
    ws.s.shutdown(socket.SHUT_RDWR)
    ws.s.close()
    wait_for(lambda: old.poll() is not None, 40, "the old process to end")
    c.children.remove(old)
    c.end(vm)


@test
def certificate_is_reloaded_without_a_restart(c, svc, life):
    import ssl
    def serial():
        s = socket.create_connection(("127.0.0.1", c.tls_port), 5)
        ctx = ssl.create_default_context(cafile=str(c.dir / "tls/ca.pem"))
        with ctx.wrap_socket(s, server_hostname="1-x.cube.test") as t:
            return t.getpeercert()["serialNumber"]
    before = serial()
    tls = c.dir / "tls"
    subprocess.run("openssl req -newkey rsa:2048 -nodes -keyout %s/n.key -subj /CN=cube.test -out %s/n.csr && printf 'subjectAltName=DNS:*.cube.test,DNS:localhost' > %s/ext && "
                   "openssl x509 -req -in %s/n.csr -CA %s/ca.pem -CAkey %s/ca.key -CAcreateserial -days 30 -extfile %s/ext -out %s/n.pem" % ((tls,) * 8),
                   shell=True, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    os.replace(tls / "n.key", tls / "ingress.key")
    time.sleep(1.2)  # between the two renames key and certificate do not fit: the old pair stays
    equal(serial(), before)
    os.replace(tls / "n.pem", tls / "ingress.pem")
    wait_for(lambda: serial() != before, 20, "the new certificate")


@test
def metrics_and_access_log(c, svc, life):
    sb, vm = c.sandbox({8000: svc.port})
    equal(get(c, "/logged?secret=1", by(sb), "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n")[0], 200)
    s = socket.create_connection(("127.0.0.1", c.proxies[0].admin), 5)
    s.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    text = s.makefile().read()
    for want in ('cube_proxy_requests_total{class="2xx"}', 'phase="first_byte"', 'event="wakes"'):
        check(want in text, want + " in the metrics")
    line = wait_for(lambda: [l for l in open(c.dir / "access.log") if "/logged" in l], 20, "the log line")[0]
    entry = json.loads(line)
    equal((entry["sandbox"], entry["port"], entry["status"], entry["request"], entry["trace"]),
          (sb, 8000, 200, "GET /logged", "0af7651916cd43dd8448eb211c80319c"))
    c.end(vm)


if __name__ == "__main__":
    svc = Service()
    with Cluster(config="  drain_timeout: 20s\n", tcp=(1,)) as c:
        life = Lifecycle(c)
        code = run("ingress lifecycle", c, svc, life)
        life.p.kill()
    sys.exit(code)
