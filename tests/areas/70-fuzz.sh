# Every libFuzzer target for a few seconds on its corpus (tests/fuzz/PART/corpus/NAME for target fuzz-PART-NAME).
# limit: 900 s
set -u
cd "$CUBE_ROOT" || exit 1
build=${CUBE_FUZZ_DIR:-$CUBE_ROOT/build-fuzz}
seconds=${CUBE_FUZZ_SECONDS:-5}
command -v clang-14 >/dev/null || { echo "SKIP fuzz: clang-14 is not installed"; exit 0; }
if [ ! -f "$build/build.ninja" ]; then
    CC="ccache clang-14" meson setup "$build" -Dfuzz=true >/dev/null || { echo "FAIL fuzz: meson setup"; exit 0; }
fi
targets=$(ninja -C "$build" -t targets all | sed -n 's/^\(tests\/fuzz\/[a-z]*\/fuzz-[a-z0-9_-]*\): .*/\1/p' | sort -u)
[ -n "$targets" ] || { echo "FAIL fuzz: no target found"; exit 0; }
# shellcheck disable=SC2086
nice -n 5 ninja -j2 -C "$build" $targets || { echo "FAIL fuzz: build"; exit 0; }
work=$(mktemp -d /tmp/cube-fuzz-XXXXXX)
trap 'rm -rf "$work"' EXIT
for target in $targets; do
    part=$(basename "$(dirname "$target")")
    name=$(basename "$target")
    corpus=tests/fuzz/$part/corpus/${name#fuzz-"$part"-}
    mkdir -p "$work/$name"
    [ -d "$corpus" ] || { echo "FAIL fuzz: $name has no corpus $corpus"; continue; }
    if timeout 180 "$build/$target" -max_total_time="$seconds" -timeout=25 -rss_limit_mb=1024 -artifact_prefix="$work/$name-" \
        -print_final_stats=1 "$work/$name" "$corpus" >"$work/log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log")
        echo "PASS fuzz: $name (${runs:-?} inputs)"
    else
        tail -n 40 "$work/log"
        kept=$build/$name-crash
        cp "$work/$name-"* "$kept" 2>/dev/null
        echo "FAIL fuzz: $name: input kept in $kept"
    fi
done
