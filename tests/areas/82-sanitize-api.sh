# cube-api under AddressSanitizer + UndefinedBehaviorSanitizer, and with four threads under ThreadSanitizer, through its black-box tests.
# limit: 1500 s
set -u
cd "$CUBE_ROOT" || exit 1
. tests/lib/sanitized.sh
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=0:suppressions=$CUBE_ROOT/tests/tsan.supp

# run KIND SANITIZERS TSAN_SHIMS SUITE...
run() {
    kind=$1
    build=$CUBE_ROOT/build-$kind
    sanitized_setup "$kind" "$build" "$2" "$3" && sanitized_build "$kind" "$build" api/cube-api || return
    shift 3
    for suite in "$@"; do
        CUBE_API_PROGRAM=$build/api/cube-api timeout 600 node "tests/api/$suite.mjs" | sed "s/^\(PASS\|FAIL\|SKIP\) /\1 $kind: /"
        status=${PIPESTATUS[0]}
        [ "$status" -eq 0 ] || echo "FAIL $kind: $suite.mjs ended with status $status"
    done
}

run asan address,undefined false endpoints wire callback
export CUBE_API_THREADS=4
run tsan thread true endpoints wire
exit 0
