#!/bin/bash
# A whole cluster inside the node's namespace, so that real sandboxes meet a world of ours.
set -u
. "$CUBE_ROOT/tests/net/bed.sh"
work=$pins_root/cluster
options=(--state "$work/state" --run "$work/run" --port-base 24000)
finish() {
    in_net "$node" "$CUBE_BUILD_DIR/cli/cube" down --state "$work/state" --run "$work/run" >/dev/null 2>&1
    bed_down
}
trap finish EXIT
chmod 755 "$pins_root"
mkdir -p "$work/web" "$pins_root/run"
bed_up
in_ns "$node" ip link del svc0 # the cluster makes its own
head -c 20000000 /dev/urandom > "$work/web/big"
head -c 100000000 /dev/urandom > "$work/web/hundred"
git -c init.defaultBranch=main init -q "$work/src" && echo "from the world" > "$work/src/README" && git -C "$work/src" add README &&
    git -C "$work/src" -c user.name=t -c user.email=t@t commit -qm one && git clone -q --bare "$work/src" "$work/web/repo.git" &&
    git -C "$work/web/repo.git" update-server-info
# A package index with one package, for pip.
mkdir -p "$work/web/simple/demo"
python3 - "$work/web/simple/demo" <<'PY'
import hashlib, sys, zipfile
name = 'demo-1.0-py3-none-any.whl'
with zipfile.ZipFile(sys.argv[1] + '/' + name, 'w') as z:
    z.writestr('demo.py', 'print("from the world")\n')
    z.writestr('demo-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n')
    z.writestr('demo-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    z.writestr('demo-1.0.dist-info/RECORD', '')
digest = hashlib.sha256(open(sys.argv[1] + '/' + name, 'rb').read()).hexdigest()
open(sys.argv[1] + '/index.html', 'w').write('<!DOCTYPE html><html><body><a href="%s#sha256=%s">%s</a></body></html>' % (name, digest, name))
PY
serve "$world" python3 -m http.server 80 --directory "$work/web"
serve "$world" python3 "$CUBE_ROOT/tests/net/dnskit.py" serve 8.8.8.8
for _ in $(seq 600); do
    [ "$(in_ns "$node" timeout 5 python3 "$CUBE_ROOT/tests/net/dnskit.py" ask 8.8.8.8 other.test)" = "0 1.1.1.1" ] &&
        in_ns "$node" curl -s -o /dev/null http://93.184.216.34/ && break
    sleep 0.05
done
export CUBE_DNS_UPSTREAMS=8.8.8.8 CUBE_STATE_DIR=$work/state CUBE_RUN_DIR=$work/run
export CUBE_GUEST_KERNEL=$("$CUBE_ROOT/guest/kernel/build.sh" --path "$("$CUBE_BUILD_DIR/cli/cube" doctor --kind | sed 's/hardware/stock/')" | tail -n 1)
export CUBE_GUEST_BASE=$("$CUBE_ROOT/guest/base/build.sh" | tail -n 1) CUBE_GUEST_TOOLS=$CUBE_BUILD_DIR/guest/tools.erofs
if ! in_net "$node" "$CUBE_BUILD_DIR/cli/cube" up "${options[@]}"; then
    echo "FAIL net: a cluster in the node's namespace does not start"
    tail -n 5 "$work"/state/log/*.log
    exit 0
fi
eval "$("$CUBE_BUILD_DIR/cli/cube" env --state "$work/state")"
export NODE_ADMIN=http://127.0.0.1:24140 NET_NS=$node CUBE_CLI=$CUBE_BUILD_DIR/cli/cube
export BIG_SHA256=$(sha256sum < "$work/web/big" | cut -d' ' -f1) HUNDRED_SHA256=$(sha256sum < "$work/web/hundred" | cut -d' ' -f1)
modules=$(bash "$CUBE_ROOT/tests/lib/node_modules.sh" "$CUBE_ROOT/tests/guest/js" | tail -n 1)
ln -sfn "$modules/node_modules" "$work/node_modules"
cp "$CUBE_ROOT"/tests/e2e/check.mjs "$CUBE_ROOT"/tests/net/real.mjs "$work/"
in_net "$node" timeout 780 node "$work/real.mjs" || { echo "FAIL net: real.mjs ended with status $?"; tail -n 5 "$work"/state/log/*.log; }
