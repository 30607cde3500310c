# cube-vmm and cube-jailer with real guests: boot, snapshot and restore, damage, network, jail, adoption, sweep.
# limit: 900 s
set -u
cd "$CUBE_ROOT" || exit 1
build=$CUBE_BUILD_DIR
out=$(mktemp)
trap 'rm -f "$out"' EXIT
for name in snapshot jailer net soak; do
    test=$build/tests/vmm/test-vmm-$name
    [ -x "$test" ] || { echo "FAIL vmm-$name: not built"; continue; }
    timeout 720 "$test" "$build/node/vmm/cube-vmm" "$build/node/jailer/cube-jailer" "$build/tests/vmm/vmm-test-init" 2>&1 | tee "$out"
    status=${PIPESTATUS[0]}
    case $status in
    0) echo "PASS vmm-$name" ;;
    77) echo "SKIP vmm-$name: $(tail -n 1 "$out")" ;;
    *) echo "FAIL vmm-$name: status $status: $(tail -n 3 "$out" | tr '\n' '|' | cut -c 1-600)" ;;
    esac
done
