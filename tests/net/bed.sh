# The test bed of the sandbox network, for sourcing: namespaces node, world and two guests, named with a prefix of this run. Guests are veth pairs that
# carry the guest's fixed addresses; `from_cube` cannot tell them from TAPs. World: web 93.184.216.34 (port 80), DNS-like address 8.8.8.8, a private
# range 10.9.9.9 and a metadata address 169.254.169.254, all on one host behind the uplink 93.184.216.1/24.
p=cvs$$
node=${p}n world=${p}w guest1=${p}a guest2=${p}b
pins_root=$(mktemp -d /tmp/cube-net-XXXXXX)
vs=$CUBE_BUILD_DIR/node/net/cube-vs

in_ns() { local n=$1; shift; ip netns exec "$n" "$@"; }
# With this machine's own /sys, which `ip netns exec` hides: a cluster needs its cgroups.
in_net() { local n=$1; shift; nsenter --net="/run/netns/$n" "$@"; }
cvs() { in_ns "$node" "$vs" --pins "$pins_root/bpf/vs" --uplink up0 --service svc0 svc1 198.19.0.1 198.19.128.0 "$@"; }

add_guest() { # NAME TAP
    ip netns add "$1"
    ip link add "$2" netns "$node" type veth peer name eth0 netns "$1"
    in_ns "$1" ip link set eth0 address 02:cb:00:00:00:01
    in_ns "$1" ip link set eth0 mtu 1450 up
    in_ns "$1" ip link set lo up
    in_ns "$1" ip addr add 169.254.0.21/30 dev eth0
    in_ns "$1" ip route add default via 169.254.0.22
    in_ns "$node" ip link set "$2" address 02:cb:00:00:00:02
    in_ns "$node" sysctl -qw "net.ipv6.conf.$2.disable_ipv6=1" # as the jailer does
    in_ns "$node" ip link set "$2" up
    # checksums of veth peers stay partial for ever; a TAP's do not: make the guest's real
    in_ns "$1" ethtool -K eth0 tx off >/dev/null 2>&1 || true
}

bed_up() {
    mkdir "$pins_root/bpf" && mount -t bpf bpf "$pins_root/bpf"
    ip netns add "$node"; ip netns add "$world"
    ip link add up0 netns "$node" type veth peer name eth0 netns "$world"
    in_ns "$node" ip addr add 93.184.216.1/24 dev up0
    in_ns "$node" ip link set up0 up
    # as on a wire: checksums that a guest left to the host are completed here, and the world's stack checks them
    [ -n "${BED_OFFLOADS:-}" ] || in_ns "$node" ethtool -K up0 tx off >/dev/null 2>&1
    in_ns "$node" ip link set lo up
    in_ns "$node" ip route add default via 93.184.216.34
    in_ns "$world" ip link set eth0 up
    in_ns "$world" ip link set lo up
    for a in 93.184.216.34/24 8.8.8.8/32 1.1.1.1/32 10.9.9.9/32 169.254.169.254/32; do in_ns "$world" ip addr add "$a" dev eth0; done
    in_ns "$node" ip link add svc0 type veth peer name svc1
    in_ns "$node" ip addr add 198.19.0.1/16 dev svc0
    in_ns "$node" ip link set svc0 up
    in_ns "$node" ip link set svc1 up
    in_ns "$node" sysctl -qw net.ipv4.conf.svc0.rp_filter=0 net.ipv4.conf.all.rp_filter=0
    far=$(in_ns "$node" cat /sys/class/net/svc1/address)
    in_ns "$node" ip route replace 198.19.128.0/17 dev svc0
    in_ns "$node" ip neigh replace 198.19.128.1 lladdr "$far" dev svc0 nud permanent
    in_ns "$node" ip neigh replace 198.19.128.2 lladdr "$far" dev svc0 nud permanent
    add_guest "$guest1" cbt1
    add_guest "$guest2" cbt2
}

bed_down() {
    for pid in ${servers:-}; do kill "$pid" 2>/dev/null; done
    for n in "$node" "$world" "$guest1" "$guest2"; do ip netns del "$n" 2>/dev/null; done
    umount "$pins_root/bpf" 2>/dev/null
    rm -rf "$pins_root"
}

# serve NAMESPACE COMMAND...: in the background, ended with the bed.
serve() { local n=$1; shift; ip netns exec "$n" "$@" >>"$pins_root/server.log" 2>&1 & servers="${servers:-} $!"; }

drops() { cvs read "$1" "$2" | sed -n "s/^drop $3: //p"; }
