# gRPC between lib/net and npm @grpc/grpc-js, both ways.
# limit: 300 s
set -u
cd "$CUBE_ROOT" || exit 1
work=$(mktemp -d /tmp/cube-rpc-XXXXXX)
trap 'rm -rf "$work"' EXIT
modules=$(tests/lib/node_modules.sh tests/rpc | tail -n 1)
printf '%064d\n' 7 >"$work/api.key"
chmod 600 "$work/api.key"
cp tests/rpc/interop.mjs "$work/"
ln -s "$modules/node_modules" "$work/node_modules"
timeout 270 node "$work/interop.mjs" "$CUBE_BUILD_DIR/tests/rpc/rpc-peer" "$work"
