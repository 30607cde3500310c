# The ingress under AddressSanitizer + UndefinedBehaviorSanitizer (every suite but the SDKs' and h2spec) and, with four workers, under ThreadSanitizer.
# limit: 1500 s
set -u
cd "$CUBE_ROOT" || exit 1
. tests/lib/sanitized.sh
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=0:suppressions=$CUBE_ROOT/tests/tsan.supp
programs="proxy/cube-proxy node/relay/cube-relay tests/ingress/connector tests/ingress/wake-server tests/ingress/churn"

# run KIND SANITIZERS TSAN_SHIMS SUITE…: builds the programs once, then runs the suites with them. The cluster of each suite fails when a log holds a report.
run() {
    kind=$1 build=$CUBE_ROOT/build-$1
    # shellcheck disable=SC2086
    sanitized_setup "ingress $kind" "$build" "$2" "$3" && sanitized_build "ingress $kind" "$build" $programs || return
    shift 3
    for suite in "$@"; do
        CUBE_BUILD=$build CUBE_CHURN_SECONDS=8 CUBE_CHURN_EVENTS=30000 timeout 720 python3 -u "tests/ingress/test_$suite.py" | sed "s/^\(PASS\|FAIL\|SKIP\) ingress/\1 $kind ingress/"
        status=${PIPESTATUS[0]}
        [ "$status" -le 1 ] || echo "FAIL $kind ingress: $suite ended with status $status"
    done
}
run asan address,undefined false attack http1 http2 lifecycle limits link operation relay_tls
run tsan thread true lifecycle limits link property
exit 0
