# Unit tests, cube-envd, and cube-node with cube-jailer under AddressSanitizer + UndefinedBehaviorSanitizer, and those of lib (threads, posts,
# resolver) under ThreadSanitizer.
# limit: 1500 s
set -u
cd "$CUBE_ROOT" || exit 1
. tests/lib/sanitized.sh
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=0:suppressions=$CUBE_ROOT/tests/tsan.supp

# run KIND SANITIZERS PATTERN: builds and runs the unit tests whose name matches.
run() {
    build=$CUBE_ROOT/build-$1
    sanitized_setup "$1" "$build" "$2" "$4" || return
    ninja -C "$build" build.ninja >/dev/null # new tests since the last run
    meson introspect --tests "$build" >"$build/tests.json"
    python3 - "$build" "$3" <<'PY' >"$build/tests.txt"
import json, os, re, sys
build = os.path.realpath(sys.argv[1])
for t in json.load(open(build + "/tests.json")):
    name = t["name"].split(" / ")[-1]
    if "unit" in [s.split(":")[-1] for s in t["suite"]] and re.search(sys.argv[2], name):
        print(name, os.path.relpath(t["cmd"][0], build))
PY
    # shellcheck disable=SC2046
    sanitized_build "$1" "$build" $(cut -d' ' -f2 "$build/tests.txt" | grep -v '^\.\.' | sort -u) || return
    # The suite too: a test of another one may have the name.
    rm -f "$build/meson-logs/testlog.json"
    # shellcheck disable=SC2046
    out=$(meson test -C "$build" --suite unit --no-rebuild --num-processes 2 --timeout-multiplier 5 $(cut -d' ' -f1 "$build/tests.txt"))
    [ -s "$build/meson-logs/testlog.json" ] || { echo "FAIL $1: no test has run: $(printf '%s' "$out" | tail -n 2 | tr '\n' ' ')"; return; }
    python3 - "$build/meson-logs/testlog.json" "$1" <<'PY'
import json, re, sys
for line in open(sys.argv[1]):
    t = json.loads(line)
    name = t["name"].split(" / ")[-1]
    if t["result"] in ("OK", "EXPECTEDFAIL"):
        print("PASS %s: %s" % (sys.argv[2], name))
    elif t["result"] == "SKIP":
        print("SKIP %s: %s: the test program said so" % (sys.argv[2], name))
    else:
        said = (t.get("stdout") or "") + (t.get("stderr") or "")
        why = [l.strip() for l in said.splitlines() if re.search(r"Sanitizer|runtime error|error:|FAILED|#[0-3] ", l)]
        print(said[-6000:])
        print("FAIL %s: %s: %s, status %s: %s" % (sys.argv[2], name, t["result"], t["returncode"], " | ".join(why[:6])[:600]))
PY
}

# Not here: tests that mostly wait in real time, and the report that a sanitizer makes by itself.
run asan address,undefined '^(?!lib-crash$|lib-rpc-idle$|lib-redis-sentinel$)' false
run tsan thread '^(lib-(base|wire|loop|ends|config|rpc|rpc-tls)|proxy-share)$' true
# The guest's daemon as a whole, with bad input: the suite that the area guest runs on the usual build.
. tests/guest/lib.sh
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=0
if ! nice -n 5 ninja -C "$CUBE_ROOT/build-asan" guest/envd/cube-envd > /dev/null || ! guest_alone "$CUBE_ROOT/build-asan/guest/envd/cube-envd"; then
    echo "FAIL guest asan: envd is not built or does not start"
    exit 0
fi
SANITIZED=1 SUITE="guest asan" timeout 900 python3 tests/guest/hostile.py "$guest_port" "$guest_alone_pid" || echo "FAIL guest asan: ended with status $?"
if kill -0 "$guest_alone_pid" && ! grep -q 'ERROR: \|runtime error' "$guest_work/alone.log"; then echo "PASS guest asan: no report"; else
    tail -n 60 "$guest_work/alone.log"
    echo "FAIL guest asan: the daemon's log holds a report, or it is gone"
fi
# The node's daemons where much happens at once: a report ends the daemon, which the tests notice.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
sanitized_build "node asan" "$CUBE_ROOT/build-asan" node/daemon/cube-node node/jailer/cube-jailer || exit 0
node_asan() {
    CUBE_NODE_BUILD_DIR=$CUBE_ROOT/build-asan CUBE_CHAOS_SECONDS=8 python3 "$@" | sed 's/^\(PASS\|FAIL\|SKIP\) /\1 node asan: /'
    return "${PIPESTATUS[0]}"
}
status=0
node_asan tests/node/chaos_test.py || status=1
node_asan tests/node/node_test.py commands_wait_until_sandboxes_are_taken_over logs_and_metrics the_remembered_are_bounded || status=1
exit $status
