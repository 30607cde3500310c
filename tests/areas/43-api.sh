# cube-api with real masters, Redis and simulated nodes: endpoints, the wire, the commands for people, and the unmodified SDKs and CLI.
# limit: 1200 s
set -u
cd "$CUBE_ROOT" || exit 1
CUBE_NODE_MODULES=$(tests/lib/node_modules.sh tests/api/js | tail -n 1)
CUBE_PYTHON_ENV=$(tests/lib/pip_env.sh tests/guest/py/requirements.txt)
export CUBE_NODE_MODULES CUBE_PYTHON_ENV
for suite in endpoints wire hostile instances callback cli sdk; do
    timeout 600 node "tests/api/$suite.mjs" || echo "FAIL api: $suite.mjs ended with status $?"
done
exit 0
