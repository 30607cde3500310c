#!/bin/sh
# Prints the directory of a Node.js that the SDKs accept (20.18 or later) and of its npm: the machine's own, else one from the Python
# package index, as Debian 12 has only 18. Installed once, below ${CUBE_CACHE:-/var/cache/cube}/pip.
set -eu
if command -v npm >/dev/null && node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 18) ? 0 : 1)' 2>/dev/null; then
    dirname "$(command -v node)"
    exit 0
fi
lib=$(cd "$(dirname "$0")" && pwd)
bin=$(dirname "$("$lib/pip_env.sh" "$lib/node_requirements.txt" | tail -n 1)")
# A directory of its own: the environment's python must not hide the system's.
mkdir -p "$bin/../node"
for program in node npm npx; do ln -sfn "$bin/$program" "$bin/../node/$program"; done
(cd "$bin/../node" && pwd)
