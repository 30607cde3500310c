# cube-api under AddressSanitizer + UndefinedBehaviorSanitizer, and with four threads under ThreadSanitizer, through its black-box tests.
# limit: 900 s
set -u
cd "$CUBE_ROOT" || exit 1
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=0:suppressions=$CUBE_ROOT/tests/tsan.supp

# run KIND SANITIZERS TSAN_SHIMS SUITE...
run() {
    kind=$1
    build=$CUBE_ROOT/build-$kind
    if [ ! -f "$build/build.ninja" ]; then
        CC="ccache gcc" meson setup "$build" -Db_sanitize="$2" -Db_lundef=false -Dwerror=false -Dtsan_shims="$3" >/dev/null || {
            echo "FAIL $kind: meson setup"
            return
        }
    fi
    nice -n 5 ninja -j2 -C "$build" api/cube-api || {
        echo "FAIL $kind: build of cube-api"
        return
    }
    shift 3
    for suite in "$@"; do
        CUBE_API_PROGRAM=$build/api/cube-api node "tests/api/$suite.mjs" | sed "s/^\(PASS\|FAIL\|SKIP\) /\1 $kind: /"
    done
}

run asan address,undefined false endpoints wire callback
export CUBE_API_THREADS=4
run tsan thread true endpoints wire
exit 0
