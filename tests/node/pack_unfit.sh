#!/bin/sh
# pack_unfit.sh OUT INIT — a tools disk with nothing but an init.
set -eu
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir "$tree/dev" "$tree/proc" "$tree/sys"
install -m 0755 "$2" "$tree/cube-init"
rm -f "$1"
mkfs.erofs --quiet "$1" "$tree"
