# The way in: real cube-proxy and cube-relay with a connector in the place of the VM.
# limit: 1200 s
set -u
cd "$CUBE_ROOT" || exit 1
export CUBE_BUILD=$CUBE_BUILD_DIR
for suite in tests/ingress/test_*.py; do
    timeout 600 python3 -u "$suite" || echo "FAIL ingress: ${suite##*/} ended with status $?"
done
# The streaming matrix once more as between two hosts, where both programs carry the bytes.
for suite in http1 http2; do
    CUBE_INGRESS_TCP=1 timeout 600 python3 -u "tests/ingress/test_$suite.py" | sed 's/^\(PASS\|FAIL\|SKIP\) ingress/\1 tcp ingress/'
    status=${PIPESTATUS[0]}
    [ "$status" -le 1 ] || echo "FAIL tcp ingress: $suite ended with status $status"
done
exit 0
