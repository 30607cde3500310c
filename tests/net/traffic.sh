#!/bin/bash
# What must work and what must not, with real stacks on both sides: TCP, UDP, ICMP, DNS to the gateway, policy, limits, sweeping, restart of the loader.
set -u
. "$CUBE_ROOT/tests/net/bed.sh"
trap bed_down EXIT
bed_up
check() { local name=$1; shift; if "$@"; then echo "PASS net: $name"; else echo "FAIL net: $name"; cvs read cbt1 1; fi; }
refuse() { local name=$1; shift; if "$@"; then echo "FAIL net: $name"; else echo "PASS net: $name"; fi; }
get() { in_ns "$1" curl -sS -o /dev/null -m "${3:-20}" "http://$2/BSD" 2>/dev/null; }

cvs load && cvs attach cbt1 1 && cvs attach cbt2 2 || { echo "FAIL net: loading and attaching"; exit 0; }
serve "$world" python3 -m http.server 80 --directory /usr/share/common-licenses
for _ in $(seq 600); do in_ns "$node" curl -s -o /dev/null http://93.184.216.34/BSD && break; sleep 0.05; done

check "TCP to the world" get "$guest1" 93.184.216.34
check "TCP of a second sandbox with the same address" get "$guest2" 93.184.216.34
check "ping to the world" in_ns "$guest1" ping -c1 -W10 -q 8.8.8.8
check "content survives (sha256)" bash -c "[ \"\$(ip netns exec $guest1 curl -sS -m 20 http://93.184.216.34/GPL-3 | sha256sum)\" = \"\$(sha256sum < /usr/share/common-licenses/GPL-3)\" ]"
refuse "a private range is out of reach" get "$guest1" 10.9.9.9 1
refuse "the metadata address is out of reach" get "$guest1" 169.254.169.254 1
refuse "the node's own address is out of reach" get "$guest1" 93.184.216.1 1
refuse "the other sandbox is out of reach" in_ns "$guest1" ping -c1 -W1 -q 198.19.128.2

serve "$world" python3 -c "$(cat <<'PY'
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('8.8.8.8', 5353))
while True:
    d, a = s.recvfrom(2048)
    s.sendto(d.upper(), a)
PY
)"
serve "$node" python3 -c "$(cat <<'PY'
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('198.19.0.1', 53))
while True:
    d, a = s.recvfrom(2048)
    s.sendto(a[0].encode() + b' ' + d, a)
PY
)"
ask() { in_ns "$1" python3 -c "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1)
for i in range(5):
    s.sendto(b'hello', ('$2', $3))
    try: print(s.recv(2048).decode()); sys.exit(0)
    except TimeoutError: pass
sys.exit(1)"; }
for _ in $(seq 50); do [ "$(ask "$guest2" 8.8.8.8 5353)" = HELLO ] && [ "$(ask "$guest2" 169.254.0.22 53)" != "" ] && break; done
check "UDP to the world and back" test "$(ask "$guest1" 8.8.8.8 5353)" = HELLO
check "DNS at the gateway reaches the node's service, from the sandbox's own address" test "$(ask "$guest1" 169.254.0.22 53)" = "198.19.128.1 hello"
check "the same for the second sandbox" test "$(ask "$guest2" 169.254.0.22 53)" = "198.19.128.2 hello"

cvs policy 1 deny 0.0.0.0/0
refuse "deny all" get "$guest1" 93.184.216.34 1
check "deny all of one leaves the other" get "$guest2" 93.184.216.34
check "deny all leaves DNS" test "$(ask "$guest1" 169.254.0.22 53)" = "198.19.128.1 hello"
cvs policy 1 allow 93.184.216.34 deny 0.0.0.0/0
check "allow wins over deny" get "$guest1" 93.184.216.34
cvs policy 1 deny 93.184.216.34
refuse "one denied address" get "$guest1" 93.184.216.34 1
check "others stay open" in_ns "$guest1" ping -c1 -W10 -q 1.1.1.1
cvs policy 1 deny 0.0.0.0/0
cvs name 1 93.184.216.34 2
check "an address that DNS handed out is open" get "$guest1" 93.184.216.34
sleep 2.2 # the answer's own life
refuse "and closes with the answer" get "$guest1" 93.184.216.34 1
cvs policy 1
cvs policy 1 allow 10.9.9.9
refuse "a sandbox cannot allow itself a denied range" get "$guest1" 10.9.9.9 1
cvs ranges open 10.9.9.0/24
check "an operator can open one" get "$guest1" 10.9.9.9
cvs ranges
refuse "and close it again" get "$guest1" 10.9.9.9 1

cvs attach cbt2 2 20
in_ns "$guest2" python3 "$CUBE_ROOT/tests/net/attacks.py" syn-flood
check "a SYN flood stops at the sandbox's limit of sessions" test "$(cvs read cbt2 2 | sed -n 's/^sessions //p')" -le 20
check "and says so" test "$(drops cbt2 2 "session limit")" -gt 19000
check "while another sandbox goes on" get "$guest1" 93.184.216.34
cvs detach cbt2 2
check "detach ends the sandbox's sessions" test "$(cvs sweep | sed -n 's/^left //p')" -lt 20
refuse "and its network" get "$guest2" 93.184.216.34 1

cvs attach cbt2 2 0 0 0 200000
start=$(date +%s%N)
in_ns "$world" sh -c "head -c 400000 /dev/zero > $pins_root/zero"
serve "$world" python3 -m http.server 81 --directory "$pins_root"
for _ in $(seq 600); do in_ns "$node" curl -s -o /dev/null http://93.184.216.34:81/zero && break; sleep 0.05; done
start=$(date +%s%N)
in_ns "$guest2" curl -sS -m 60 -o /dev/null http://93.184.216.34:81/zero
took=$((($(date +%s%N) - start) / 1000000))
check "400 kB at 200 kB/s take 1.3 s or more ($took ms)" test $took -ge 1300

cvs attach cbt2 2 0 0 200000
serve "$world" python3 -c "$(cat <<'PY'
import socket
l = socket.create_server(('93.184.216.34', 83))
while True:
    c, _ = l.accept()
    while c.recv(65536): pass
    c.sendall(b'all')
    c.close()
PY
)"
for _ in $(seq 600); do in_ns "$node" nc -z 93.184.216.34 83 && break; sleep 0.05; done
start=$(date +%s%N)
sent=$(in_ns "$guest2" python3 -c "
import socket
s = socket.create_connection(('93.184.216.34', 83), 60)
s.settimeout(60)
s.sendall(bytes(400000))
s.shutdown(socket.SHUT_WR)
print(s.recv(10).decode())")
took=$((($(date +%s%N) - start) / 1000000))
check "400 kB out at 200 kB/s take 1.3 s or more ($took ms)" test "$sent" = all -a $took -ge 1300

cvs attach cbt2 2 0 50
in_ns "$guest2" python3 "$CUBE_ROOT/tests/net/attacks.py" syn-flood
check "new sessions per second have a limit" test "$(drops cbt2 2 "session rate")" -gt 15000
check "and others go on" get "$guest1" 93.184.216.34
cvs attach cbt2 2

# An open connection and a change of rules: what was open closes with the next packet, and opens again.
serve "$world" python3 -c "$(cat <<'PY'
import socket
l = socket.create_server(('93.184.216.34', 82))
while True:
    c, _ = l.accept()
    while d := c.recv(100): c.sendall(d)
PY
)"
for _ in $(seq 600); do in_ns "$node" nc -z 93.184.216.34 82 && break; sleep 0.05; done
echo none > "$pins_root/open"
in_ns "$guest2" timeout 60 python3 - "$pins_root/open" > "$pins_root/talk" 2>&1 <<'PY' & talk=$!
import pathlib, socket, sys, time
gate = pathlib.Path(sys.argv[1])
def wait(word):
    while gate.read_text().strip() != word: time.sleep(0.02)
