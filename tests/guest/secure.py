"""Tokens, signatures, /init, variables and a full disk on an envd alone: secure.py PORT. Leaves the daemon with a token set."""
import base64
import hashlib
import http.client
import json
import os
import struct
import sys
import time
import traceback
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import hang  # noqa: E402

PORT = int(sys.argv[1])
SUITE = os.environ.get("SUITE", "guest secure")
TOKEN = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"


def call(method, path, body=b"", headers=None, token=None):
    c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=20)
    headers = dict(headers or {})
    if token:
        headers["X-Access-Token"] = token
    c.request(method, path, body, headers)
    r = c.getresponse()
    data = r.read()
    c.close()
    return r.status, data


def init(**body):
    token = body.pop("header", None)
    return call("POST", "/init", json.dumps(body).encode(), {"Content-Type": "application/json"}, token)


def shell(script, user=None):
    msg = json.dumps({"process": {"cmd": "/bin/sh", "args": ["-c", script]}}).encode()
    headers = {"Content-Type": "application/connect+json"}
    if user:
        headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:".encode()).decode()
    _, data = call("POST", "/process.Process/Start", struct.pack(">BI", 0, len(msg)) + msg, headers, TOKEN)
    text = ""
    while data:
        n = struct.unpack(">I", data[1:5])[0]
        event = json.loads(data[5:5 + n]).get("event", {}).get("data", {})
        text += base64.b64decode(event.get("stdout", event.get("stderr", ""))).decode()
        data = data[5 + n:]
    return text


def signed(path, op, user="", expiry=None, token=TOKEN):
    text = f"{path}:{op}:{user}:{token}" + (f":{expiry}" if expiry is not None else "")
    sig = "v1_" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    q = {"path": path, "username": user, "signature": sig}
    if expiry is not None:
        q["signature_expiration"] = expiry
    return "/files?" + urllib.parse.urlencode({k: v for k, v in q.items() if v != ""})


def variables():
    assert init(envVars={"A": "1", "E2B_SANDBOX": "no"}, timestamp="2026-01-01T00:00:02Z")[0] == 204
    assert shell("echo $A$E2B_SANDBOX") == "1true\n"
    assert init(envVars={"B": "2"}, timestamp="2026-01-01T00:00:01Z")[0] == 204  # older: has no effect
    assert json.loads(call("GET", "/envs")[1]) == {"A": "1", "E2B_SANDBOX": "true"}
    assert init(envVars={"B": "2"}, timestamp="2026-01-01T00:00:03.5+00:00", defaultUser="nobody", defaultWorkdir="/tmp")[0] == 204
    assert shell("echo $A$B; id -un; pwd") == "2\nnobody\n/tmp\n"
    assert shell("id -un; echo $HOME", user="root") == "root\n/root\n"
    assert init(defaultUser="root", defaultWorkdir="/root")[0] == 204
    assert init(timestamp="yesterday")[0] == 400 and call("POST", "/init", b"{", {"Content-Type": "application/json"})[0] == 400


def tokens():
    assert init(accessToken=TOKEN)[0] == 204
    want = {"code": 401, "message": "unauthorized access, please provide a valid access token or method signing if supported"}
    for method, path in (("GET", "/envs"), ("GET", "/metrics"), ("POST", "/process.Process/List"), ("POST", "/files/compose")):
        for given in (None, "x", TOKEN + "x", TOKEN[:-1]):
            status, body = call(method, path, b"{}", {"Content-Type": "application/json"}, given)
            assert status == 401 and json.loads(body) == want, (path, given, status, body)
    assert call("GET", "/envs", token=TOKEN)[0] == 200 and call("GET", "/health")[0] == 204
    assert init(accessToken="other")[0] == 401 and init()[0] == 401
    assert init(accessToken=TOKEN)[0] == 204 and init(accessToken="new", header=TOKEN)[0] == 204 and init(accessToken=TOKEN, header="new")[0] == 204


def signatures():
    octet = {"Content-Type": "application/octet-stream"}
    path = "/tmp/cube secure+ü"
    assert call("POST", signed(path, "write"), b"data", octet)[0] == 200
    assert call("GET", signed(path, "read")) == (200, b"data")
    assert call("GET", signed(path, "read", expiry=int(time.time()) + 60))[0] == 200
    for url, message in ((signed(path, "read", expiry=int(time.time()) - 5), "signature is already expired"), (signed(path, "write"), "invalid signature"),
                         (signed(path, "read", token="x"), "invalid signature"), (signed(path, "read") + "&signature_expiration=99999999999", "invalid signature"),
                         ("/files?path=/etc/passwd", "missing signature query parameter")):
        status, body = call("GET", url)
        assert status == 401 and json.loads(body) == {"code": 401, "message": message}, (url, status, body)
    status, body = call("GET", "/files?path=/etc/hostname", token="wrong")
    assert status == 401 and json.loads(body)["message"] == "access token present in header but does not match"
    assert call("GET", "/files?path=" + urllib.parse.quote_plus(path), token=TOKEN) == (200, b"data")
    os.unlink(path)


def full_disk():
    """The daemon has a mount namespace of its own, so it mounts the small disk itself."""
    shell("mkdir -p /tmp/cube-full && mount -t tmpfs -o size=1m tmpfs /tmp/cube-full")
    octet = {"Content-Type": "application/octet-stream"}
    assert call("POST", "/files?path=/tmp/cube-full/small", b"x" * 1000, octet, TOKEN)[0] == 200
    status, body = call("POST", "/files?path=/tmp/cube-full/big", b"x" * (4 << 20), octet, TOKEN)
    assert status == 507 and json.loads(body)["code"] == 507, (status, body)
    assert shell("ls -A /tmp/cube-full") == "small\n"
    shell("umount /tmp/cube-full; rmdir /tmp/cube-full")


for title, fn in (("variables, default user and directory by /init", variables), ("tokens", tokens), ("signatures", signatures), ("a full disk", full_disk)):
    try:
        with hang.limit():
            fn()
        print(f"PASS {SUITE}: {title}", flush=True)
    except BaseException as e:  # noqa: BLE001 - a test that fails in any way is a failure
        at = traceback.extract_tb(e.__traceback__)[-1]
        print(f"FAIL {SUITE}: {title}: {type(e).__name__}: {e} at {at.lineno}: {at.line}".replace("\n", " ")[:700], flush=True)
