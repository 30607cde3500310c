# CubeVS in namespaces: attacks, traffic, policy, limits, replacement of the programs under load.
# limit: 1200 s
set -u
cd "$CUBE_ROOT" || exit 1
part() {
    timeout 900 "$@" || echo "FAIL net: ${1##*/} ended with status $?"
}
part tests/net/attacks.sh
part tests/net/traffic.sh
part tests/net/nodes.sh
part tests/net/world.sh
part "$CUBE_BUILD_DIR/tests/net/net-policy-test"
part "$CUBE_BUILD_DIR/tests/net/net-fuzz-test"
part "$CUBE_BUILD_DIR/tests/net/net-table-test"
part tests/net/dns.sh
if command -v node >/dev/null; then part tests/net/real.sh; else echo "SKIP net: no node (the SDK wants 20.18 or later)"; fi
exit 0
