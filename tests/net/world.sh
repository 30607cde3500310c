#!/bin/bash
# A hostile world: forged ICMP errors, packets of no session, offers of addresses and routes. A guest sees an honest error about its own packet and nothing else.
set -u
. "$CUBE_ROOT/tests/net/bed.sh"
trap bed_down EXIT
bed_up
cvs load && cvs attach cbt1 1 && cvs attach cbt2 2 || { echo "FAIL net: loading and attaching"; exit 0; }
mac=$(in_ns "$node" cat /sys/class/net/up0/address)
for g in "$guest1" "$guest2"; do serve "$g" tcpdump -U -nn -Z root -Q in -i eth0 -w "$pins_root/$g.pcap"; done
serve "$world" tcpdump -U -nn -Z root -Q in -i eth0 -w "$pins_root/world.pcap" 'udp dst port 9'
for _ in $(seq 600); do [ -s "$pins_root/$guest1.pcap" ] && [ -s "$pins_root/$guest2.pcap" ] && [ -s "$pins_root/world.pcap" ] && break; sleep 0.05; done
in_ns "$world" nft -f - <<'NFT'
table ip quiet {
    chain out {
        type filter hook output priority 0;
        icmp type destination-unreachable drop
    }
}
NFT
# Both guests have a session to the same remote end, from the same port of theirs.
for g in "$guest1" "$guest2"; do in_ns "$g" python3 -c "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('', 4444)); s.sendto(b'x', ('93.184.216.34', 9))"; done
seen() { tcpdump -nn -r "$pins_root/$1.pcap" 2>/dev/null; }
nat_ports() { seen world | sed -n 's/.*IP 93.184.216.1.\([0-9]*\) >.*/\1/p'; }
for _ in $(seq 600); do [ "$(nat_ports | wc -l)" = 2 ] && break; sleep 0.05; done
port=$(nat_ports | head -1)
[ -n "$port" ] || { echo "FAIL net: the world did not see the guests' packets"; exit 0; }

# Everything sent before a marker's answer has passed the node when the answer is there.
marker() { in_ns "$1" ping -c1 -W10 -q 93.184.216.34 >/dev/null || echo "FAIL net: $1 has no network after $2"; }
strange() { seen "$1" | grep -v 'ICMP echo reply' | grep -v 'ARP, Reply 169.254.0.22 is-at 02:cb:00:00:00:02'; }
attack() {
    in_ns "$world" python3 "$CUBE_ROOT/tests/net/world.py" "$1" "$mac" "$port" || { echo "FAIL net: $1 could not be sent"; return; }
    marker "$guest1" "$1"; marker "$guest2" "$1"
    for _ in $(seq 200); do seen "$guest2" | tail -1 | grep -q 'echo reply' && seen "$guest1" | tail -1 | grep -q 'echo reply' && break; sleep 0.05; done
    if strange "$guest1" | grep -q . || strange "$guest2" | grep -q .; then
        echo "FAIL net: $1 from the world reached a guest: $(strange "$guest1" | head -2 | tr '\n' ';') $(strange "$guest2" | head -2 | tr '\n' ';')"
        return
    fi
    echo "PASS net: $1 from the world reaches no guest"
}
for name in icmp-other-port icmp-other-remote icmp-other-source icmp-inner-options icmp-redirect unasked dhcp ra arp; do attack "$name"; done
in_ns "$world" python3 "$CUBE_ROOT/tests/net/world.py" icmp-honest "$mac" "$port"
for _ in $(seq 200); do strange "$guest1" | grep -q . && break; sleep 0.05; done
got=$(strange "$guest1")
case "$got" in
*"93.184.216.77 > 169.254.0.21: ICMP 93.184.216.34 udp port 9 unreachable"*) echo "PASS net: an honest ICMP error reaches the guest whose packet it is about, translated" ;;
*) echo "FAIL net: an honest ICMP error: the guest saw '$got'" ;;
esac
strange "$guest2" | grep -q . && echo "FAIL net: and another guest: $(strange "$guest2")" || echo "PASS net: and no other guest"
