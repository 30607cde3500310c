# cube-vmm and cube-jailer with real guests: boot, snapshot and restore, damage, network, jail, adoption, sweep.
# limit: 300 s
set -u
cd "$CUBE_ROOT" || exit 1
build=$CUBE_BUILD_DIR
for name in snapshot jailer net soak; do
    test=$build/tests/vmm/test-vmm-$name
    [ -x "$test" ] || { echo "FAIL vmm-$name: not built"; continue; }
    timeout 240 "$test" "$build/node/vmm/cube-vmm" "$build/node/jailer/cube-jailer" "$build/tests/vmm/vmm-test-init"
    case $? in
    0) echo "PASS vmm-$name" ;;
    77) echo "SKIP vmm-$name: see the line above" ;;
    *) echo "FAIL vmm-$name: see the log" ;;
    esac
done
