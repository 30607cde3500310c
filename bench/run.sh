#!/bin/sh
# `./cube bench`: lists the benchmarks; with a name runs it (`--json` prints one object).
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
export CUBE_ROOT="$root" CUBE_BUILD_DIR="${CUBE_BUILD_DIR:-$root/build}"
exec "$CUBE_BUILD_DIR/bench/cube-bench" "$@"
