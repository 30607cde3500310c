# Shared by the guest tests: start an envd alone, or a VM with our tools disk. Source it; everything started ends with the script.
# shellcheck shell=bash disable=SC2016,SC2034,SC2120
guest_work=$(mktemp -d /tmp/cube-guest-XXXXXX)
guest_pids=()
guest_finish() {
    local p
    for p in "${guest_pids[@]}"; do kill "$p" 2>/dev/null || true; done
    for p in "${guest_pids[@]}"; do wait "$p" 2>/dev/null || true; done
    rm -rf "$guest_work"
}
trap guest_finish EXIT

# wait_for FILE: until it is not empty (60 s).
guest_wait() {
    for _ in $(seq 3000); do
        [ -s "$1" ] && return 0
        sleep 0.02
    done
    return 1
}

# Starts cube-envd on a free port; sets guest_port. Login files of the person who runs the tests must not slow shells down or
# fail them, so its /root is an empty one.
guest_alone() {
    local out=$guest_work/alone.port program=${1:-$CUBE_BUILD_DIR/guest/envd/cube-envd}
    : > "$out"
    # A build may lie below /root, too.
    case $program in "$guest_work"/*) ;; *) cp "$program" "$guest_work/" && program=$guest_work/${program##*/} ;; esac
    unshare -m sh -c 'mount -t tmpfs -o mode=700 tmpfs /root && exec "$0" "$@"' \
        "$program" --port 0 > "$out" 2> "$guest_work/alone.log" &
    guest_pids+=($!)
    guest_alone_pid=$!
    guest_wait "$out" || return 1
    guest_port=$(cat "$out")
}

# The kernel for this host, when one is there already: the guest tests do not build kernels.
guest_kernel() {
    local k
    k=$("$CUBE_ROOT/guest/kernel/build.sh" --path 2>/dev/null | tail -n 1)
    [ -f "$k" ] || k=$CUBE_CACHE/kernel/prototype/vmlinux
    [ -f "$k" ] && echo "$k"
}

# guest_vm NAME ROOT_IMAGE [OPTIONS of cube-vm run]: boots; sets guest_ctl, guest_in; the console is $guest_work/NAME.log.
guest_vm() {
    local name=$1 root=$2
    shift 2
    guest_ctl=$guest_work/$name.ctl guest_in=$guest_work/$name.in
    "$CUBE_BUILD_DIR/node/vmmctl/cube-vm" run --kernel "$(guest_kernel)" --root "$root" \
        --tools "$CUBE_BUILD_DIR/guest/tools.erofs" --ctl "$guest_ctl" --in "$guest_in" "$@" > "$guest_work/$name.log" 2>&1 &
    guest_pids+=($!)
    guest_vm_pid=$!
}

# TCP port that leads to a guest port: guest_bridge IN_SOCK PORT; sets guest_port.
guest_bridge() {
    local out=$guest_work/bridge.$2.$RANDOM
    : > "$out"
    python3 "$CUBE_ROOT/tests/guest/bridge.py" "$1" "$2" > "$out" 2>/dev/null &
    guest_pids+=($!)
    guest_wait "$out" || return 1
    guest_port=$(cat "$out")
}

# The suites of the SDKs: guest_suites NAME USER, against http://127.0.0.1:$guest_port, or, when TEMPLATE is set, each in a
# sandbox of its own on the cluster that the environment names (`cube env`).
guest_suites() {
    local name=$1 user=$2 modules python
    modules=$("$CUBE_ROOT/tests/lib/node_modules.sh" "$CUBE_ROOT/tests/guest/js" | tail -n 1)
    python=$("$CUBE_ROOT/tests/lib/pip_env.sh" "$CUBE_ROOT/tests/guest/py/requirements.txt" | tail -n 1)
    mkdir -p "$guest_work/js"
    cp "$CUBE_ROOT"/tests/guest/js/*.mjs "$guest_work/js/"
    ln -sfn "$modules/node_modules" "$guest_work/js/node_modules"
    protoc --proto_path="$CUBE_ROOT/tests/guest/proto" --include_imports --descriptor_set_out="$guest_work/descriptors" \
        process.proto filesystem.proto
    if [ -n "${TEMPLATE:-}" ]; then
        export BASE_URL=$E2B_SANDBOX_URL
    else
        export E2B_SANDBOX_URL=http://127.0.0.1:$guest_port BASE_URL=http://127.0.0.1:$guest_port E2B_DEBUG=true E2B_API_KEY=e2b_00
    fi
    export DESCRIPTORS=$guest_work/descriptors GUEST_USER=$user WORK_DIR=/tmp/cube-guest-files-$$
    SDK=e2b SUITE="guest $name: js 2.51.0" timeout 720 node "$guest_work/js/sdk.mjs" || echo "FAIL guest $name: js 2.51.0 ended with status $?"
    SDK=e2b-2-49 SUITE="guest $name: js 2.49.0" timeout 720 node "$guest_work/js/sdk.mjs" || echo "FAIL guest $name: js 2.49.0 ended with status $?"
    SUITE="guest $name: connect" timeout 720 node "$guest_work/js/connect.mjs" || echo "FAIL guest $name: connect ended with status $?"
    SUITE="guest $name: python 2.63.0" timeout 720 "$python" "$CUBE_ROOT/tests/guest/py/sdk.py" || echo "FAIL guest $name: python ended with status $?"
}
