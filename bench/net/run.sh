#!/bin/bash
# `./cube bench net [--json]`: CubeVS beside a plain forwarding path (veth pair, routing, nftables masquerade) between the same guest and the same world, in one
# run, the two taking turns. Throughput by TCP between two network stacks; packets by small UDP datagrams written to a TAP, so that no sender's or
# receiver's socket is in the figure; CPU as jiffies of the whole machine per packet that arrived.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
export BED_OFFLOADS=1 CUBE_ROOT=$root CUBE_BUILD_DIR="${CUBE_BUILD_DIR:-$root/build}"
rounds=${ROUNDS:-3} seconds=${SECONDS_EACH:-3}
. "$root/tests/net/bed.sh"
trap bed_down EXIT
bed_up
cvs load && cvs attach cbt1 1 || exit 1

# The peer: a third guest behind the kernel's own forwarding and masquerade.
peer=${p}p
ip netns add "$peer"
ip link add peer0 netns "$node" type veth peer name eth0 netns "$peer"
in_ns "$peer" ip addr add 192.168.77.2/24 dev eth0
in_ns "$peer" ip link set eth0 mtu 1450 up
in_ns "$peer" ip link set lo up
in_ns "$peer" ip route add default via 192.168.77.1
in_ns "$peer" ethtool -K eth0 tx off >/dev/null 2>&1
in_ns "$node" ip addr add 192.168.77.1/24 dev peer0
in_ns "$node" ip link set peer0 up
in_ns "$node" sysctl -qw net.ipv4.ip_forward=1
in_ns "$node" nft -f - <<'NFT'
table ip peer {
    chain post {
        type nat hook postrouting priority 100
        oifname "up0" masquerade
    }
}
NFT
# For packets: two TAPs as the VMM has them, written to by a program that plays the guest; the world drops what arrives after counting it.
flood=$CUBE_BUILD_DIR/bench/net/cube-bench-flood
for tap in cbt3 peer1; do in_ns "$node" ip tuntap add "$tap" mode tap vnet_hdr && in_ns "$node" ip link set "$tap" up; done
in_ns "$node" ip addr add 192.168.78.1/24 dev peer1
cvs attach cbt3 3 || exit 1
peer_mac=$(in_ns "$node" cat /sys/class/net/peer1/address)
serve "$world" iperf3 -s -p 5201
for _ in $(seq 100); do in_ns "$guest1" nc -z 93.184.216.34 5201 2>/dev/null && break; sleep 0.05; done
in_ns "$node" ip neigh replace 93.184.216.34 lladdr "$(in_ns "$world" cat /sys/class/net/eth0/address)" dev up0 nud permanent

busy() { awk '/^cpu / {print $2 + $3 + $4 + $7 + $8}' /proc/stat; }
arrived() { in_ns "$world" cat /sys/class/net/eth0/statistics/rx_packets; }
throughput() { # NAMESPACE
    in_ns "$1" iperf3 -c 93.184.216.34 -J -t "$seconds" | python3 -c 'import json, sys; print(json.load(sys.stdin)["end"]["sum_received"]["bits_per_second"])'
}
packets() { # TAP MAC ADDRESS -> "PACKETS JIFFIES"
    local before=$(busy) had=$(arrived)
    in_ns "$node" "$flood" send "$1" "$2" "$3" 16 "$seconds" >/dev/null || return 1
    echo "$(($(arrived) - had)) $(($(busy) - before))"
}
arguments=()
for _ in $(seq "$rounds"); do
    tcp1=$(throughput "$guest1") && tcp2=$(throughput "$peer") || { echo "bench net: iperf3 failed" >&2; ip netns del "$peer"; exit 1; }
    arguments+=(throughput-ratio x "$(python3 -c "print($tcp1 / $tcp2)")")
done
in_ns "$world" "$flood" sink eth0
for _ in $(seq "$rounds"); do
    read -r packets1 jiffies1 <<< "$(packets cbt3 02:cb:00:00:00:02 169.254.0.21)"
    read -r packets2 jiffies2 <<< "$(packets peer1 "$peer_mac" 192.168.78.2)"
    [ -n "${jiffies2:-}" ] || { echo "bench net: the flood failed" >&2; ip netns del "$peer"; exit 1; }
    arguments+=(pps-ratio x "$(python3 -c "print($packets1 / $packets2)")"
        cpu-ratio x "$(python3 -c "print(($jiffies1 / $packets1) / ($jiffies2 / $packets2))")"
        packets-per-second count "$((packets1 / seconds))")
done
ip netns del "$peer"
json=
[ "${1:-}" = --json ] && json=--json
exec_net() { "$CUBE_BUILD_DIR/bench/net/cube-bench-net" $json "${arguments[@]}"; }
exec_net
