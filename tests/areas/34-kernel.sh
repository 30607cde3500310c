# The guest kernel on this host: the list of programs in a guest with one and with two vCPUs, snapshots under load, a short soak.
# With LONG=1 the large programs too (a JVM, Go, chromium), the whole list with two and with four vCPUs, and an hour of soak.
# limit: 1200 s  (four minutes of test on a quiet machine; a new machine first packs the test's root file system)
[ -c /dev/kvm ] || { echo "SKIP kernel: no /dev/kvm"; exit 0; }
if [ -n "${LONG:-}" ]; then
    tests/kernel/list.sh --full --memory 1500 --vcpus 1,2,4 || exit 1
    tests/kernel/list.sh --soak 3600 --busy
    exit
fi
tests/kernel/list.sh --vcpus 1
tests/kernel/list.sh --vcpus 2 --only registers,faults,debugger,state,clocks,memory,security-probe,python_multiprocessing,git_loopback,gcc_project,snapshot
tests/kernel/list.sh --soak 30 --seed 1
