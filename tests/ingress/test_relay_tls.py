"""Proxy to relay over TLS: the cluster's CA, the node's name, the proxy's role; and no plaintext off loopback."""
import socket
import subprocess
import sys

from check import check, equal, run, test
from cluster import BUILD, ROOT, Cluster, free_port
from service import Service, pattern_sha
from test_http1 import MiB, Raw, by, get


def certificates(d):
    subprocess.run(["sh", str(ROOT / "tests/rpc/certs.sh"), str(d)], check=True)
    for name, uris in [("proxy", ",URI:cube://role/proxy"), ("n2", ",URI:cube://role/node,URI:cube://node/n2")]:
        (d / (name + ".ext")).write_text("subjectAltName=DNS:cube.internal%s\n" % uris)
        subprocess.run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=%s -keyout %s.key -out %s.csr 2>/dev/null && "
                       "openssl x509 -req -in %s.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile %s.ext -out %s.pem 2>/dev/null"
                       % ((name,) * 6), shell=True, check=True, cwd=d)


def keys(d, name):
    return "  ca: %s/ca.pem\n  cert: %s/%s.pem\n  key: %s/%s.key\n" % (d, d, name, d, name)


@test
def requests_uploads_and_downloads_pass(c, sb, svc):
    for _ in range(5):
        equal(get(c, "/x", by(sb))[0], 200)
    k = Raw(c, timeout=60).send("POST /upload HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n" % (by(sb), 32 * MiB))
    from service import pattern
    for b in pattern(32 * MiB):
        k.send(b)
    equal(k.answer()[2].decode(), "%d %s " % (32 * MiB, pattern_sha(32 * MiB)))
    k = Raw(c, timeout=60).send("GET /download?n=%d HTTP/1.1\r\n%s\r\n" % (32 * MiB, by(sb)))
    import hashlib
    equal(hashlib.sha256(k.answer()[2]).hexdigest(), pattern_sha(32 * MiB))


@test
def a_node_of_another_name_is_not_spoken_to(c, sb, svc):
    n = len(svc.seen)
    other, vm = c.sandbox({8000: svc.port}, node="n2")
    equal(get(c, "/x", by(other))[0], 503)
    equal(len(svc.seen), n)
    c.end(vm)


@test
def a_relay_refuses_other_roles_and_plaintext(c, sb, svc):
    import ssl
    d = c.dir / "certs"
    for who in ("api", None):
        ctx = ssl.create_default_context(cafile=str(d / "ca.pem"))
        ctx.check_hostname = False
        if who:
            ctx.load_cert_chain(d / (who + ".pem"), d / (who + ".key"))
        try:
            with ctx.wrap_socket(socket.create_connection(("127.0.0.1", c.relay_port), 5)) as s:
                s.send(b"x" * 64)
                equal(s.recv(16), b"", "an answer for %s" % who)
        except (ssl.SSLError, ConnectionError):
            pass
    s = socket.create_connection(("127.0.0.1", c.relay_port), 5)
    s.sendall(b"CBR1" + b"\0" * 60)
    try:
        check(not s.recv(16).startswith(b"CBR1"), "an answer in plaintext")
    except ConnectionError:
        pass


@test
def no_plaintext_off_loopback(c, sb, svc):
    conf = c.dir / "open.yaml"
    conf.write_text("common:\n  run_dir: %s\nrelay:\n  listen: 0.0.0.0:%d\n  admin_listen: \"\"\n" % (c.run, free_port()))
    p = subprocess.run([str(BUILD / "node/relay/cube-relay"), "--config", str(conf)], stderr=subprocess.PIPE, text=True, timeout=60)
    check(p.returncode == 1 and "off loopback" in p.stderr, p.stderr)


if __name__ == "__main__":
    svc = Service()
    with Cluster(proxies=0, start_relay=False, tcp=(0,)) as c:
        (c.dir / "certs").mkdir()
        certificates(c.dir / "certs")
        c.relay_extra, c.extra = keys(c.dir / "certs", "n1"), keys(c.dir / "certs", "proxy")
        c.relay = c.start_relay()
        c.proxies = [c.start_proxy()]
        c.port, c.tls_port = c.proxies[0].port, c.proxies[0].tls_port
        sb, vm = c.sandbox({8000: svc.port})
        code = run("ingress relay-tls", c, sb, svc)
    sys.exit(code)
