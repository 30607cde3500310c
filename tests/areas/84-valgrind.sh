# cube-envd under valgrind: bad input, processes and files, no error and nothing lost. LONG=1: all of the SDK suite, too.
# limit: 1500 s
set -u
cd "$CUBE_ROOT" || exit 1
. tests/guest/lib.sh
command -v valgrind > /dev/null || { echo "SKIP valgrind: not installed (Debian: valgrind)"; exit 0; }
log=$guest_work/valgrind
cp "$CUBE_BUILD_DIR/guest/envd/cube-envd-dynamic" "$guest_work/"
cat > "$guest_work/envd" << END
#!/bin/sh
exec valgrind --log-file=$log.%p --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite --trace-children=no \
    "$guest_work/cube-envd-dynamic" "\$@"
END
chmod +x "$guest_work/envd"
guest_alone "$guest_work/envd" || { echo "FAIL valgrind: envd does not start"; cat "$guest_work/alone.log"; exit 0; }
NO_OPENAT2=1 SANITIZED=1 SUITE="guest valgrind" timeout 1800 python3 tests/guest/hostile.py "$guest_port" "$guest_alone_pid" || echo "FAIL valgrind: bad input ended with $?"
[ -z "${LONG:-}" ] || guest_suites valgrind root
kill "$guest_alone_pid"
wait "$guest_alone_pid"
guest_pids=()
# Only the daemon's own report counts: a child between fork and exec has one of its own.
report=$log.$guest_alone_pid
if grep -q 'ERROR SUMMARY: 0 errors' "$report"; then echo "PASS valgrind: cube-envd has no errors and leaks nothing"; else
    cat "$report"
    echo "FAIL valgrind: $(grep -h 'ERROR SUMMARY' "$report" | tail -n 1)"
fi
exit 0
