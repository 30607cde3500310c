#!/bin/bash
# Attacks and wrong input from a guest: for each, the counter of its drop reason grows and no frame of it reaches the world or the node's stack.
set -u
. "$CUBE_ROOT/tests/net/bed.sh"
trap bed_down EXIT
bed_up
cvs load || { echo "FAIL net: loading the programs"; exit 0; }
cvs attach cbt1 1 50 0 && cvs attach cbt2 2 || { echo "FAIL net: attaching"; exit 0; }

# Everything that arrives in the world, and everything from the sandbox that the node's stack takes in, is written down.
serve "$world" tcpdump -U -nn -Z root -i eth0 -w "$pins_root/world.pcap" not arp and not ip6
serve "$node" tcpdump -U -nn -Z root -i svc0 -w "$pins_root/service.pcap" not arp and not ip6
for _ in $(seq 600); do [ -s "$pins_root/world.pcap" ] && [ -s "$pins_root/service.pcap" ] && break; sleep 0.05; done

size() { stat -c %s "$pins_root/world.pcap" "$pins_root/service.pcap" | tr '\n' ' '; }
attack() { # NAME REASON LEAST
    local before after was
    was=$(size)
    before=$(drops cbt1 1 "$2")
    in_ns "$guest1" python3 "$CUBE_ROOT/tests/net/attacks.py" "$1" || { echo "FAIL net: attack $1 could not be sent"; return; }
    # a marker that must pass: when it is in the capture, everything sent before it is too
    in_ns "$guest1" ping -c1 -W10 -s 32 93.184.216.34 >/dev/null || { echo "FAIL net: after $1 the sandbox has no network"; return; }
    after=$(drops cbt1 1 "$2")
    if [ $((${after:-0} - ${before:-0})) -lt "$3" ]; then
        echo "FAIL net: $1: '$2' counted $((${after:-0} - ${before:-0})), want at least $3"; return
    fi
    for _ in $(seq 40); do [ "$(size)" != "$was" ] && break; sleep 0.05; done
    if tcpdump -nn -r "$pins_root/world.pcap" 2>/dev/null | grep -v 'ICMP echo' | grep -q . || tcpdump -nn -r "$pins_root/service.pcap" 2>/dev/null | grep -q .; then
        echo "FAIL net: $1: something crossed: $(tcpdump -nn -r "$pins_root/world.pcap" 2>/dev/null | grep -v 'ICMP echo' | head -2 | tr '\n' ';') $(tcpdump -nn -r "$pins_root/service.pcap" 2>/dev/null | head -2 | tr '\n' ';')"
        return
    fi
    echo "PASS net: $1 is dropped ($2) and nothing crosses"
}
attack spoof-mac "spoofed MAC" 1
attack spoof-ip "spoofed IP" 2
attack vlan "not IPv4" 1
attack fragments fragment 3
attack truncated malformed 4
attack options "IP options" 2
attack protocols protocol 6
attack icmp-error protocol 1
attack icmp-error-in-session protocol 7
attack overlapping-fragments fragment 4
attack udp-fragments fragment 3
attack qinq "not IPv4" 3
attack dhcp-offer-own-address "denied range" 1
attack stray-tcp "no session" 5
attack gratuitous-arp ARP 2
attack ipv6-ra IPv6 1
attack dhcp-offer "spoofed IP" 1
attack broadcast "denied range" 2
attack port-scan "denied range" 700

# The same from a TAP, whose virtio-net header is the guest's, too.
in_ns "$node" ip tuntap add cbt3 mode tap vnet_hdr
in_ns "$node" sysctl -qw net.ipv6.conf.cbt3.disable_ipv6=1
in_ns "$node" ip link set cbt3 up
cvs attach cbt3 3
header_attack() { # NAME
    local before after sent
    before=$(drops cbt3 3 malformed)
    sent=$(in_ns "$node" python3 "$CUBE_ROOT/tests/net/vnet.py" cbt3 "$1")
    for _ in $(seq 200); do after=$(drops cbt3 3 malformed); [ $((${after:-0} - ${before:-0})) -ge "${sent:-1}" ] && break; sleep 0.05; done
    in_ns "$guest1" ping -c1 -W10 -s 32 93.184.216.34 >/dev/null
    if tcpdump -nn -r "$pins_root/world.pcap" 2>/dev/null | grep -v 'ICMP echo' | grep -q . || [ "${sent:-0}" -lt 2 ] || [ $((${after:-0} - ${before:-0})) -ne "$sent" ]; then
        echo "FAIL net: $1: $sent sent, $((${after:-0} - ${before:-0})) dropped; $(tcpdump -nn -r "$pins_root/world.pcap" 2>/dev/null | grep -v 'ICMP echo' | head -3 | tr '\n' ';')"
    else
        echo "PASS net: $1 by virtio-net header: all $sent are dropped"
    fi
}
header_attack checksum-over-headers
header_attack checksum-of-icmp
header_attack segments-elsewhere
header_attack segments-of-one-byte
in_ns "$node" python3 "$CUBE_ROOT/tests/net/vnet.py" cbt3 honest >/dev/null
for _ in $(seq 200); do tcpdump -nn -r "$pins_root/world.pcap" 2>/dev/null | grep -q 'UDP' && break; sleep 0.05; done
case "$(tcpdump -nn -vv -r "$pins_root/world.pcap" udp 2>/dev/null | tr '\n' ' ')" in
*"93.184.216.34.9: [udp sum ok]"*) echo "PASS net: a checksum left to the host in its own place passes" ;;
*) echo "FAIL net: a checksum left to the host in its own place does not pass" ;;
esac
