"""The unmodified Python SDK through the ingress. argv: sandbox ID."""
import os
import sys

from e2b import Sandbox

s = Sandbox.connect(sys.argv[1])
assert s.is_running()
assert s.commands.run("echo hi").stdout == "hi\n"
got = []
s.commands.run("for i in 1 2 3; do echo $i; done", on_stdout=got.append)
assert "".join(got) == "1\n2\n3\n", got
big = bytes(range(256)) * 20000
path = os.environ["P_DIR"] + "/pybig"
s.files.write(path, big)
assert bytes(s.files.read(path, format="bytes")) == big
with open("/proc/self/exe", "rb") as f:  # a real file: Content-Length; an iterable: chunked
    s.files.write(path + "2", f)
assert "pybig" in [f.name for f in s.files.list(os.environ["P_DIR"])]
h = s.commands.run("sleep 30", background=True)
assert h.kill()
print("ok")
