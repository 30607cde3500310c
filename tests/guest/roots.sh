#!/bin/bash
# Five kinds of root that cube-init must boot (issue 6): Debian minbase, busybox with musl from Debian's packages, an empty root with one
# static binary, a root without /etc/passwd, and a read-only root with a writable /workspace. Needs root and /dev/kvm.
set -u
CUBE_ROOT=${CUBE_ROOT:-$(cd "$(dirname "$0")/../.." && pwd)}
CUBE_BUILD_DIR=${CUBE_BUILD_DIR:-$CUBE_ROOT/build} CUBE_CACHE=${CUBE_CACHE:-/var/cache/cube}
cd "$CUBE_ROOT" || exit 1
# shellcheck source=tests/guest/lib.sh
. tests/guest/lib.sh

image() { # image NAME DIR: an ext4 image of a directory
    mkfs.ext4 -q -F -O ^has_journal -d "$2" "$guest_work/$1.ext4" 64M
}

# One static program of our own: prints its arguments' file, or its uid.
mkdir -p "$guest_work/src"
cat > "$guest_work/src/probe.c" <<'C'
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    int fd = argc > 1 ? open(argv[1], O_WRONLY | O_CREAT, 0644) : -1;
    printf("uid %d, %s\n", (int)getuid(), fd >= 0 ? "writable" : "not writable");
    return 0;
}
C
gcc -static -O1 -o "$guest_work/probe" "$guest_work/src/probe.c" || exit 1

# busybox and musl: their packages unpacked, applets linked; a program linked against musl proves the loader.
mkdir -p "$guest_work/deb" "$guest_work/musl/bin" "$guest_work/musl/etc" "$guest_work/musl/root" "$guest_work/musl/lib"
deb_cache=$CUBE_CACHE/base/debs
mkdir -p "$deb_cache"
for p in busybox-static musl; do
    ls "$deb_cache/$p"_*.deb > /dev/null 2>&1 || (cd "$deb_cache" && apt-get download -qq "$p" > /dev/null 2>&1)
    dpkg-deb -x "$deb_cache/$p"_*.deb "$guest_work/deb" || { echo "SKIP guest roots: package $p cannot be had"; exit 0; }
done
cp "$guest_work/deb/bin/busybox" "$guest_work/musl/bin/" 2>/dev/null || cp "$guest_work/deb/usr/bin/busybox" "$guest_work/musl/bin/"
cp -a "$guest_work"/deb/lib/*musl* "$guest_work/musl/lib/" 2>/dev/null || cp -a "$guest_work"/deb/usr/lib/*musl* "$guest_work/musl/lib/" 2>/dev/null
for a in sh ls cat echo id mkdir mount; do ln -sf busybox "$guest_work/musl/bin/$a"; done
echo 'root:x:0:0:root:/root:/bin/sh' > "$guest_work/musl/etc/passwd"

mkdir -p "$guest_work/empty"
cp "$guest_work/probe" "$guest_work/empty/probe"

mkdir -p "$guest_work/nopasswd/bin" "$guest_work/nopasswd/etc"
cp "$guest_work/musl/bin/busybox" "$guest_work/nopasswd/bin/"
ln -sf busybox "$guest_work/nopasswd/bin/sh"
ln -sf busybox "$guest_work/nopasswd/bin/id"

cp -a "$guest_work/musl" "$guest_work/readonly"
cp "$guest_work/probe" "$guest_work/readonly/bin/"
for d in workspace proc sys dev run tmp etc; do mkdir -p "$guest_work/readonly/$d"; done
touch "$guest_work/readonly/etc/machine-id" "$guest_work/readonly/etc/hostname" "$guest_work/readonly/etc/hosts"

for r in musl empty nopasswd readonly; do image "$r" "$guest_work/$r" || exit 1; done
cp --sparse=always "$(guest/base/build.sh | tail -n 1)" "$guest_work/debian.ext4" || exit 1

try() { # try NAME EXTRA_CMDLINE PYTHON: boots and runs a snippet with `c` (control) and `envd(cmd, args)`
    local name=$1 cmdline=$2
    guest_vm "$name" "$guest_work/$name.ext4" --cmdline "root=/dev/vdb rootfstype=erofs ro init=/cube-init $cmdline"
    if PYTHONPATH=tests/guest GUEST_CTL=$guest_ctl GUEST_IN=$guest_in timeout 180 python3 tests/guest/roots.py "$3" 2> "$guest_work/$name.err"; then
        echo "PASS guest roots: $name"
    else
        echo "FAIL guest roots: $name: $(tail -n 1 "$guest_work/$name.err"); console: $(tail -n 2 "$guest_work/$name.log" | tr '\n' ' ')"
    fi
    kill "$guest_vm_pid" 2>/dev/null
}

try debian "" 'assert envd("/bin/bash", ["-l", "-c", "id -un"]) == "root\n"; assert put("/tmp/x") == 200'
try musl "" 'assert envd("/bin/sh", ["-c", "id -u; echo $HOME"]) == "0\n/root\n"; assert put("/data/x") == 200; assert "libc.musl" in envd("/bin/ls", ["/lib"]) or "musl" in envd("/bin/ls", ["/lib"])'
try empty "" 'assert envd("/probe", ["/file"]) == "uid 0, writable\n"; assert put("/new/file") == 200; assert "not found" in envd("/bin/none", [])'
try nopasswd "" 'assert envd("/bin/sh", ["-c", "id -u; pwd"]) == "0\n/\n"; assert put("relative") == 200'
try readonly "cube.root=ro" 'assert envd("/bin/probe", ["/bin/x"]) == "uid 0, not writable\n"; assert envd("/bin/probe", ["/workspace/x"]) == "uid 0, writable\n"; assert put("/workspace/y") == 200; assert put("/bin/y") == 403; assert envd("/bin/cat", ["/etc/hostname"]) == "iroots\n"'
