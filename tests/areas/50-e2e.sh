# A whole cluster on free ports: `cube up`, the unmodified SDK, wrong input, kill -9 of each daemon, `cube down`, census.
# limit: 1500 s
set -u
cd "$CUBE_ROOT" || exit 1
command -v node >/dev/null || { echo "SKIP e2e: no node (the SDK wants 20.18 or later)"; exit 0; }
work=$(mktemp -d /tmp/cube-e2e-XXXXXX)
chmod 755 "$work"
export CUBE_STATE_DIR=$work/state CUBE_RUN_DIR=$work/run
base=$(tests/lib/port_base.sh)
export CUBE_PORT_BASE=$base
options=(--port-base "$base" --state "$CUBE_STATE_DIR" --run "$CUBE_RUN_DIR")
# The programs lie where only root can look, as in a clone below /root or a home directory of Debian 12.
mkdir -m 700 "$work/home"
(cd "$CUBE_BUILD_DIR" && find . -type f -executable -name 'cube*' -not -name '*.so*' -exec cp --parents -p {} "$work/home" \;)
export CUBE_BIN_DIR=$work/home
finish() {
    ./cube down "${options[@]}" >/dev/null 2>&1
    umount "$work/full" 2>/dev/null
    [ -n "${KEEP:-}" ] || rm -rf "$work"
}
trap finish EXIT

# A disk that is full while the programs are copied: it says so, and no half program is there.
mkdir -m 755 "$work/full" && mount -t tmpfs -o size=3m,mode=755 none "$work/full"
said=$(./cube up --port-base "$base" --state "$work/full/state" --run "$work/full/run" 2>&1)
[ $? -ne 0 ] && printf '%s' "$said" | grep -q 'copying .*: No space left on device' && half= || half="it said: $(printf '%s' "$said" | tail -n 1)"
for copy in "$work/full/state/bin"/*; do
    [ -e "$copy" ] || continue
    program=$(find "$work/home" -name "$(basename "$copy")" -type f)
    cmp -s "$copy" "${program:-/dev/null}" || half="$half, $copy is not a whole program"
done
umount "$work/full"
[ -z "$half" ] && echo "PASS e2e: cube up on a full disk" || echo "FAIL e2e: cube up on a full disk: $half"

if ./cube up "${options[@]}" 2>"$work/first.log"; then echo "PASS e2e: cube up"; else
    tail -n 15 "$CUBE_STATE_DIR"/log/*.log
    echo "FAIL e2e: cube up: $(tail -n 3 "$work/first.log" | tr '\n' '|' | cut -c 1-600)"
    exit 0
fi
# 10 s of processor time, of all its children: a busy machine makes it last longer (`./cube bench line` says for how long).
TIMEFORMAT='%R %U %S'
if { time ./cube up "${options[@]}" 2>"$work/up.log"; } 2>"$work/time"; then
    read -r wall user system < <(tail -n 1 "$work/time")
    awk -v u="$user" -v s="$system" 'BEGIN { exit u + s > 10 }' && echo "PASS e2e: a warm cube up takes at most 10 s ($wall s; $user and $system of a processor)" ||
        echo "FAIL e2e: a warm cube up took $user and $system s of a processor, $wall s in all"
else
    echo "FAIL e2e: a warm cube up: $(tail -n 3 "$work/up.log" | tr '\n' '|')"
fi
eval "$(./cube env --state "$CUBE_STATE_DIR")"
modules=$(bash tests/lib/node_modules.sh tests/guest/js | tail -n 1)
ln -sfn "$modules/node_modules" "$work/node_modules"
CUBE_NODE_MODULES=$(bash tests/lib/node_modules.sh tests/control | tail -n 1)/node_modules
export CUBE_NODE_MODULES
cp tests/e2e/*.mjs "$work/"
for suite in sdk bad_input node_grpc lifecycle idle memory chaos load soak; do
    timeout $((600 + ${CUBE_SOAK_SECONDS:-0})) node "$work/$suite.mjs" || { echo "FAIL e2e: $suite.mjs ended with status $?"; tail -n 15 "$CUBE_STATE_DIR"/log/*.log; }
done
image=$(guest/base/build.sh | tail -n 1) kernel=$(guest/kernel/build.sh --path "$("$CUBE_BUILD_DIR/cli/cube" doctor --kind | sed s/hardware/stock/)" | tail -n 1)
out=$("$CUBE_BUILD_DIR/cli/cube" vm run --image "$image" --kernel "$kernel" --tools "$CUBE_BUILD_DIR/guest/tools.erofs" -- /bin/sh -c 'echo in the vm; exit 3')
[ "$?/$out" = "3/in the vm" ] && echo "PASS e2e: cube vm run" || echo "FAIL e2e: cube vm run answered '$out'"
for tap in "$CUBE_RUN_DIR"/jailer/tap/*; do # for the census: interfaces of this cluster
    name=$(basename "$tap")
    printf '%s\ns%s0\ns%s1\n' "$name" "${name%%-*}" "${name%%-*}"
done | sort -u > "$CUBE_RUN_DIR.interfaces"
./cube status --state "$CUBE_STATE_DIR" && echo "PASS e2e: cube status" || echo "FAIL e2e: cube status"
./cube down "${options[@]}" && echo "PASS e2e: cube down" || echo "FAIL e2e: cube down"
left=$(tests/e2e/census.sh "$CUBE_STATE_DIR" "$CUBE_RUN_DIR" "$base")
if [ -z "$left" ]; then echo "PASS e2e: nothing is left after cube down"; else
    echo "FAIL e2e: left after cube down: $(printf '%s' "$left" | tr '\n' ';')"
fi
grep -l 'ERROR: AddressSanitizer\|runtime error' "$CUBE_STATE_DIR"/log/*.log && echo "FAIL e2e: sanitizer reports in the logs"
exit 0
