#!/bin/sh
# pack.sh OUT AGENT FILE... — the tools disk of a test guest: the agent as /agent, everything else in /bin.
set -eu
out=$1 agent=$2
shift 2
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir "$tree/bin" "$tree/proc" "$tree/sys" "$tree/dev" "$tree/mnt"
install -m 0755 "$agent" "$tree/agent"
install -m 0755 "$@" "$tree/bin/"
rm -f "$out"
mkfs.erofs --quiet -zlz4hc -T 1767225600 -U 5ab00000-cafe-4000-8000-000000000003 "$out" "$tree"
