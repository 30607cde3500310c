#!/bin/bash
# Two nodes: on one uplink (their own ports, no overlap) and as neighbours in one network.
set -u
. "$CUBE_ROOT/tests/net/bed.sh"
neighbour=${p}m
trap 'ip netns del "$neighbour" 2>/dev/null; bed_down' EXIT
bed_up
check() { local name=$1; shift; if "$@"; then echo "PASS net: $name"; else echo "FAIL net: $name"; fi; }
refuse() { local name=$1; shift; if "$@"; then echo "FAIL net: $name"; else echo "PASS net: $name"; fi; }
get() { in_ns "$1" curl -sS -o /dev/null -m "${3:-20}" "http://$2/BSD" 2>/dev/null; }
second() { in_ns "$node" "$vs" --pins "$pins_root/bpf/vs2" --uplink up0 "$@"; }

cvs load && cvs attach cbt1 1 || { echo "FAIL net: loading and attaching"; exit 0; }
serve "$world" python3 -m http.server 80 --directory /usr/share/common-licenses
for _ in $(seq 600); do in_ns "$node" curl -s -o /dev/null http://93.184.216.34/BSD && break; sleep 0.05; done
check "one node has the usual ports" test "$(cvs ports)" = 40000-56383
check "a second node on the uplink finds its own" test "$(second ports)" = 57344-58367
message=$(second --ports 50000-51000 load 2>&1)
refuse "ports of another node are refused" test $? = 0
case "$message" in *"40000-56383"*"priority"*) echo "PASS net: naming them and who has them" ;; *) echo "FAIL net: the refusal says '$message'" ;; esac
check "and the second node's stay" test "$(second ports)" = 57344-58367
check "a restart keeps the range" test "$(cvs ports)" = 40000-56383
second attach cbt2 2 || echo "FAIL net: attaching to the second node"
check "sandboxes of both reach the world" bash -c "$(declare -f get in_ns); get $guest1 93.184.216.34 && get $guest2 93.184.216.34"
in_ns "$world" tcpdump -U -nn -Z root -i eth0 -c 2 -w "$pins_root/ports.pcap" 'udp dst port 9' 2>/dev/null & dump=$!
for _ in $(seq 600); do [ -s "$pins_root/ports.pcap" ] && break; sleep 0.05; done
for g in "$guest1" "$guest2"; do in_ns "$g" python3 -c "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('93.184.216.34', 9))"; done
wait $dump
ports=$(tcpdump -nn -r "$pins_root/ports.pcap" 2>/dev/null | sed -n 's/.*IP 93.184.216.1.\([0-9]*\) >.*/\1/p' | sort -n | tr '\n' ' ')
read -r low high <<< "$ports"
check "each from its own ports ($ports)" test "${low:-0}" -ge 40000 -a "${low:-0}" -le 56383 -a "${high:-0}" -ge 57344 -a "${high:-0}" -le 58367
second --ports 30000-31000 load
check "a range may be changed" test "$(second ports)" = 30000-31000
check "and the sandbox goes on" get "$guest2" 93.184.216.34
in_ns "$node" "$vs" --pins "$pins_root/bpf/vs2" remove
check "the end of one leaves the other" get "$guest1" 93.184.216.34
second load
check "and frees its ports" test "$(second ports)" = 57344-58367
in_ns "$node" "$vs" --pins "$pins_root/bpf/vs2" remove

# A neighbour in the same private network: another node with its services and sandboxes.
ip netns add "$neighbour"
ip link add lan0 netns "$node" type veth peer name lan0 netns "$neighbour"
in_ns "$node" ip addr add 10.20.0.1/24 dev lan0
in_ns "$node" ip link set lan0 up
in_ns "$neighbour" ip addr add 10.20.0.2/24 dev lan0
in_ns "$neighbour" ip addr add 93.184.217.2/32 dev lan0
in_ns "$neighbour" ip link set lan0 up
in_ns "$neighbour" ip link set lo up
in_ns "$neighbour" ip route add default via 10.20.0.1
serve "$neighbour" python3 -m http.server 80 --directory /usr/share/common-licenses
for _ in $(seq 600); do in_ns "$node" curl -s -o /dev/null http://10.20.0.2/BSD && break; sleep 0.05; done
check "the node reaches its neighbour" get "$node" 10.20.0.2
refuse "a sandbox does not, in the private range" get "$guest1" 10.20.0.2 1
cvs ranges deny 93.184.217.0/24
refuse "nor at a public address that the operator denied" get "$guest1" 93.184.217.2 1
# The neighbour knows a session of the sandbox and answers in the remote end's name, through another interface than the uplink.
in_ns "$neighbour" ip addr add 93.184.216.34/32 dev lo
got=$(in_ns "$guest1" python3 - "$neighbour" <<'PY'
import socket, subprocess, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 4444)); s.settimeout(0.5)
s.sendto(b'x', ('93.184.216.34', 9))
forge = '''import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("93.184.216.34", 9))
for port in range(40000, 56384): s.sendto(b"forged", ("10.20.0.1", port)); s.sendto(b"forged", ("93.184.216.1", port))'''
subprocess.run(['nsenter', '--net=/run/netns/' + sys.argv[1], 'python3', '-c', forge])
try:
    print(s.recv(100).decode())
except (TimeoutError, ConnectionRefusedError):
    print('nothing')
PY
)
check "a neighbour cannot answer in a remote end's name" test "$got" = nothing
