#!/bin/bash
# guest/base/build.sh [--with LIST] [OUT.ext4] — the root file system of the template `base`.
#
# Debian packages (packages.txt) become an ext4 image without mounting anything. The result is cached as
# ${CUBE_CACHE:-/var/cache/cube}/base/<hash>/root.ext4, where the hash covers the package list, these scripts and
# the Debian release; it is whole or absent (made in a temporary directory, then renamed) and one build runs at a
# time. Prints the path of the image (OUT.ext4 if given) as the last line on stdout; progress goes to stderr.
# Packages come from the Debian sources that apt on this machine is configured with.
#
# --with LIST adds the packages of another file (the kernel tests' programs).
# CUBE_BASE_SIZE: size of the (sparse) file system, default 4G.
set -euo pipefail
umask 022

here=$(cd "$(dirname "$0")" && pwd)
cache=${CUBE_CACHE:-/var/cache/cube}/base
size=${CUBE_BASE_SIZE:-4G}
suite=bookworm
export SOURCE_DATE_EPOCH=1767225600 # every time stamp newer than this one becomes this one

say() { echo "base: $*" >&2; }
die() { say "$*"; exit 1; }

lists=("$here/packages.txt")
if [ "${1:-}" = --with ] && [ -f "${2:-}" ]; then
    lists+=("$2")
    shift 2
fi
case ${1:-} in
-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d'; exit 0 ;;
-*) die "unknown option $1 (see --help)" ;;
esac

hash=$({ cat "${lists[@]}" "$here/customize.sh" "$here/build.sh"; echo "$suite $size"; } | sha256sum | cut -c1-32)
image=$cache/$hash/root.ext4

# Copies the image to OUT, keeping holes (and sharing extents where the file system can).
deliver() {
    if [ -n "${1:-}" ]; then
        mkdir -p "$(dirname "$1")"
        cp --sparse=always --reflink=auto "$image" "$1.tmp.$$" && mv -T "$1.tmp.$$" "$1"
        echo "$1"
    else
        echo "$image"
    fi
}

mkdir -p "$cache"
exec 9>"$cache/.lock"
if [ ! -f "$image" ]; then
    flock -n 9 || { say "another build runs, waiting"; flock 9; }
fi
if [ -f "$image" ]; then
    deliver "${1:-}"
    exit 0
fi

[ "$(id -u)" = 0 ] || die "needs root to unpack packages with their owners"
command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: apt-get install mmdebstrap"

work=$(mktemp -d "$cache/.build.XXXXXX")
trap 'rm -rf "$work"' EXIT

# Only Debian's own sources, in apt's words: the machine may have others that a sandbox has no use for.
sources() {
    apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
        { grep " $suite" || true; } | sort -u
}
sources >"$work/sources.list"
if [ ! -s "$work/sources.list" ]; then
    say "no package lists of $suite on this machine, running apt-get update"
    apt-get update -q >&2
    sources >"$work/sources.list"
fi
[ -s "$work/sources.list" ] || die "apt on this machine knows no Debian $suite source"

packages=$(cat "${lists[@]}" | sed 's/#.*//' | xargs | tr ' ' ,)
# Some packages (a JDK) want to put links below /usr/share/man, so the directories exist though the pages do not.
# apt's own cleaning at the end is skipped: it emptied the lists of the build machine (mmdebstrap 1.3.5 as root);
# customize.sh removes what it would have removed.
say "building $hash from $(wc -l <"$work/sources.list") sources"
mmdebstrap --quiet --mode=root --variant=minbase --skip=cleanup/apt --include="$packages" \
    --aptopt='Apt::Install-Recommends "false"' \
    --aptopt='Acquire::Check-Valid-Until "false"' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/info/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --essential-hook='mkdir -p "$1"/usr/share/man/man1 "$1"/usr/share/man/man8' \
    --customize-hook="sh '$here/customize.sh' \"\$1\"" \
    "$suite" "$work/root" "$work/sources.list" >&2

# mmdebstrap takes the build machine's name and resolver into the tree after the hooks have run.
printf 'sandbox\n' >"$work/root/etc/hostname"
printf 'nameserver 169.254.0.22\n' >"$work/root/etc/resolv.conf"
chmod 0644 "$work/root/etc/hostname" "$work/root/etc/resolv.conf"
# Files made during the build carry the time of the build: give them the fixed one.
find "$work/root" -newermt "@$SOURCE_DATE_EPOCH" -print0 | xargs -0r touch -h -d "@$SOURCE_DATE_EPOCH"

say "packing $(du -sm "$work/root" | cut -f1) MiB into ext4 of $size"
mkdir "$work/out"
truncate -s "$size" "$work/out/root.ext4"
# A fixed UUID and hash seed make the image depend on the tree only. The small journal keeps a sandbox's private
# layer small; inode tables are zero already (sparse), so the guest must not start writing them.
E2FSPROGS_FAKE_TIME=$SOURCE_DATE_EPOCH mke2fs -q -t ext4 -d "$work/root" -L root \
    -U 5ab00000-cafe-4000-8000-000000000001 -J size=16 -m 0 -O ^orphan_file \
    -E "hash_seed=5ab00000-cafe-4000-8000-000000000002,lazy_itable_init=0,lazy_journal_init=0" \
    "$work/out/root.ext4" >&2
e2fsck -fn "$work/out/root.ext4" >&2 || die "the new image does not pass e2fsck"
chroot "$work/root" dpkg-query -W -f '${Package} ${Version}\n' >"$work/out/packages"
chmod 0755 "$work/out"
chmod 0644 "$work/out"/*
sync "$work/out/root.ext4"
rm -rf "${cache:?}/$hash"
mv -T "$work/out" "$cache/$hash"
say "done: $image ($(du -m "$image" | cut -f1) MiB on disk)"
deliver "${1:-}"
