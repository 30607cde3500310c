# The benchmarks' command: the list, and `control` at a small size with the form of its object.
# limit: 600 s
set -u
cd "$CUBE_ROOT" || exit 1
bench/run.sh | grep -q '^  control ' && echo "PASS bench: the list" || echo "FAIL bench: the list has no control"
bench/run.sh no-such 2>/dev/null && echo "FAIL bench: an unknown name is accepted" || echo "PASS bench: an unknown name is refused"
out=$(mktemp)
trap 'rm -f "$out"' EXIT
if ! timeout 600 bench/run.sh control --scale 200 --rounds 20 --quick --json >"$out"; then
    echo "FAIL bench: control"
    exit 0
fi
python3 - "$out" <<'PY'
import json, sys
v = json.load(open(sys.argv[1]))
want = {"create-added": "ms", "list": "ms", "get": "ms", "get-cpu": "µs", "deadline-late": "ms", "deadlines": "count",
        "decisions": "per second", "storm-errors": "count"}
got = {r["metric"]: r for r in v["results"]}
bad = [m for m, unit in want.items() if got.get(m, {}).get("unit") != unit or not all(k in got[m] for k in ("n", "p50", "p99", "max"))]
for key in ("cores", "kernel", "kvm", "load"):
    if key not in v["environment"]:
        bad.append("environment." + key)
if v["name"] != "control" or not isinstance(v["busy"], bool):
    bad.append("name or busy")
print("FAIL bench: the object lacks " + ", ".join(bad) if bad else "PASS bench: the object of control")
errors = got["storm-errors"]["p50"]
print("PASS bench: storms without an error" if errors == 0 else "FAIL bench: %d errors in the storms" % errors)
PY
