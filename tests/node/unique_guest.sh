#!/bin/bash
# Runs in the guest (unique_test.py). `warm`: starts one long-lived process per language and makes each draw once, so that every generator
# has its state in memory when the snapshot is taken. `draw [all]`: prints "KEY VALUE" lines, from processes that start now and from the warm ones.
d=/tmp/unique
case "${1:-}" in
warm)
    mkdir -p $d && cd $d || exit 1
    mkfifo python.in python.out node.in node.out perl.in perl.out bash.in bash.out
    cat > python.py <<'P'
import os, random, secrets, ssl, tempfile, uuid
names = tempfile._RandomNameSequence()
own, generation = random.Random(os.urandom(16)), os.stat("/run/cube/generation").st_ino
def draw():
    global own, generation
    now = os.stat("/run/cube/generation").st_ino
    if now != generation:  # what docs/clones.md tells programs to do
        own, generation = random.Random(os.urandom(16)), now
    return {"kernel:python-urandom": os.urandom(16).hex(), "kernel:python-uuid4": uuid.uuid4().hex, "kernel:python-secrets": secrets.token_hex(16),
            "kernel:python-generation": own.getrandbits(128), "user:python-random": random.getrandbits(128), "user:python-tempfile": next(names),
            "user:python-openssl": ssl.RAND_bytes(16).hex()}
draw()
open("python.ready", "w").close()
while True:
    open("python.in").read()
    with open("python.out", "w") as f:
        f.writelines(f"{k} {v}\n" for k, v in draw().items())
P
    cat > node.js <<'P'
const fs = require('fs'), crypto = require('crypto');
function draw() {
    const kernel = Buffer.alloc(16), fd = fs.openSync('/dev/urandom');
    fs.readSync(fd, kernel, 0, 16, null);
    fs.closeSync(fd);
    return {'kernel:node-urandom': kernel.toString('hex'), 'user:node-randomBytes': crypto.randomBytes(16).toString('hex'),
        'user:node-randomUUID': crypto.randomUUID(), 'user:node-Math.random': `${Math.random()}${Math.random()}`};
}
draw();
fs.writeFileSync('node.ready', '');
for (;;) {
    fs.readFileSync('node.in');
    fs.writeFileSync('node.out', Object.entries(draw()).map(([k, v]) => `${k} ${v}\n`).join(''));
}
P
    cat > perl.pl <<'P'
sub draw { open(my $u, '<:raw', '/dev/urandom'); sysread($u, my $b, 16); return ("kernel:perl-urandom", unpack("H*", $b), "user:perl-rand", join("", map { int(rand(2**32)) } 1..4)); }
draw();
open(my $r, '>', 'perl.ready'); close($r);
while (1) { open(my $i, '<', 'perl.in'); my @l = <$i>; close($i); open(my $o, '>', 'perl.out'); my @v = draw(); print $o "$v[0] $v[1]\n$v[2] $v[3]\n"; close($o); }
P
    cat > bash.sh <<'P'
draw() { echo "kernel:bash-SRANDOM $SRANDOM-$SRANDOM-$SRANDOM-$SRANDOM"; echo "user:bash-RANDOM $RANDOM-$RANDOM-$RANDOM-$RANDOM-$RANDOM-$RANDOM-$RANDOM-$RANDOM"; }
draw > /dev/null
: > bash.ready
while :; do read -r _ < bash.in; draw > bash.out; done
P
    setsid python3 python.py < /dev/null > python.log 2>&1 &
    setsid node node.js < /dev/null > node.log 2>&1 &
    setsid perl perl.pl < /dev/null > perl.log 2>&1 &
    setsid bash bash.sh < /dev/null > bash.log 2>&1 &
    for p in python node perl bash; do
        until [ -e $p.ready ]; do sleep 0.05; done
    done
    ;;
draw)
    cd $d || exit 1
    for p in python node perl bash; do
        echo go > $p.in
        cat $p.out
    done
    read -r uuid < /proc/sys/kernel/random/uuid && echo "fresh:kernel-uuid $uuid"
    read -r boot < /proc/sys/kernel/random/boot_id && echo "fresh:boot-id $boot"
    read -r machine < /etc/machine-id && echo "fresh:machine-id $machine"
    echo "fresh:hostname $(hostname)"
    echo "fresh:mktemp $(mktemp -u)"
    echo "fresh:perl-rand $(perl -e 'print join "", map { int(rand(2**32)) } 1..4')"
    python3 -S -E -c 'import os, random, uuid; print(f"fresh:python-urandom {os.urandom(16).hex()}\nfresh:python-uuid4 {uuid.uuid4().hex}\nfresh:python-random {random.getrandbits(128)}")'
    [ "${2:-}" = all ] || exit 0
    python3 -E -c 'import ssl, tempfile; print(f"fresh:python-openssl {ssl.RAND_bytes(16).hex()}\nfresh:python-tempfile {tempfile.mktemp()}")'
    node -e 'const c = require("crypto"); console.log(`fresh:node-randomBytes ${c.randomBytes(16).toString("hex")}\nfresh:node-randomUUID ${c.randomUUID()}\nfresh:node-Math.random ${Math.random()}${Math.random()}`)'
    echo "fresh:openssl $(openssl rand -hex 16)"
    ;;
*) exit 2 ;;
esac
