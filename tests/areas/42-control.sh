# The control plane with real Redis, masters, lifecycles and simulated nodes, over gRPC from @grpc/grpc-js; beside it a million random
# proposals of several committers through the real script, against a model.
# limit: 900 s
set -u
cd "$CUBE_ROOT" || exit 1
CUBE_NODE_MODULES=$(tests/lib/node_modules.sh tests/control | tail -n 1)/node_modules
export CUBE_NODE_MODULES
out=$(mktemp /tmp/cube-control-XXXXXX)
trap 'rm -f "$out"' EXIT
# Nicely: where others keep the machine busy it has not made its million after seven minutes, and says how many it made.
nice -n 5 "$CUBE_BUILD_DIR/tests/control/control-property" "${CUBE_PROPERTY_EVENTS:-1000000}" "${CUBE_PROPERTY_SECONDS:-420}" >"$out" 2>&1 &
property=$!
for suite in tests/control/*.mjs; do
    case $suite in */harness.mjs) continue ;; esac
    timeout 900 node "$suite" || echo "FAIL control: ${suite##*/} ended with status $?"
done
wait "$property" || echo "FAIL control: the property test ended with status $?"
cat "$out"
exit 0
