# cube-vmm and the stock kernel on hardware-type KVM, emulated.
# limit: 2400 s  (three minutes of test; the first run may have to build the stock kernel)
tests/svm/run.sh
