#!/bin/bash
# `./cube bench net [--json]`: CubeVS beside a plain forwarding path (veth pair, routing, nftables masquerade) between the same guest and the same world, in one
# run, the two taking turns. Throughput by TCP, packets by small UDP datagrams, CPU as jiffies of the whole machine per packet.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
export CUBE_ROOT=$root CUBE_BUILD_DIR="${CUBE_BUILD_DIR:-$root/build}"
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
serve "$world" iperf3 -s -p 5201
for _ in $(seq 100); do in_ns "$guest1" nc -z 93.184.216.34 5201 2>/dev/null && break; sleep 0.05; done

busy() { awk '/^cpu / {print $2 + $3 + $4 + $7 + $8}' /proc/stat; }
figure() { python3 -c 'import json, sys
d = json.load(sys.stdin)
print(d["end"]["sum_received"]["bits_per_second"] if sys.argv[1] == "tcp" else d["end"]["sum"]["packets"] - d["end"]["sum"]["lost_packets"])' "$1"; }
measure() { # NAMESPACE -> "TCP_BITS PACKETS JIFFIES"
    local tcp before packets
    tcp=$(in_ns "$1" iperf3 -c 93.184.216.34 -J -t "$seconds" | figure tcp) || return 1
    before=$(busy)
    packets=$(in_ns "$1" iperf3 -c 93.184.216.34 -u -b 0 -l 64 -J -t "$seconds" | figure udp) || return 1
    echo "$tcp $packets $(($(busy) - before))"
}
arguments=()
for _ in $(seq "$rounds"); do
    read -r tcp1 packets1 jiffies1 <<< "$(measure "$guest1")"
    read -r tcp2 packets2 jiffies2 <<< "$(measure "$peer")"
    [ -n "${jiffies2:-}" ] || { echo "bench net: iperf3 failed" >&2; ip netns del "$peer"; exit 1; }
    arguments+=(throughput-ratio x "$(python3 -c "print($tcp1 / $tcp2)")" pps-ratio x "$(python3 -c "print($packets1 / $packets2)")"
        cpu-ratio x "$(python3 -c "print(($jiffies1 / $packets1) / ($jiffies2 / $packets2))")")
done
ip netns del "$peer"
json=
[ "${1:-}" = --json ] && json=--json
exec_net() { "$CUBE_BUILD_DIR/bench/net/cube-bench-net" $json "${arguments[@]}"; }
exec_net
