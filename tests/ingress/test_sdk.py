"""The npm and PyPI SDKs through the real ingress to a real cube-envd: by a domain over TLS with a private CA (in a namespace whose /etc/hosts knows the names), and by
headers over one plain URL. The control API is not under test: a few lines answer `connect`."""
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

from check import Skip, check, run, test
from cluster import BUILD, ROOT, Cluster, listening, wait_for

HERE = pathlib.Path(__file__).parent


class Api(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        sandbox = self.path.split("/")[3 if self.path.startswith("/v2") else 2]
        body = json.dumps({"sandboxID": sandbox, "templateID": "base", "clientID": "c", "envdVersion": "0.5.14", "domain": self.server.domain,
                           "envdAccessToken": None, "alias": "base"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def tool(script, arg):
    p = subprocess.run([str(ROOT / "tests/lib" / script), str(ROOT / arg)], stdout=subprocess.PIPE, text=True)
    if p.returncode:
        raise Skip("%s could not install %s" % (script, arg))
    return p.stdout.split()[-1]


def ask(c, sb, python, env):
    env = {**os.environ, "E2B_API_KEY": "e2b_" + "0" * 40, "P_DIR": str(c.dir / "files"), **env}
    env.pop("E2B_DEBUG", None)
    if python:
        argv = [tool("pip_env.sh", PIP), str(HERE / "sdk.py"), sb]
    else:
        argv = ["node", str(HERE / "sdk.mjs"), tool("node_modules.sh", "tests/guest/js") + "/node_modules", sb]
    p = subprocess.run(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400)
    check(p.stdout.strip().endswith("ok"), p.stdout[-1500:])


def by_domain(c):
    c.api.domain = "cube.test"
    return {"E2B_DOMAIN": "cube.test", "NODE_EXTRA_CA_CERTS": str(c.dir / "tls/ca.pem"), "SSL_CERT_FILE": str(c.dir / "tls/ca.pem")}


def by_url(c):
    c.api.domain = None
    url = "http://127.0.0.1:%d" % c.port
    return {"E2B_API_URL": url, "E2B_SANDBOX_URL": url}


@test
def npm_sdk_by_domain_over_tls(c, sb):
    ask(c, sb, False, by_domain(c))


@test
def npm_sdk_by_headers_over_one_url(c, sb):
    ask(c, sb, False, by_url(c))


@test
def pypi_sdk_by_domain_over_tls_and_http2(c, sb):
    ask(c, sb, True, by_domain(c))


@test
def pypi_sdk_by_headers_over_one_url(c, sb):
    ask(c, sb, True, by_url(c))


PIP = next((str(p.relative_to(ROOT)) for p in ROOT.glob("tests/*/**/requirements.txt")), "tests/api/py")

if __name__ == "__main__":
    if os.environ.get("P_INSIDE") != "1":
        if os.geteuid() != 0:
            print("SKIP ingress sdk: needs root for a network namespace")
            sys.exit(0)
        # The SDKs are installed before the network is gone.
        for script, arg in (("node_modules.sh", "tests/guest/js"), ("pip_env.sh", PIP)):
            subprocess.run([str(ROOT / "tests/lib" / script), str(ROOT / arg)], stdout=subprocess.DEVNULL)
        os.execvpe("unshare", ["unshare", "-n", "-m", sys.executable, "-u", __file__, *sys.argv[1:]], {**os.environ, "P_INSIDE": "1"})
    subprocess.run("ip link set lo up", shell=True, check=True)
    with Cluster(proxies=0) as c:
        c.proxies = [c.start_proxy(tls_port=443)]
        c.port, c.tls_port = c.proxies[0].port, 443
        c.api = http.server.ThreadingHTTPServer(("127.0.0.1", c.api_port), Api)
        threading.Thread(target=c.api.serve_forever, daemon=True).start()
        (c.dir / "files").mkdir()
        c.dir.chmod(0o755)
        (c.dir / "files").chmod(0o777)
        # Its commands are login shells: with the login files of the person who runs the tests they may take a minute (a tool that waits for a lock of
        # its own), so its /root is an empty one. The program is copied, as the build may lie there.
        program = shutil.copy(BUILD / "guest/envd/cube-envd", c.dir)
        envd = c.spawn(["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o mode=700 tmpfs /root && exec "$0" --port 49983', program], "envd")
        wait_for(lambda: listening(49983), why="envd")
        sb, vm = c.sandbox({49983: 49983})
        hosts = c.dir / "hosts"
        hosts.write_text("127.0.0.1 localhost api.cube.test 49983-%s.cube.test\n" % sb)
        subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)
        code = run("ingress sdk", c, sb)
        subprocess.run(["umount", "/etc/hosts"])
    sys.exit(code)
