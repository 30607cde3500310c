#!/bin/bash
# guest/kernel/build.sh [pvm|stock] [--hz N] — builds a guest kernel from Debian's linux-source-6.1.
#
#   pvm    for KVM hosts of the PVM kind (software KVM, the VMM reports them)
#   stock  for hardware KVM
# Without an argument: the flavour of this host's /dev/kvm (stock when there is none).
#
# The result is ${CUBE_CACHE:-/var/cache/cube}/kernel/<hash>/{vmlinux,config}; the hash covers the source package,
# patches, configuration and compiler. It is whole or absent (built in a temporary directory, then
# renamed), and one build of a flavour runs at a time. The path of vmlinux is the last line on stdout, progress goes
# to stderr. `--hash` prints the hash and `--path` the path, without building. `--hz N` builds with another rate of the
# clock interrupt (100, 250, 300 or 1000), to compare (bench/kernel/bench.py --hz).
#
# CUBE_KERNEL_JOBS: parallel compilers, default the number of processors. ccache makes a first build an eighth slower
# and a later one, after a change of a patch, five times faster: it is used once ${CUBE_CACHE}/kernel/ccache exists.
set -euo pipefail
umask 022
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
cache=${CUBE_CACHE:-/var/cache/cube}/kernel
source=/usr/src/linux-source-6.1.tar.xz
package=linux-source-6.1
jobs=${CUBE_KERNEL_JOBS:-$(nproc)}

say() { echo "kernel: $*" >&2; }
die() { say "$*"; exit 1; }

# The kind of this host: MSR 0x4b564d11 tells a PVM-kind KVM (docs/kernel.md); /dev/kvm must be readable.
host_flavour() {
    python3 - <<'PY' 2>/dev/null || echo stock
import fcntl, os, struct
kvm = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
# KVM_GET_MSRS on /dev/kvm reads feature MSRs only, so ask a throw-away vCPU.
vm = fcntl.ioctl(kvm, 0xAE01, 0)
vcpu = fcntl.ioctl(vm, 0xAE41, 0)
msrs = bytearray(struct.pack("<IIIIQ", 1, 0, 0x4B564D11, 0, 0))
n = fcntl.ioctl(vcpu, 0xC008AE88, msrs)
print("pvm" if n == 1 and struct.unpack("<IIIIQ", msrs)[4] == 0x4D5650 else "stock")
PY
}

action=build
flavour=
hz=
while [ $# -gt 0 ]; do
    case $1 in
    pvm | stock) flavour=$1 ;;
    --hash | --path) action=${1#--} ;;
    --hz) [ $# -gt 1 ] || die "--hz needs a rate"; hz=$2; shift ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d'; exit 0 ;;
    *) die "unknown argument $1 (see --help)" ;;
    esac
    shift
done
[ -n "$flavour" ] || flavour=$(host_flavour)
case $hz in "" | 100 | 250 | 300 | 1000) ;; *) die "no such rate: --hz $hz (see --help)" ;; esac

wanted() {
    cat "$here/config/common.fragment" "$here/config/$flavour.fragment" | sed "${hz:+s/^CONFIG_HZ_[0-9]*=y/CONFIG_HZ_$hz=y/}"
}

