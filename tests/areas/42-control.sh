# The control plane with real Redis, masters, lifecycles and simulated nodes, over gRPC from @grpc/grpc-js.
# limit: 600 s
set -u
cd "$CUBE_ROOT" || exit 1
CUBE_NODE_MODULES=$(tests/lib/node_modules.sh tests/control | tail -n 1)/node_modules
export CUBE_NODE_MODULES
for suite in tests/control/*.mjs; do
    case $suite in */harness.mjs) continue ;; esac
    timeout 240 node "$suite" || echo "FAIL control: ${suite##*/} ended with status $?"
done
exit 0
