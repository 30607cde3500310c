# The guest kernel on this host: the list of programs in a guest with one and with two vCPUs, snapshots under load, a short soak.
# With LONG=1 the large programs too (a JVM, Go, chromium), the whole list with two and with four vCPUs, and an hour of soak.
# limit: 1800 s  (four minutes of test on a quiet machine; a new machine first packs the test's root file system)
[ -c /dev/kvm ] || { echo "SKIP kernel: no /dev/kvm"; exit 0; }
if [ -n "${LONG:-}" ]; then
    tests/kernel/list.sh --full --memory 1500 --vcpus 1,2,4 || exit 1
    tests/kernel/list.sh --soak 3600 --busy
    exit
fi
# The self-test of `cube doctor`: this host's kernel passes, and one for the other kind of host is refused with a reason.
kernel=$(guest/kernel/build.sh | tail -n 1)
doctor() { CUBE_GUEST_KERNEL=$1 CUBE_GUEST_TOOLS=$CUBE_BUILD_DIR/guest/tools.erofs "$CUBE_BUILD_DIR/cli/cube" doctor | grep '  guest '; }
found=$(doctor "$kernel")
case $found in *"self-test: boots"*) echo "PASS kernel-selftest:$found" ;; *) echo "FAIL kernel-selftest:$found" ;; esac
found=$(doctor "$CUBE_BUILD_DIR/node/vmm/cube-vmm")
case $found in *"BAD "*self-test:*) echo "PASS kernel-selftest-refuses:$found" ;; *) echo "FAIL kernel-selftest-refuses:$found" ;; esac
list() {
    tests/kernel/list.sh "$@" || echo "FAIL kernel: list.sh $* ended with status $?"
}
list --vcpus 1
list --vcpus 2 --only registers,faults,debugger,state,clocks,memory,security-probe,python_multiprocessing,git_loopback,gcc_project,snapshot
list --soak 30 --seed 1
exit 0
