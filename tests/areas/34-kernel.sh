# The guest kernel on this host: the list of programs with one and two vCPUs, snapshots under load, a short soak.
# limit: 900 s
[ -c /dev/kvm ] || { echo "SKIP kernel: no /dev/kvm"; exit 0; }
tests/kernel/list.sh --vcpus 1,2
tests/kernel/list.sh --soak 45 --seed 1
