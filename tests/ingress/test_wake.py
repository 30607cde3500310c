"""Wake against the real cube-lifecycle and cube-master: wake.mjs does the asking."""
import os
import pathlib
import subprocess
import sys

from cluster import BUILD, ROOT

p = subprocess.run([str(ROOT / "tests/lib/node_modules.sh"), str(ROOT / "tests/control")], stdout=subprocess.PIPE, text=True)
if p.returncode:
    print("SKIP ingress wake: the npm packages of tests/control could not be installed")
    sys.exit(0)
env = {**os.environ, "CUBE_NODE_MODULES": p.stdout.split()[-1] + "/node_modules", "CUBE_TEST_AREA": "ingress", "CUBE_ROOT": str(ROOT), "CUBE_BUILD_DIR": str(BUILD)}
sys.exit(subprocess.run(["node", str(pathlib.Path(__file__).with_name("wake.mjs"))], env=env, timeout=600).returncode)
