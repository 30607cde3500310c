#!/bin/bash
# tests/kernel/list.sh [--full] [--soak SECONDS] [run.py options] — the guest kernel's tests on this host's kind of KVM.
#
# Builds what is missing (kernel, root file system) and prints PASS, FAIL or SKIP per program, with one and with two vCPUs.
# --full takes the large programs in: a JVM, Go, chromium, whole classes of stress-ng. --soak runs mixed load for so long, with
# snapshots at random moments, each restored and compared; a busy machine makes it harder: --busy adds a processor hog and a disk
# writer per core.
# Environment: CUBE_BUILD_DIR (default build/), CUBE_CACHE.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
build=${CUBE_BUILD_DIR:-$root/build}
packages=$root/tests/kernel/packages.txt
busy=
options=()
while [ $# -gt 0 ]; do
    case $1 in
    --full) packages=$root/tests/kernel/packages-full.txt options+=(--limit 600) ;;
    --busy) busy=1 ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d'; exit 0 ;;
    *) options+=("$1") ;;
    esac
    shift
done

kernel=$("$root/guest/kernel/build.sh" | tail -n 1)
image=$("$root/guest/base/build.sh" --with "$packages" | tail -n 1)

hogs=()
scratch=
cleanup() {
    [ ${#hogs[@]} -eq 0 ] || kill "${hogs[@]}" 2>/dev/null || true
    [ -z "$scratch" ] || rm -rf "$scratch"
}
trap cleanup EXIT
if [ -n "$busy" ]; then
    scratch=$(mktemp -d)
    for n in $(seq "$(nproc)"); do
        (while :; do :; done) &
        hogs+=($!)
        (while :; do dd if=/dev/zero of="$scratch/$n" bs=1M count=300 conv=fsync status=none; done) &
        hogs+=($!)
    done
fi
"$root/tests/kernel/run.py" --vmm "$build/node/vmm/cube-vmm" --kernel "$kernel" --root "$image" \
    --tools "$build/tests/kernel/kernel-tools.erofs" "${options[@]}"
