#!/bin/bash
# limit: 1500 s. cube-node with real jailer, VMMs and guests: starts, pauses, snapshots, damage, kill -9, deadlines, chaos, a soak (LONG=1: half an hour).
set -u
cd "$CUBE_ROOT" || exit 1
status=0
for test in tests/node/*_test.py; do
    python3 "$test" || status=1
done
exit $status
