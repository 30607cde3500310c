"""cube-envd started by an ordinary user on a host: own_user.py PORT UID. It acts as that user, and says so when it is asked for more."""
import base64
import http.client
import json
import os
import re
import struct
import sys
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import hang  # noqa: E402

PORT, UID = int(sys.argv[1]), sys.argv[2]
SUITE = os.environ.get("SUITE", "guest own user")


def call(method, path, body=b"", headers=None):
    c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=20)
    c.request(method, path, body, headers or {})
    r = c.getresponse()
    data = r.read()
    c.close()
    return r.status, data


def start(script, user=None):
    msg = json.dumps({"process": {"cmd": "/bin/sh", "args": ["-c", script]}}).encode()
    headers = {"Content-Type": "application/connect+json"}
    if user:
        headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:".encode()).decode()
    return call("POST", "/process.Process/Start", struct.pack(">BI", 0, len(msg)) + msg, headers)[1]


def processes():
    out = start("id -u; umask; echo $HOME")
    assert base64.b64encode(f"{UID}\n".encode())[:6] in out and b'"exited":true' in out, out
    out = start("id -u", "root")
    assert b"permission_denied" in out and b"root" in out, out


def files():
    octet = {"Content-Type": "application/octet-stream"}
    path = f"/tmp/cube-own-{os.getpid()}"
    assert call("POST", f"/files?path={path}", b"mine", octet)[0] == 200 and os.stat(path).st_uid == int(UID)
    assert call("POST", f"/files?path={path}", b"again", octet)[0] == 200 and call("GET", f"/files?path={path}")[1] == b"again"
    listing = json.loads(call("POST", "/filesystem.Filesystem/ListDir", b'{"path":"/usr","depth":2}', {"Content-Type": "application/json"})[1])["entries"]
    assert "/usr/bin/env" in [e["path"] for e in listing], len(listing)
    assert call("GET", "/files?path=/etc/shadow")[0] == 403 and call("POST", "/files?path=/etc/cube-own", b"x", octet)[0] == 403
    status, body = call("POST", "/filesystem.Filesystem/Remove", json.dumps({"path": path}).encode(), {"Content-Type": "application/json"})
    assert status == 200 and not os.path.exists(path), body
    assert json.loads(call("GET", "/metrics")[1])["root_fallbacks"] == 0


def connect(pid):
    """What a Connect that comes late gets: the events, or the error at the end of the stream."""
    msg = json.dumps({"process": {"pid": pid}}).encode()
    return call("POST", "/process.Process/Connect", struct.pack(">BI", 0, len(msg)) + msg, {"Content-Type": "application/connect+json"})[1]


def ends():
    """The end of a process is kept for a while (30 s if nothing else is said, here as long as END_KEPT_MS says), and then it is forgotten."""
    began, kept = time.monotonic(), int(os.environ["END_KEPT_MS"]) / 1000
    pid = int(re.search(rb'"pid":(\d+)', start("exit 7"))[1])
    while True:
        asked = time.monotonic()
        got = connect(pid)
        if b"not_found" in got:
            break
        assert f'"start":{{"pid":{pid}}}'.encode() in got and b'"exitCode":7' in got, got
        assert asked < began + 60, "it is never forgotten"
        time.sleep(0.02)
    assert time.monotonic() - began >= kept, f"forgotten after {time.monotonic() - began:.2f} s"


for title, fn in (("processes", processes), ("files", files), ("the end of a process is kept, then forgotten", ends)):
    try:
        with hang.limit():
            fn()
        print(f"PASS {SUITE}: {title}", flush=True)
    except BaseException as e:  # noqa: BLE001 - a test that fails in any way is a failure
        at = traceback.extract_tb(e.__traceback__)[-1]
        print(f"FAIL {SUITE}: {title}: {type(e).__name__}: {e} at {at.lineno}: {at.line}".replace("\n", " ")[:700], flush=True)
