#!/bin/sh
# `sdk-create`: npm e2b against the cluster that E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY name (cube-bench sets them).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
modules=$("$root/tests/lib/node_modules.sh" "$root/tests/guest/js" | tail -n 1)
work=$(mktemp -d /tmp/cube-bench-sdk-XXXXXX)
trap 'rm -rf "$work"' EXIT
cp "$here/create.mjs" "$work/"
ln -s "$modules/node_modules" "$work/node_modules"
node "$work/create.mjs" "$@"
