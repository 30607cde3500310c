# CubeVS in namespaces: attacks, traffic, policy, limits, replacement of the programs under load.
# limit: 1200 s
set -u
cd "$CUBE_ROOT" || exit 1
tests/net/attacks.sh
tests/net/traffic.sh
tests/net/nodes.sh
tests/net/world.sh
"$CUBE_BUILD_DIR/tests/net/net-policy-test"
"$CUBE_BUILD_DIR/tests/net/net-fuzz-test"
"$CUBE_BUILD_DIR/tests/net/net-table-test"
tests/net/dns.sh
command -v node >/dev/null && tests/net/real.sh || echo "SKIP net: no node (the SDK wants 20.18 or later)"
