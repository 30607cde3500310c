#!/bin/sh
# `./cube bench ingress [--json]`: cube-proxy beside haproxy and nginx, one run, to one backend.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
export CUBE_BUILD="${CUBE_BUILD_DIR:-$root/build}"
PYTHONPATH="$root/tests/ingress" exec python3 "$root/bench/ingress/bench.py" "$@"
