"""HTTP/2 and gRPC through cube-proxy: starts the cluster, then h2.mjs does the asking."""
import http.server
import json
import pathlib
import subprocess
import sys
import threading

from cluster import ROOT, Cluster
from service import Service
from test_http1 import SANITIZED, Api, rss

svc = Service()
with Cluster() as c:
    api = http.server.ThreadingHTTPServer(("127.0.0.1", c.api_port), Api)
    threading.Thread(target=api.serve_forever, daemon=True).start()
    modules = subprocess.run([str(ROOT / "tests/lib/node_modules.sh"), str(ROOT / "tests/rpc")], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1]
    node = subprocess.Popen(["node", str(pathlib.Path(__file__).with_name("h2.mjs"))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            env={**__import__("os").environ, "CUBE_NODE_MODULES": modules + "/node_modules"})
    grpc_port, moody_port = (int(p) for p in node.stdout.readline().split()[1:])
    sb, vm = c.sandbox({8000: svc.port, 49983: svc.port, 50051: grpc_port, 50053: moody_port})
    masked, _ = c.sandbox({50051: grpc_port}, mask_host="inner.test:${PORT}")
    node.stdin.write(json.dumps({"tls": c.tls_port, "plain": c.port, "ca": str(c.dir / "tls/ca.pem"), "sandbox": sb, "masked": masked}) + "\n")
    node.stdin.flush()
    for line in node.stdout:
        print(line, end="", flush=True)
    code = node.wait()
    hwm = rss(c.proxies[0])
    print("%s ingress h2: flat memory: resident high-water %.1f MiB (at most 24, with 200 streams at once)" % ("PASS" if SANITIZED or hwm <= 24 else "FAIL", hwm))
    if c.proxies[0].poll() is not None:
        print("FAIL ingress h2: the proxy ended")
    if code:
        raise SystemExit(code)
