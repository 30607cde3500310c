#!/bin/bash
# What a cluster left on this machine: census.sh STATE_DIR RUN_DIR PORT_BASE. Prints one line per left-over; nothing when clean.
# Looks at processes, interfaces, cgroups, mounts and sockets of this cluster, so that others on the machine do not disturb it.
set -u
state=$1 run=$2 group=cube-$3
for p in /proc/[0-9]*; do
    { args=$(tr '\0' ' ' < "$p/cmdline"); } 2>/dev/null || continue
    case $args in
    *"$state"*|*"$run"*) case $args in *tests/*) ;; *) echo "process ${p#/proc/}: $args" ;; esac ;;
    esac
    grep -qs "/$group\(/\|\$\)" "$p/cgroup" && echo "process ${p#/proc/} in cgroup $group: $args"
done
find /sys/fs/cgroup -maxdepth 6 -type d -name "$group" 2>/dev/null | sed 's/^/cgroup /'
awk -v a="$state" -v b="$run" 'index($2, a) == 1 || index($2, b) == 1 {print "mount " $2}' /proc/mounts
[ -d "$run" ] && find "$run" 2>/dev/null | sed 's/^/file /'
if [ -f "$run.interfaces" ]; then # written while the cluster ran
    while read -r name; do ip link show "$name" >/dev/null 2>&1 && echo "interface $name"; done < "$run.interfaces"
fi
exit 0
