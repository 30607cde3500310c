# cube-vmm and the stock kernel on hardware-type KVM, emulated: devices, snapshots, two vCPUs, and what is quick of the list of programs.
# With LONG=1 all of the list (a JVM, Go, chromium, too) with one vCPU and what is written by us with two.
# limit: 2400 s  (three minutes of test; the first run may have to build the stock kernel)
ours="registers registers-20us faults debugger state clocks memory security-probe"
tests/svm/run.sh || failed=1
if [ -n "${LONG:-}" ]; then
    export CUBE_SVM_LIMIT=5000
    tests/svm/run.sh programs 1 || failed=1
    tests/svm/run.sh programs 2 $ours || failed=1
else
    tests/svm/run.sh programs 1 $ours files_and_watch kernel_config perl_text python_ctypes sqlite_fsync || failed=1
fi
[ -z "${failed:-}" ]
