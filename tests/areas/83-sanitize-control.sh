# cube-master and cube-lifecycle under AddressSanitizer + UndefinedBehaviorSanitizer and under ThreadSanitizer, through their black-box tests, and
# with cube-api against the hostile client.
# Both run one loop whose fibers ThreadSanitizer is told of; the one other thread resolves host names, so Redis has a name here, not a number.
# limit: 1200 s
set -u
cd "$CUBE_ROOT" || exit 1
. tests/lib/sanitized.sh
CUBE_NODE_MODULES=$(tests/lib/node_modules.sh tests/control | tail -n 1)/node_modules
export CUBE_NODE_MODULES CUBE_REDIS_HOST=localhost
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=0:suppressions=$CUBE_ROOT/tests/tsan.supp

# run KIND SANITIZERS TSAN_SHIMS SUITE...
run() {
    kind=$1
    build=$CUBE_ROOT/build-$kind
    sanitized_setup "$kind" "$build" "$2" "$3" &&
        sanitized_build "$kind" "$build" master/cube-master lifecycle/cube-lifecycle api/cube-api || return
    shift 3
    export CUBE_MASTER_PROGRAM=$build/master/cube-master CUBE_LIFECYCLE_PROGRAM=$build/lifecycle/cube-lifecycle
    for suite in "$@"; do
        CUBE_TEST_AREA=$kind timeout 600 node "tests/control/$suite.mjs" || echo "FAIL $kind: $suite.mjs ended with status $?"
    done
    CUBE_API_PROGRAM=$build/api/cube-api timeout 600 node tests/api/hostile.mjs | sed "s/^\(PASS\|FAIL\|SKIP\) /\1 $kind: /"
    status=${PIPESTATUS[0]}
    [ "$status" -eq 0 ] || echo "FAIL $kind: hostile.mjs ended with status $status"
}

# One thread: what libh2o keeps per thread is lost with a thread that ends, which only looks like a leak.
CUBE_API_THREADS=1 run asan address,undefined false line limits snapshots faults
run tsan thread true line snapshots
exit 0
