# The state machine: a million random proposals of several committers through the real script in a real Redis, against a model.
# limit: 400 s
set -u
"$CUBE_BUILD_DIR/tests/control/control-property" "${CUBE_PROPERTY_EVENTS:-1000000}"
