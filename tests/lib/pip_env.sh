#!/bin/sh
# Prints the python of a virtual environment: pip_env.sh REQUIREMENTS (a file with exact versions). Installed once per content
# of the file, below ${CUBE_CACHE:-/var/cache/cube}/pip/<hash>; safe to call in parallel.
set -eu
file=$(realpath "$1")
python=${CUBE_PYTHON:-python3}
# The interpreter is part of the key, and an environment cannot be moved: it is made in place under a lock.
hash=$({ cat "$file"; "$python" --version; } | sha256sum | cut -c1-32)
root=${CUBE_CACHE:-/var/cache/cube}/pip
mkdir -p "$root"
(
    flock 9
    [ -f "$root/$hash/complete" ] && exit 0
    rm -rf "${root:?}/$hash"
    "$python" -m venv "$root/$hash" >&2
    "$root/$hash/bin/pip" install --quiet --disable-pip-version-check -r "$file" >&2
    touch "$root/$hash/complete"
) 9> "$root/.lock-$hash"
echo "$root/$hash/bin/python"
