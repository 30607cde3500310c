"""Files of many sizes there and back, byte for byte: large.py PORT DIR BYTES…; octet-stream with a length and chunked and
multipart, whole and by ranges."""
import hashlib
import http.client
import os
import sys
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import hang  # noqa: E402

PORT, DIR, SIZES = int(sys.argv[1]), sys.argv[2], [int(x) for x in sys.argv[3:]]
SUITE = os.environ.get("SUITE", "guest large")
BLOCK = os.urandom(1 << 20)
BOUNDARY = "cube-" + os.urandom(16).hex()
HEAD = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="x"\r\nContent-Type: application/octet-stream\r\n\r\n'.encode()
TAIL = f"\r\n--{BOUNDARY}--\r\n".encode()


def content(n, digest):
    """n bytes that never repeat: each block begins with its number."""
    for i in range(0, n, len(BLOCK)):
        part = (i.to_bytes(8, "big") + BLOCK[8:])[: n - i]
        digest.update(part)
        yield part


def parts(n, digest):
    """The same as the one part of a form, between its boundaries."""
    yield HEAD
    yield from content(n, digest)
    yield TAIL


def there_and_back(n, kind):
    path = f"/files?path={DIR}/cube-large"
    multipart, chunked = kind == "multipart", kind == "chunked"
    sent, got = hashlib.sha256(), hashlib.sha256()
    c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
    headers = {"Content-Type": "multipart/form-data; boundary=" + BOUNDARY if multipart else "application/octet-stream"}
    if not chunked:
        headers["Content-Length"] = str(n + (len(HEAD) + len(TAIL) if multipart else 0))
    began = time.time()
    c.request("POST", path, (parts if multipart else content)(n, sent), headers, encode_chunked=chunked)
    r = c.getresponse()
    assert r.status == 200, (r.status, r.read(300))
    r.read()
    up = time.time() - began
    c.request("GET", path)
    r = c.getresponse()
    assert r.status == 200 and int(r.headers["Content-Length"]) == n, (r.status, r.headers["Content-Length"])
    while part := r.read(1 << 20):
        got.update(part)
    assert sent.digest() == got.digest(), "what came back differs"
    if n:
        c.request("GET", path, headers={"Range": f"bytes={n - 1}-"})
        r = c.getresponse()
        assert r.status == 206 and r.read() == (((n - 1) >> 20 << 20).to_bytes(8, "big") + BLOCK[8:])[(n - 1) % len(BLOCK):][:1], r.status
    c.request("POST", "/filesystem.Filesystem/Remove", f'{{"path":"{DIR}/cube-large"}}'.encode(), {"Content-Type": "application/json"})
    assert c.getresponse().status == 200
    return f"{up:.1f} s up, {time.time() - began - up:.1f} s down"


for size in SIZES:
    for kind in ("plain", "chunked", "multipart") if size <= 1 << 28 else ("plain",):
        name = f"{size} bytes{', ' + kind if kind != 'plain' else ''}"
        try:
            with hang.limit():
                how = there_and_back(size, kind)
            print(f"PASS {SUITE}: {name}: {how}" if size > 1 << 27 else f"PASS {SUITE}: {name}", flush=True)
        except BaseException as e:  # noqa: BLE001 - a test that fails in any way is a failure
            at = traceback.extract_tb(e.__traceback__)[-1]
            print(f"FAIL {SUITE}: {name}: {type(e).__name__}: {e} at {at.lineno}: {at.line}".replace("\n", " ")[:700], flush=True)
