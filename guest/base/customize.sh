#!/bin/sh
# What makes a Debian tree the `base` root file system. Runs as mmdebstrap's last hook; $1 is the tree.
# Nothing here depends on the machine that builds: the same packages give the same tree.
set -eu
root=$1

chroot "$root" useradd --create-home --uid 1000 --user-group --shell /bin/bash --groups sudo user
# `!` in shadow would make sudo and su treat the account as locked; `*` is "no password login".
chroot "$root" usermod -p '*' user
printf 'user ALL=(ALL:ALL) NOPASSWD: ALL\n' > "$root/etc/sudoers.d/user"
printf 'Defaults:user !requiretty, env_keep += "LANG LC_ALL TERM"\n' >> "$root/etc/sudoers.d/user"
chmod 0440 "$root/etc/sudoers.d/user"

# C.UTF-8 is part of libc: no locale package, and text tools still treat bytes as UTF-8.
printf 'LANG=C.UTF-8\n' > "$root/etc/default/locale"
printf 'LANG=C.UTF-8\n' >> "$root/etc/environment"

# The guest network is the same in every sandbox: gateway and DNS 169.254.0.22 (contracts/internal.md §8).
printf 'nameserver 169.254.0.22\n' > "$root/etc/resolv.conf"
printf 'sandbox\n' > "$root/etc/hostname"
cat > "$root/etc/hosts" <<'H'
127.0.0.1	localhost sandbox
::1	localhost ip6-localhost ip6-loopback
H
: > "$root/etc/machine-id"
: > "$root/etc/fstab"

# There is no service manager: package scripts must not try to start daemons.
printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
chmod 0755 "$root/usr/sbin/policy-rc.d"
chmod 0644 "$root/etc/hostname" "$root/etc/resolv.conf" "$root/etc/hosts" "$root/etc/machine-id"

# An upgrade of python's own packages by pip is what agents do all day; the tree is theirs alone.
rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED

# Logs and caches of the build tell the time and the machine.
rm -rf "$root"/var/log/* "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/cache/debconf/*-old
rm -rf "$root"/var/lib/dpkg/*-old "$root"/etc/*- "$root"/var/cache/ldconfig/aux-cache "$root"/tmp/* "$root"/run/*
mkdir -p "$root/var/log/apt" "$root/var/lib/apt/lists/partial" "$root/var/cache/apt/archives/partial"
chmod 1777 "$root/tmp"
