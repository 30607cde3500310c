# The guest: cube-envd alone on this host and in a VM with the real SDKs, cube-init's control plane, five kinds of root, bad input.
# limit: 1800 s
set -u
cd "$CUBE_ROOT" || exit 1
. tests/guest/lib.sh

for f in guest/envd/cube-envd guest/init/cube-init guest/init/cube-gateway; do
    n=$(stat -c %s "$CUBE_BUILD_DIR/$f")
    [ "$n" -le 2097152 ] && echo "PASS guest: ${f##*/} has at most 2 MiB" || echo "FAIL guest: ${f##*/} has $n bytes"
done

sizes="0 1 65535 65536 65537 268435456" huge=${LONG:+5368709120}
guest_alone || { echo "FAIL guest alone: envd does not start"; cat "$guest_work/alone.log"; exit 0; }
guest_suites alone root
SUITE="guest alone" python3 tests/guest/large.py "$guest_port" /tmp $sizes $huge || echo "FAIL guest alone: large files ended with status $?"
SUITE="guest hostile" python3 tests/guest/hostile.py "$guest_port" "$guest_alone_pid" || echo "FAIL guest hostile: ended with status $?"

SUITE="guest secure" timeout 600 python3 tests/guest/secure.py "$guest_port" || echo "FAIL guest secure: ended with status $?"

cat > "$guest_work/own" << 'END'
#!/bin/sh
exec setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs python3 "$FILTERED" "$CUBE_ENVD" --end-kept-ms "$END_KEPT_MS" "$@"
END
chmod 755 "$guest_work" "$guest_work/own"
# Where an ordinary user may look; and as in a container that forbids what envd would like to have.
install -m 755 "$CUBE_BUILD_DIR/guest/envd/cube-envd" tests/guest/filtered.py "$guest_work/"
export END_KEPT_MS=1000
if FILTERED=$guest_work/filtered.py CUBE_ENVD=$guest_work/cube-envd guest_alone "$guest_work/own"; then
    SUITE="guest own user" timeout 180 python3 tests/guest/own_user.py "$guest_port" 65534 || echo "FAIL guest own user: ended with status $?"
else
    echo "FAIL guest own user: envd does not start: $(tail -n 1 "$guest_work/alone.log")"
fi

if [ -z "$(guest_kernel)" ] || [ ! -c /dev/kvm ]; then
    echo "SKIP guest vm: no guest kernel or no /dev/kvm"
    exit 0
fi
root=$(guest/base/build.sh | tail -n 1)
guest_vm control "$root" --memory-mib 256
timeout 600 python3 tests/guest/vm.py "$guest_ctl" "$guest_in" "guest vm" || { echo "FAIL guest vm: ended with status $?"; tail -n 20 "$guest_work/control.log"; }

if [ -n "$huge" ]; then # room for 5 GiB
    cp --sparse=always "$root" "$guest_work/large.ext4"
    truncate -s 12G "$guest_work/large.ext4"
    e2fsck -fp "$guest_work/large.ext4" > /dev/null
    resize2fs "$guest_work/large.ext4" > /dev/null 2>&1
    root=$guest_work/large.ext4
fi
guest_vm suites "$root" --memory-mib 1024
if PYTHONPATH=tests/guest timeout 180 python3 -c "import ctl; ctl.Control('$guest_ctl').set_identity(user='user', workdir='/home/user', network=False)"; then
    guest_bridge "$guest_in" 49983
    guest_suites vm user
    SUITE="guest vm" python3 tests/guest/large.py "$guest_port" /home/user $sizes $huge || echo "FAIL guest vm: large files ended with status $?"
else
    echo "FAIL guest vm: no identity"
    tail -n 20 "$guest_work/suites.log"
fi
tests/guest/roots.sh || echo "FAIL guest roots: ended with status $?"
exit 0
