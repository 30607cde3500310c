#!/bin/sh
# The tools disk: tools.sh OUT PROGRAM... makes an erofs image with the (stripped) programs and the mount points that cube-init
# needs before it pivots. Same input, same bytes: times and ids are fixed, so that the image's hash names its content.
set -eu
out=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/root"
for d in dev proc sys mnt run; do
    mkdir -m 755 "$work/root/$d"
done
for p in "$@"; do
    strip -o "$work/root/${p##*/}" "$p"
    chmod 755 "$work/root/${p##*/}"
done
mkfs.erofs -T 1 -U 00000000-0000-0000-0000-000000000001 --all-root --quiet "$work/image" "$work/root" > "$work/log" 2>&1 || {
    cat "$work/log" >&2
    exit 1
}
mv "$work/image" "$out"
