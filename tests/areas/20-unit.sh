# Unit and property tests (cmocka), each program a test.
# limit: 900 s
set -u
cd "$CUBE_ROOT" || exit 1
meson test -C "$CUBE_BUILD_DIR" --suite unit --no-rebuild --print-errorlogs --num-processes 2 --timeout-multiplier 4
python3 - "$CUBE_BUILD_DIR/meson-logs/testlog.json" <<'PY'
import json, re, sys
for line in open(sys.argv[1]):
    t = json.loads(line)
    name = t["name"].split(" / ")[-1]
    if t["result"] in ("OK", "EXPECTEDFAIL"):
        print("PASS " + name)
    elif t["result"] == "SKIP":
        print("SKIP " + name + ": the test program said so")
    else:
        said = [l.strip() for l in (t.get("stdout") or "").splitlines() + (t.get("stderr") or "").splitlines()]
        why = [l for l in said if re.search(r"error|ERROR|FAILED|[Aa]ssert|0x", l) and not l.startswith("[==")] or said[-3:]
        print("FAIL %s: %s, status %s: %s" % (name, t["result"], t["returncode"], " | ".join(why[:6])[:600]))
PY