[ -f "$source" ] || die "$source is missing: apt-get install $package"
compiler="$(gcc --version | head -n1); $(ld --version | head -n1)"
hash=$({
    dpkg-query -W -f '${Package} ${Version}\n' "$package"
    echo "$flavour"
    echo "$compiler"
    echo "recipe 1" # count up when a change of this script changes the result
    cat "$here"/patches/*.patch
    wanted
} | sha256sum | cut -c1-32)
result=$cache/$hash

case $action in
hash) echo "$hash"; exit 0 ;;
path) echo "$result/vmlinux"; exit 0 ;;
esac

mkdir -p "$cache"
exec 9>"$cache/.lock-$flavour"
if [ ! -f "$result/vmlinux" ]; then
    flock -n 9 || { say "another build of $flavour runs, waiting"; flock 9; }
fi
if [ -f "$result/vmlinux" ]; then
    echo "$result/vmlinux"
    exit 0
fi

# Whoever was killed left a tree; the lock says that nobody uses it.
rm -rf "$cache/.build-$flavour".*
work=$(mktemp -d "$cache/.build-$flavour.XXXXXX")
trap 'rm -rf "$work"' EXIT
say "building $flavour $hash with $jobs jobs"
started=$SECONDS stage=$SECONDS
# Says what took how long since the last call, or up to the time $2 (seconds since the epoch).
took() {
    local now=$((SECONDS - (${2:+$(date +%s) - $2} + 0)))
    say "$1 in $((now - stage)) s"
    stage=$now
}

mkdir "$work/src" "$work/out"
# Most of the source is for machines that a sandbox is not; what Kconfig and make want to see of it stays. To write
# the files costs more than to decompress them.
skip=('*/arch/[a-wyz]*/*.[Sa-z]*' '*/arch/xtensa/*.[Sa-z]*' '*/Documentation/*.[a-z]*' '*/include/dt-bindings/*.h')
for tree in sound samples tools/{perf,testing} \
    drivers/{acpi,ata,bluetooth,clk,comedi,crypto,dma,firewire,gpio,gpu,hid,hwmon,hwtracing,i2c,iio,infiniband,input} \
    drivers/{interconnect,iommu,irqchip,isdn,leds,md,media,memory,mfd,misc,mmc,mtd,net/'*',nvme,pci,phy,pinctrl,platform} \
    drivers/{power,ptp,pwm,rapidio,regulator,remoteproc,s390,scsi,soc,soundwire,spi,staging,target,thermal,usb,vfio} \
    drivers/{video,w1,watchdog,xen} \
    fs/{afs,btrfs,ceph,f2fs,gfs2,jffs2,jfs,nfs,nfsd,nilfs2,ntfs,ntfs3,ocfs2,orangefs,reiserfs,smb,ubifs,udf,xfs} \
    net/{batman-adv,bluetooth,can,ceph,dsa,mac80211,mptcp,rds,rxrpc,sctp,smc,sunrpc,tipc,wireless}; do
    skip+=("$package/$tree/*.[chS]") # from the top: include/net/sctp is not net/sctp
done
xz -dc -T "$jobs" "$source" | tar -C "$work/src" --strip-components=1 --anchored -x "${skip[@]/#/--exclude=}"
for patch in "$here"/patches/*.patch; do
    patch -d "$work/src" -p1 -s -F0 --no-backup-if-mismatch <"$patch" >&2 || die "$(basename "$patch") does not apply"
done

took unpacked

# Nothing of the machine, the user or the clock gets into the image.
export KBUILD_BUILD_TIMESTAMP="Thu Jan 1 00:00:00 UTC 2026" KBUILD_BUILD_USER=cube KBUILD_BUILD_HOST=cube
export KBUILD_BUILD_VERSION=1
# To remember where each token of a macro came from is a fourteenth of the compiler's work on a small file and serves its
# messages only: the code is the same. Without it -Waddress cannot see that a comparison is a macro's.
export KCFLAGS="-ftrack-macro-expansion=0 -Wno-address"
cc=gcc
if [ -d "$cache/ccache" ] && command -v ccache >/dev/null; then
    cc="ccache gcc"
    # Depend mode spares the preprocessor run of a miss, the inode cache the hashes of headers that each file includes.
    export CCACHE_DIR=$cache/ccache CCACHE_MAXSIZE=2G CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1 CCACHE_INODECACHE=1
    export CCACHE_IGNOREOPTIONS=$KCFLAGS
fi
run_make() { make -C "$work/src" -s CC="$cc" HOSTCC="$cc" "$@" >&2; }

wanted >"$work/wanted"
run_make KCONFIG_ALLCONFIG="$work/wanted" allnoconfig
# Kconfig drops what it does not know or whose conditions fail, in silence: that must be an error.
lost=$(grep -E '^CONFIG_[A-Z0-9_]+=' "$work/wanted" | grep -v '=n$' | grep -vxFf "$work/src/.config" || true)
[ -z "$lost" ] || die "Kconfig dropped: $(echo "$lost" | xargs)"

took configured

run_make -j"$jobs" vmlinux
took compiled "$(stat -c %Y "$work/src/vmlinux.a")"
took linked

cp "$work/src/vmlinux" "$work/src/.config" "$work/out/"
mv "$work/out/.config" "$work/out/config"
chmod 0755 "$work/out"
chmod 0644 "$work/out"/*
sync "$work/out/vmlinux" "$work/out/config"
rm -rf "$result"
mv -T "$work/out" "$result"
# The second line of `times` is that of what this shell has waited for; not in a pipe, which would be another shell.
times >"$work/times"
say "done in $((SECONDS - started)) s, processor time $(sed -n '2s/ / user, /p' "$work/times") system: $result/vmlinux"
echo "$result/vmlinux"
