#!/bin/bash
# One more node on a machine that has a cluster, with a state, sockets, ports, cgroup and service net of its own (docs/nodes.md).
#   extra_node.sh start DIR ID PORT        PORT: gRPC; +1 relay, +100 and +101 admin, +104 DNS admin
#   extra_node.sh crash DIR                kill -9 of everything that is this node: daemons and VMs
#   extra_node.sh stop DIR                 the daemons end, the jailer's sweep leaves nothing
# The cluster is CUBE_STATE_DIR (keys) and CUBE_MASTER (address); the guest is CUBE_GUEST_KERNEL, CUBE_GUEST_BASE, CUBE_GUEST_TOOLS.
set -eu
verb=$1 dir=$2 build=$CUBE_BUILD_DIR
config=$dir/cube.yaml

as() { # as UID GROUPS CAPS PROGRAM ARG...: no privilege but the capabilities named
    local uid=$1 groups=$2 caps=$3
    shift 3
    local options=(--reuid "$uid" --regid "$uid" --no-new-privs)
    [ -n "$groups" ] && options+=(--groups "$groups") || options+=(--clear-groups)
    [ -n "$caps" ] && options+=(--inh-caps "$caps" --ambient-caps "$caps") || options+=(--inh-caps -all --ambient-caps -all)
    exec setpriv "${options[@]}" "$@"
}

daemon() { # daemon NAME COMMAND...: in a session of its own; its pid is kept
    local name=$1
    shift
    setsid "$@" >>"$dir/log/$name.log" 2>&1 </dev/null &
    echo $! >"$dir/pid/$name"
}

# The VMs of the node, by its cgroup: on a unified hierarchy or one of the old ones.
vms() {
    local group
    group=$(sed -n 's/^  cgroup: //p' "$config")
    cat /proc/self/mounts | awk '$3 ~ /^cgroup2?$/ {print $2}' | while read -r mount; do
        [ -d "$mount/$group" ] && find "$mount/$group" -name cgroup.procs -exec cat {} +
    done | sort -u
}

wait_gone() {
    for pid in "$@"; do
        while kill -0 "$pid" 2>/dev/null && ! grep -qs '^State:.Z' "/proc/$pid/status"; do sleep 0.02; done
    done
}

case $verb in
start)
    id=$3 port=$4
    mkdir -p "$dir"/{log,pid} "$dir"/state/{store,sandboxes} "$dir"/run/{sb,warm,relay,dns}
    chmod 755 "$dir" "$dir/state" "$dir/run"
    chown 59002:59002 "$dir"/state/{store,sandboxes} "$dir"/run/{sb,warm}
    chown 59003:59003 "$dir/run/relay"
    chown 59005:59005 "$dir/run/dns"
    chmod 711 "$dir/run/warm"
    chmod 700 "$dir/state/sandboxes"
    chmod 750 "$dir"/run/{relay,dns}
    cat >"$config" <<YAML
common:
  state_dir: $dir/state
  run_dir: $dir/run
  key_dir: $CUBE_STATE_DIR/keys
node:
  id: $id
  listen: 127.0.0.1:$port
  admin_listen: 127.0.0.1:$((port + 100))
  master: $CUBE_MASTER
  relay_address: 127.0.0.1:$((port + 1))
  service_net: 169.254.128.0
  labels: "role=extra"
relay:
  listen: 127.0.0.1:$((port + 1))
  admin_listen: 127.0.0.1:$((port + 101))
jailer:
  cgroup: cube-extra-$port
  dns_ip: 169.254.128.1
  vm_uid_base: 61100
dns:
  admin_listen: 127.0.0.1:$((port + 104))
  slot_net: 169.254.128.0
YAML
    [ -e "$dir/template" ] || {
        (as 59002 "" "" "$build/node/daemon/cube-node" template import --config "$config" --name base \
            --root "$CUBE_GUEST_BASE" --kernel "$CUBE_GUEST_KERNEL" --tools "$CUBE_GUEST_TOOLS") >"$dir/template.new"
        mv "$dir/template.new" "$dir/template"
    }
    daemon cube-jailer "$build/node/jailer/cube-jailer" --config "$config"
    daemon cube-node "$0" run-as "$dir" 59002 59003,59005 +net_admin,+bpf,+perfmon "$build/node/daemon/cube-node" --config "$config"
    daemon cube-relay "$0" run-as "$dir" 59003 "" "" "$build/node/relay/cube-relay" --config "$config"
    daemon cube-dns "$0" run-as "$dir" 59005 "" "" "$build/node/dns/cube-dns" --config "$config"
    ;;
run-as)
    shift 2
    as "$@"
    ;;
crash)
    pids=$(cat "$dir"/pid/cube-node "$dir"/pid/cube-jailer "$dir"/pid/cube-relay "$dir"/pid/cube-dns)
    machines=$(vms)
    kill -STOP $pids # none of them sees another end, as on a machine that loses its power
    kill -9 $pids $machines 2>/dev/null || true
    wait_gone $pids $machines
    ;;
stop)
    for name in cube-dns cube-relay cube-node cube-jailer; do
        [ -s "$dir/pid/$name" ] || continue
        pid=$(cat "$dir/pid/$name")
        kill "$pid" 2>/dev/null || true
        wait_gone "$pid"
    done
    machines=$(vms)
    [ -z "$machines" ] || { kill -9 $machines || true; wait_gone $machines; }
    "$build/node/net/cube-vs" --pins "$dir/run/bpf/vs" remove
    "$build/node/jailer/cube-jailer" --config "$config" --sweep
    ;;
esac
