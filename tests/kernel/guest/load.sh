#!/bin/bash
# load.sh — the mixed load of the soak: every worker loops for ever and writes a line to /run/errors when something is wrong.
# load.sh --status prints "rounds errors".
errors=/run/errors rounds=/run/rounds
case ${1:-} in
--status)
    echo "$(cat $rounds.* 2>/dev/null | wc -l) $(cat $errors 2>/dev/null | wc -l)"
    exit
    ;;
esac
: >$errors
worker() {
    name=$1
    shift
    while :; do
        "$@" >/run/out."$name" 2>&1 || echo "$name ended with $?: $(tail -c 300 /run/out."$name" | tr '\n' ' ')" >>$errors
        echo >>$rounds."$name"
    done
}
disk() {
    head -c 3000000 /dev/urandom >/var/tmp/blob && sync /var/tmp/blob && a=$(sha256sum </var/tmp/blob) &&
        dd if=/var/tmp/blob of=/var/tmp/copy bs=64k conv=fsync status=none && echo 3 >/proc/sys/vm/drop_caches &&
        b=$(sha256sum </var/tmp/copy) && [ "$a" = "$b" ]
}
worker registers /tools/bin/registers 1 200 &
worker state /tools/bin/state 1 &
worker memory /tools/bin/memory 1 &
worker faults /tools/bin/faults &
worker debugger /tools/bin/debugger &
worker disk disk &
worker pipes bash /tools/bin/programs.sh bash_pipelines &
worker threads bash /tools/bin/programs.sh python_threads &
worker sqlite bash /tools/bin/programs.sh sqlite_fsync &
disown -a
