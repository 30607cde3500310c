#!/bin/bash
# `cube bench guest-alone` and `cube bench guest`: brings the daemon (or a VM, and beside it a VM for raw copies) up and measures.
set -eu
name=$1
shift
CUBE_ROOT=${CUBE_ROOT:-$(cd "$(dirname "$0")/../.." && pwd)}
CUBE_BUILD_DIR=${CUBE_BUILD_DIR:-$CUBE_ROOT/build} CUBE_CACHE=${CUBE_CACHE:-/var/cache/cube}
cd "$CUBE_ROOT"
# shellcheck source=tests/guest/lib.sh
. tests/guest/lib.sh
bench=$CUBE_BUILD_DIR/bench/guest/cube-bench-guest
# Whoever ends us early gets what was measured until then.
measure() {
    "$@" &
    local pid=$! status=0
    trap 'kill -TERM $pid 2>/dev/null' TERM INT
    wait $pid || status=$?
    if kill -0 $pid 2>/dev/null; then # the trap ended the wait, not the program
        status=0
        wait $pid || status=$?
    fi
    exit $status
}
if [ "$name" = guest-alone ]; then
    guest_alone
    # The shell alone must see the same login files as the one that envd starts.
    measure unshare -m sh -c 'mount -t tmpfs -o mode=700 tmpfs /root && exec "$0" "$@"' \
        "$bench" --name "$name" --port "$guest_port" --pid "$guest_alone_pid" --envd "$CUBE_BUILD_DIR/guest/envd/cube-envd" "$@"
fi
root=$(guest/base/build.sh | tail -n 1)
guest_vm bench "$root" --memory-mib 1024
in=$guest_in
PYTHONPATH=tests/guest python3 -c "import ctl; c = ctl.Control('$guest_ctl'); c.set_identity(network=False); c.health()"
mkdir "$guest_work/raw"
cp "$CUBE_BUILD_DIR/bench/guest/bench-guest-raw" "$guest_work/raw/init"
mkfs.ext4 -q -F -O ^has_journal -d "$guest_work/raw" "$guest_work/raw.ext4" 16M > /dev/null 2>&1
guest_vm raw "$guest_work/raw.ext4" --cmdline "root=/dev/vda ro init=/init"
for _ in $(seq 200); do
    [ -S "$guest_in" ] && python3 - "$guest_in" <<'P' && break
import socket, sys
s = socket.socket(socket.AF_UNIX); s.settimeout(5); s.connect(sys.argv[1]); s.sendall(b"\xc3\x3f")
sys.exit(s.recv(1) != b"\0")
P
    sleep 0.1
done
measure "$bench" --name "$name" --in "$in" --raw "$guest_in" "$@"
