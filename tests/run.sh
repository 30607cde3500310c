#!/bin/bash
# The whole test suite: `./cube test` and CI. Prints the time per area and closes with "N passed, N failed, N skipped".
#   tests/run.sh            every area
#   tests/run.sh AREA...    only these: build unit guest vmm node control api ingress rpc net kernel e2e chaos fuzz sanitize svm docs
# Each area is a script tests/areas/NN-NAME.sh. It prints one line per test: "PASS name", "FAIL name: why" or "SKIP name: why"; its exit
# status other than 0 counts as one failure more. Everything else that it prints goes to its log.
set -u
# A shell that speaks to another cluster must not lead the tests there.
unset E2B_API_KEY E2B_API_URL E2B_SANDBOX_URL E2B_DOMAIN E2B_DEBUG E2B_ACCESS_TOKEN
root=$(cd "$(dirname "$0")/.." && pwd)
export CUBE_ROOT=$root CUBE_BUILD_DIR="${CUBE_BUILD_DIR:-$root/build}" CUBE_CACHE="${CUBE_CACHE:-/var/cache/cube}"
logs=${CUBE_TEST_LOGS:-$CUBE_BUILD_DIR/test-logs}
mkdir -p "$logs"
cd "$root" || exit 1
if node=$(tests/lib/node_env.sh 2>"$logs/node.log"); then PATH=$node:$PATH; else
    echo "no Node.js 20.18 or later: the SDK's tests will be skipped (log: $logs/node.log)"
fi

# Daemons of any user append here where they were when a signal ended them (lib/base/crash.h).
CUBE_CRASH_FILE=$(mktemp /tmp/cube-crashes-XXXXXX)
chmod 666 "$CUBE_CRASH_FILE"
export CUBE_CRASH_FILE
trap 'rm -f "$CUBE_CRASH_FILE"' EXIT

# Ends what an area that failed or hung has left running (known by the mark in its environment), so that it does not disturb the next one.
end_left() {
    local pid signal found
    for signal in TERM KILL; do
        found=
        for pid in $(grep -lzx "CUBE_TEST_RUN=$CUBE_TEST_RUN" /proc/[0-9]*/environ 2>/dev/null | cut -d / -f 3); do
            kill -0 "$pid" 2>/dev/null || continue # the grep itself
            echo "   left running by $area: $(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | cut -c 1-160)"
            kill -$signal "$pid" 2>/dev/null && found=1
        done
        [ -n "$found" ] || return
        sleep 2
    done
}

passed=0 failed=0 skipped=0
declare -a skips=() fails=() times=()
started=$(date +%s)

for script in tests/areas/*.sh; do
    area=$(basename "$script" .sh)
    area=${area#[0-9][0-9]-}
    if [ $# -gt 0 ]; then
        case " $* " in *" $area "*) ;; *) continue ;; esac
    fi
    limit=$(sed -n 's/^# limit: \([0-9]*\) s.*/\1/p' "$script")
    [ -z "${LONG:-}" ] || limit=$((${limit:-600} * 8)) # an hour of soak, all programs
    t0=$(date +%s)
    echo "== $area"
    log=$logs/$area.log
    export CUBE_TEST_RUN=$$-$area
    timeout --kill-after=20 "${limit:-600}" bash "$script" >"$log" 2>&1 </dev/null
    status=$?
    end_left
    [ -s "$CUBE_CRASH_FILE" ] && tests/lib/crashes.py "$CUBE_CRASH_FILE" "$CUBE_BUILD_DIR" >>"$log"
    : >"$CUBE_CRASH_FILE"
    p=$(grep -c '^PASS ' "$log")
    f=$(grep -c '^FAIL ' "$log")
    s=$(grep -c '^SKIP ' "$log")
    [ $((p + f + s)) -gt 0 ] || [ $status -ne 0 ] || echo "FAIL nothing has run" >>"$log"
    f=$(grep -c '^FAIL ' "$log")
    if [ $status -ne 0 ] && [ "$f" -eq 0 ]; then
        f=1
        [ $status -eq 124 ] && why="took longer than ${limit:-600} s" || why="ended with status $status"
        fails+=("$area: $why")
        tail -n 40 "$log"
    fi
    while IFS= read -r line; do fails+=("$area: ${line#FAIL }"); done < <(grep '^FAIL ' "$log")
    while IFS= read -r line; do skips+=("$area: ${line#SKIP }"); done < <(grep '^SKIP ' "$log")
    # With what was said just before: where a line cannot hold the reason, it is there.
    grep -B 8 -A 3 '^FAIL ' "$log" | grep -v '^PASS ' | cut -c 1-600 | tail -n 60
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    t=$(($(date +%s) - t0))
    times+=("$(printf '%-10s %4d s   %d passed, %d failed, %d skipped' "$area" "$t" "$p" "$f" "$s")")
    echo "   $p passed, $f failed, $s skipped in $t s (log: $log)"
done

echo
printf '%s\n' "${times[@]}"
printf '%-10s %4d s\n' total $(($(date +%s) - started))
[ ${#skips[@]} -eq 0 ] || { echo; printf 'skipped  %s\n' "${skips[@]}"; }
[ ${#fails[@]} -eq 0 ] || { echo; printf 'failed   %s\n' "${fails[@]}"; }
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
