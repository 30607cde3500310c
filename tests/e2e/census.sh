#!/bin/bash
# What a cluster left on this machine: census.sh STATE_DIR RUN_DIR. Prints one line per left-over; nothing when clean.
# Looks at processes, TAPs, cgroups, mounts, network namespaces and sockets.
set -u
state=$1 run=$2
self=$$
for p in /proc/[0-9]*; do
    pid=${p#/proc/}
    [ "$pid" = "$self" ] && continue
    args=$(tr '\0' ' ' < "$p/cmdline" 2>/dev/null) || continue
    case $args in
    *"$state"*|*"$run"*)
        case $args in *census.sh*|*tests/*) ;; *) echo "process $pid: $args" ;; esac ;;
    cube-vmm*|*/cube-vmm*) echo "process $pid: $args" ;;
    esac
done
ip -o link show 2>/dev/null | awk -F': ' '$2 ~ /^(cube|cb|tap)/ {print "interface " $2}'
ip netns list 2>/dev/null | awk '/^cube/ {print "netns " $1}'
find /sys/fs/cgroup -maxdepth 4 -type d -path '*cube*' 2>/dev/null | sed 's/^/cgroup /'
awk -v a="$state" -v b="$run" 'index($2, a) == 1 || index($2, b) == 1 {print "mount " $2}' /proc/mounts
[ -d "$run" ] && find "$run" -mindepth 1 2>/dev/null | sed 's/^/file /'
exit 0