s = socket.create_connection(('93.184.216.34', 82), 20)
def ask():
    try:
        s.sendall(b'hello')
        return 'answer' if s.recv(100) else 'end'
    except TimeoutError:
        return 'silence'
print('first', ask(), flush=True)
wait('denied')
s.settimeout(1)
print('denied', ask(), flush=True)
gate.write_text('asked')
wait('allowed')
s.settimeout(20)
print('allowed', 'answer' if s.recv(100) else 'end', flush=True) # the kernel sends again what was dropped
PY
for _ in $(seq 400); do grep -q first "$pins_root/talk" && break; sleep 0.05; done
cvs policy 2 deny 93.184.216.0/24; echo denied > "$pins_root/open"
for _ in $(seq 400); do [ "$(cat "$pins_root/open")" = asked ] && break; sleep 0.05; done
cvs policy 2; echo allowed > "$pins_root/open"
wait $talk
check "an open connection meets changed rules, and goes on when they allow it again ($(tr '\n' ',' < "$pins_root/talk"))" \
    test "$(tr '\n' ' ' < "$pins_root/talk")" = "first answer denied silence allowed answer "

# Each call of cvs loads and replaces the programs; a download goes on all the while.
cvs attach cbt1 1 0 0 0 4000000
in_ns "$world" sh -c "head -c 12000000 /dev/urandom > $pins_root/big"
sum=$(sha256sum < "$pins_root/big")
in_ns "$guest1" sh -c "curl -sS -m 60 http://93.184.216.34:81/big | sha256sum" > "$pins_root/sum" & download=$!
tags() { for i in up0 svc1 cbt1; do in_ns "$node" tc filter show dev "$i" ingress | grep -o 'tag [0-9a-f]*'; done | tr '\n' ' '; }
before=$(tags)
for _ in 1 2 3 4; do cvs load; sleep 0.1; (vs=$CUBE_BUILD_DIR/tests/net/cube-vs-next; cvs load); sleep 0.1; done
after=$(tags)
wait $download
changed=0
read -ra b <<< "$before"; read -ra n <<< "$after"
for i in 1 3 5; do [ -n "${n[$i]:-}" ] && [ "${b[$i]}" != "${n[$i]}" ] && changed=$((changed + 1)); done
check "an upgrade changes the programs of uplink, services and TAPs ($changed of 3)" test "$changed" = 3
check "a download survives eight replacements of the programs" test "$(cat "$pins_root/sum")" = "$sum"
cvs remove
check "remove leaves no pin" test ! -e "$pins_root/bpf/vs"
check "nor the service pair" bash -c "! ip netns exec $node ip link show svc0 >/dev/null 2>&1"
