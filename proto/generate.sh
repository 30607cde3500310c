#!/bin/sh
# Generates the C code of one .proto file: generate.sh PROTOC_C SOURCE_ROOT BUILD_ROOT NAME.
# Services are left out: lib/net/rpc names methods by path, and a method called `Register` is no legal C identifier.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/proto"
for f in "$2"/proto/*.proto; do
    sed '/^service /,/^}/d' "$f" > "$work/proto/${f##*/}"
done
"$1" --proto_path="$work" --c_out="$3" "$work/proto/$4.proto" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
