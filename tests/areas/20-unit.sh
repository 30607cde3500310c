# Unit and property tests (cmocka), each program a test.
# limit: 400 s
set -u
cd "$CUBE_ROOT" || exit 1
meson test -C "$CUBE_BUILD_DIR" --suite unit --no-rebuild --print-errorlogs --num-processes 2
python3 - "$CUBE_BUILD_DIR/meson-logs/testlog.json" <<'PY'
import json, sys
for line in open(sys.argv[1]):
    t = json.loads(line)
    name = t["name"].split(" / ")[-1]
    if t["result"] in ("OK", "EXPECTEDFAIL"):
        print("PASS " + name)
    elif t["result"] == "SKIP":
        print("SKIP " + name + ": the test program said so")
    else:
        print("FAIL %s: %s, status %s" % (name, t["result"], t["returncode"]))
PY
