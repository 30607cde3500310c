# Every suite of the guest through the real ingress: a cluster, sandboxes of its template, the SDKs and the Connect client.
# limit: 1500 s
set -u
cd "$CUBE_ROOT" || exit 1
. tests/guest/lib.sh
if [ -z "$(guest_kernel)" ] || [ ! -c /dev/kvm ]; then
    echo "SKIP guest proxy: no guest kernel or no /dev/kvm"
    exit 0
fi
chmod 755 "$guest_work"
export CUBE_STATE_DIR=$guest_work/state CUBE_RUN_DIR=$guest_work/run
base=$(tests/lib/port_base.sh)
options=(--port-base "$base" --state "$CUBE_STATE_DIR" --run "$CUBE_RUN_DIR")
down() {
    ./cube down "${options[@]}" > /dev/null 2>&1
    guest_finish
}
trap down EXIT
if ! ./cube up "${options[@]}" > "$guest_work/up.log" 2>&1; then
    echo "FAIL guest proxy: cube up: $(tail -n 1 "$guest_work/up.log")"
    exit 0
fi
eval "$(./cube env --state "$CUBE_STATE_DIR")"
TEMPLATE=base guest_suites proxy user
TEMPLATE=base CUBE=$CUBE_BUILD_DIR/cli/cube SUITE="guest logs" timeout 360 node "$guest_work/js/logs.mjs" || echo "FAIL guest logs: ended with status $?"
exit 0
