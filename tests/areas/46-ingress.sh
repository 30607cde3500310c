# The way in: real cube-proxy and cube-relay with a connector in the place of the VM.
# limit: 1200 s
set -u
cd "$CUBE_ROOT" || exit 1
export CUBE_BUILD=$CUBE_BUILD_DIR
for suite in tests/ingress/test_*.py; do
    timeout 600 python3 -u "$suite" || echo "FAIL ingress: ${suite##*/} ended with status $?"
done
exit 0
