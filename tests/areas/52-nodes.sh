# Two real nodes on one machine under one master, with real VMs: placement, cordon, drain, loss, return and removal of a node.
# limit: 900 s
set -u
cd "$CUBE_ROOT" || exit 1
command -v setpriv >/dev/null || { echo "SKIP nodes: no setpriv"; exit 0; }
work=$(mktemp -d /tmp/cube-nodes-XXXXXX)
chmod 755 "$work"
export CUBE_WORK=$work CUBE_STATE_DIR=$work/state CUBE_RUN_DIR=$work/run
# A node that stopped reporting is given up after seconds here, not after the minute of the default.
export CUBE_MASTER_NODE_STALE=4s CUBE_MASTER_NODE_LOST=8s
base=$(tests/lib/port_base.sh)
export CUBE_MASTER=127.0.0.1:$((base + 10)) CUBE_SECOND_PORT=$((base + 50))
options=(--state "$CUBE_STATE_DIR" --run "$CUBE_RUN_DIR" --port-base "$base")
finish() {
    [ -s "$work/second/cube.yaml" ] && tests/nodes/extra_node.sh stop "$work/second" >/dev/null 2>&1
    "$CUBE_BUILD_DIR/cli/cube" down "${options[@]}" >/dev/null 2>&1
    [ -n "${KEEP:-}" ] || rm -rf "$work"
}
trap finish EXIT

CUBE_GUEST_KERNEL=$(guest/kernel/build.sh --path "$("$CUBE_BUILD_DIR/cli/cube" doctor --kind | sed s/hardware/stock/)" | tail -n 1)
CUBE_GUEST_BASE=$(guest/base/build.sh | tail -n 1)
CUBE_GUEST_TOOLS=$CUBE_BUILD_DIR/guest/tools.erofs
export CUBE_GUEST_KERNEL CUBE_GUEST_BASE CUBE_GUEST_TOOLS
if ! "$CUBE_BUILD_DIR/cli/cube" up "${options[@]}" --no-check; then
    echo "FAIL nodes: cube up"
    tail -n 15 "$CUBE_STATE_DIR"/log/*.log
    exit 0
fi
eval "$("$CUBE_BUILD_DIR/cli/cube" env --state "$CUBE_STATE_DIR")"
modules=$(bash tests/lib/node_modules.sh tests/guest/js | tail -n 1)
ln -sfn "$modules/node_modules" "$work/node_modules"
cp tests/nodes/nodes.mjs tests/e2e/check.mjs "$work/"
timeout 600 node "$work/nodes.mjs" || echo "FAIL nodes: nodes.mjs ended with status $?"
tests/nodes/extra_node.sh stop "$work/second" || echo "FAIL nodes: the second node does not stop"
"$CUBE_BUILD_DIR/cli/cube" down "${options[@]}" || echo "FAIL nodes: cube down"
left=$(tests/e2e/census.sh "$work/second" "$work/second/run" "extra-$CUBE_SECOND_PORT" | grep -v '^file ')
if [ -z "$left" ]; then echo "PASS nodes: nothing of the second node is left"; else
    echo "FAIL nodes: left of the second node: $(printf '%s' "$left" | tr '\n' ';')"
fi
exit 0
