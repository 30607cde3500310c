#!/bin/bash
# tests/svm/run.sh [devices | programs [VCPUS [NAME...]]] — cube-vmm and the stock guest kernel on a real kvm_amd, without the
# hardware: QEMU's TCG emulates a machine with AMD SVM and nested paging, Debian's cloud kernel runs on it, and cube-vmm runs the
# guest inside (docs/kernel.md).
#
# devices (what it does without an argument): boot, devices, snapshot, restore, TSC of another host, two vCPUs, in a minimal guest.
# programs: the list of tests/kernel in a guest with so many vCPUs, or these names of it; with LONG=1 a JVM, Go and chromium are
# there, too.
#
# The outer machine's kernel is Debian's linux-image-cloud-amd64: downloaded and unpacked below ${CUBE_CACHE}/svm, never
# installed. Its root is the `base` image (written to nowhere), which has the python3 that drives cube-vmm.
# Environment: CUBE_BUILD_DIR (default build/). Prints PASS, FAIL or SKIP lines; proves correctness on hardware-type KVM, not speed.
set -euo pipefail
umask 022

root=$(cd "$(dirname "$0")/../.." && pwd)
build=${CUBE_BUILD_DIR:-$root/build}
cache=${CUBE_CACHE:-/var/cache/cube}/svm
what=${1:-devices}
case $what in
devices) set -- devices; memory=1536 ;;
programs)
    vcpus=${2:-1}
    shift $(($# > 2 ? 2 : $#))
    inner=768 memory=2560
    [ -z "${LONG:-}" ] || inner=1500 memory=4096
    set -- programs "$vcpus" $inner "${@:-all}"
    ;;
*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d'; exit 2 ;;
esac
limit=${CUBE_SVM_LIMIT:-600} # a guard against a hang; 30 s on a quiet machine

say() { echo "svm: $*" >&2; }
skip() { echo "SKIP svm: $*"; exit 0; }

command -v qemu-system-x86_64 >/dev/null || skip "qemu-system-x86 is not installed"
[ -x /bin/busybox ] || skip "busybox-static is not installed"
vmm=$build/node/vmm/cube-vmm
tools=$build/tests/kernel/kernel-tools.erofs
[ -x "$vmm" ] && [ -f "$tools" ] || { echo "FAIL svm: not built: $vmm, $tools"; exit 1; }
kernel=$("$root/guest/kernel/build.sh" stock | tail -n 1)
packages=()
[ $what = devices ] || packages=(--with "$root/tests/kernel/packages${LONG:+-full}.txt")
base=$("$root/guest/base/build.sh" "${packages[@]}" | tail -n 1)

# The package that the meta package points at, unpacked once.
outer_kernel() {
    local package dir
    package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    [ -n "$package" ] || { apt-get update -qq >&2; package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1); }
    [ -n "$package" ] || { say "apt knows no linux-image-cloud-amd64"; return 1; }
    dir=$cache/$package
    if [ ! -d "$dir" ]; then
        mkdir -p "$cache"
        local temp
        temp=$(mktemp -d "$cache/.unpack.XXXXXX")
        say "downloading $package"
        (cd "$temp" && apt-get download -qq "$package" >&2 && dpkg-deb -x ./*.deb tree && mkdir keep && cp tree/boot/vmlinuz-* keep/vmlinuz &&
            find tree -name '*.ko' -exec cp -t keep {} +) || { rm -rf "$temp"; return 1; }
        mv -T "$temp/keep" "$dir" 2>/dev/null || true
        rm -rf "$temp"
    fi
    echo "$dir"
}
outer=$(outer_kernel)

work=$(mktemp -d /tmp/cube-svm.XXXXXX)
qemu=
cleanup() {
    [ -z "$qemu" ] || kill "$qemu" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

# The inner guest's root: busybox is enough to prove the devices, and an emulated python would prove only patience.
tree=$work/inner
mkdir -p "$tree"/{bin,proc,sys,dev,run,tmp,var/tmp,tools,etc}
cp /bin/busybox "$tree/bin/busybox"
for applet in $(/bin/busybox --list); do [ "$applet" = busybox ] || ln -sf busybox "$tree/bin/$applet"; done
truncate -s 64M "$work/inner.ext4"
mke2fs -q -t ext4 -d "$tree" -L inner "$work/inner.ext4"

# The initial RAM disk of the outer machine: modules, cube-vmm and what it runs.
ram=$work/ram
mkdir -p "$ram"/{bin,proc,sys,dev,root,modules,test}
cp /bin/busybox "$ram/bin/busybox"
# A module with what it depends on before it, as its .modinfo says; what is not there is built in.
add_module() {
    local name=$1 file dep
    file=$outer/$name.ko
    [ -f "$file" ] || file=$outer/${name//_/-}.ko
    [ -f "$file" ] && ! grep -qx "$(basename "$file")" "$ram/modules/order" || return 0
    for dep in $(tr '\0' '\n' <"$file" | sed -n 's/^depends=//p' | tr , ' '); do add_module "$dep"; done
    cp "$file" "$ram/modules/"
    basename "$file" >>"$ram/modules/order"
}
: >"$ram/modules/order"
for module in virtio_pci virtio_blk kvm_amd tun; do add_module $module; done
cp "$vmm" "$kernel" "$tools" "$work/inner.ext4" "$root/tests/kernel/vm.py" "$root/tests/kernel/run.py" \
    "$root/tests/svm/inside.py" "$ram/test/"
echo "$*" >"$ram/test/arguments"
cat >"$ram/init" <<'I'
#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
while read -r m; do insmod "/modules/$m"; done </modules/order
mount -t ext4 -o ro /dev/vda /root || echo "FAIL svm/outer: no root disk"
for d in proc sys dev; do mount -o bind /$d /root/$d; done
mount -t tmpfs tmpfs /root/run; mount -t tmpfs tmpfs /root/tmp
cp -r /test /root/run/test
chroot /root /usr/bin/python3 /run/test/inside.py $(cat /test/arguments)
echo "svm: outer machine ends"
echo o >/proc/sysrq-trigger
sleep 10
I
chmod +x "$ram/init"
(cd "$ram" && find . | cpio -o -H newc --quiet) >"$work/initrd"

results() { tr -d '\r' <"$work/serial" | grep -aE '^(PASS|FAIL|SKIP) ' || true; }
started=$SECONDS
# Without SMAP: this QEMU lets an iretq of user code read the stack with the rights of the kernel, so that with SMAP such an iretq
# faults as the kernel would, and the guest panics (security-probe has one). A processor does not.
qemu-system-x86_64 -accel tcg,thread=multi -M q35 -cpu max,-smap -smp 1 -m $memory -nographic -no-reboot -nodefaults -serial stdio -monitor none \
    -device virtio-rng-pci -drive "file=$base,format=raw,if=virtio,snapshot=on" -kernel "$outer/vmlinuz" -initrd "$work/initrd" \
    -append "console=ttyS0 quiet panic=-1" </dev/null >"$work/serial" 2>&1 &
qemu=$!
while kill -0 $qemu 2>/dev/null; do
    if [ $((SECONDS - started)) -gt "$limit" ]; then
        results
        tail -n 40 "$work/serial" >&2
        echo "FAIL svm: longer than $limit s"
        exit 1
    fi
    sleep 1
done
qemu=
results
if ! grep -aq "svm: all done" "$work/serial"; then
    tr -d '\r' <"$work/serial" | tail -n 60 >&2
    echo "FAIL svm: the outer machine ended early"
    exit 1
fi
say "took $((SECONDS - started)) s"
! grep -aq '^FAIL ' "$work/serial"
