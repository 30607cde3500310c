# The guest: cube-envd alone on this host and in a VM with the real SDKs, cube-init's control plane, five kinds of root, bad input.
# limit: 900 s
set -u
cd "$CUBE_ROOT" || exit 1
. tests/guest/lib.sh

for f in guest/envd/cube-envd guest/init/cube-init guest/init/cube-gateway; do
    n=$(stat -c %s "$CUBE_BUILD_DIR/$f")
    [ "$n" -le 2097152 ] && echo "PASS guest: ${f##*/} has at most 2 MiB" || echo "FAIL guest: ${f##*/} has $n bytes"
done

guest_alone || { echo "FAIL guest alone: envd does not start"; cat "$guest_work/alone.log"; exit 0; }
guest_suites alone root
SUITE="guest hostile" python3 tests/guest/hostile.py "$guest_port" "$guest_alone_pid" || echo "FAIL guest hostile: ended with status $?"

SUITE="guest secure" timeout 200 python3 tests/guest/secure.py "$guest_port" || echo "FAIL guest secure: ended with status $?"

if [ -z "$(guest_kernel)" ] || [ ! -c /dev/kvm ]; then
    echo "SKIP guest vm: no guest kernel or no /dev/kvm"
    exit 0
fi
root=$(guest/base/build.sh | tail -n 1)
guest_vm control "$root" --memory-mib 256
timeout 200 python3 tests/guest/vm.py "$guest_ctl" "$guest_in" "guest vm" || { echo "FAIL guest vm: ended with status $?"; tail -n 20 "$guest_work/control.log"; }

guest_vm suites "$root" --memory-mib 1024
if PYTHONPATH=tests/guest timeout 60 python3 -c "import ctl; ctl.Control('$guest_ctl').set_identity(user='user', workdir='/home/user', network=False)"; then
    guest_bridge "$guest_in" 49983
    guest_suites vm user
else
    echo "FAIL guest vm: no identity"
    tail -n 20 "$guest_work/suites.log"
fi
tests/guest/roots.sh || echo "FAIL guest roots: ended with status $?"
exit 0
