#!/bin/bash
# programs.sh NAME — one program of the list "what an agent brings", run in the guest. Ends with 0 (works), 77 (the root file
# system lacks it) or another status, with the reason on its output. programs.sh --list prints the names.
set -u
need() { command -v "$1" >/dev/null || { echo "$1 is not in this root file system: LONG=1, or tests/kernel/list.sh --full"; exit 77; }; }
same() { [ "$1" = "$2" ] || { echo "expected: $2"; echo "got: $1"; exit 1; }; }
work=$(mktemp -d /var/tmp/prog.XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

bash_pipelines() {
    same "$(seq 1 20000 | sha256sum | cut -c1-8)" "$(seq 1 20000 | cat | cat | tac | tac | sha256sum | cut -c1-8)"
    for i in $(seq 50); do (echo "$i" | grep -c . >/dev/null) || exit 1; done
    same "$(diff <(seq 100) <(seq 1 100))" ""
}
bash_job_control() {
    python3 - <<'PY'
import os, pty, select, sys, time
pid, fd = pty.fork()
if pid == 0:
    os.execlp("bash", "bash", "--norc", "-i")
out, deadline = b"", time.time() + 90
def until(text):
    global out
    while text not in out:
        if time.time() > deadline:
            sys.exit("no %r in %r" % (text, out[-500:]))
        if select.select([fd], [], [], 0.2)[0]:
            out += os.read(fd, 4096)
    out = out[out.index(text) + len(text):]
os.write(fd, b"PS1=; stty -echo; echo rea''dy\n"); until(b"ready")
# The job itself tells that it runs, so the key reaches the job and not the shell.
job = b"bash -c 'echo run\"\"ning; exec sleep 1000'\n"
os.write(fd, job); until(b"running")
os.write(fd, b"\x1a"); until(b"Stopped")
os.write(fd, b"bg; jobs; echo li''sted\n"); until(b"listed")
os.write(fd, b"kill %1; wait; echo end''ed\n"); until(b"ended")
os.write(fd, job); until(b"running")
os.write(fd, b"\x03"); os.write(fd, b"echo status $?\n"); until(b"status 130")
PY
}
python_threads() {
    python3 - <<'PY'
import concurrent.futures as cf, hashlib, queue, threading
with cf.ThreadPoolExecutor(16) as ex:
    r = list(ex.map(lambda n: hashlib.sha256(b"x" * n).hexdigest(), range(2000)))
assert r[7] == hashlib.sha256(b"x" * 7).hexdigest()
q, total = queue.Queue(4), [0]
def consume():
    while (v := q.get()) is not None: total[0] += v
t = threading.Thread(target=consume); t.start()
for i in range(20000): q.put(i)
q.put(None); t.join(); assert total[0] == 199990000
PY
}
python_multiprocessing() {
    cat >mp.py <<'PY'
import multiprocessing as mp
def f(n): return sum(i * i for i in range(n))
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        with mp.get_context(method).Pool(4) as p:
            assert p.map(f, range(0, 2000, 10)) == [f(n) for n in range(0, 2000, 10)]
PY
    python3 mp.py
}
python_asyncio() {
    python3 - <<'PY'
import asyncio
async def main():
    async def echo(r, w):
        while data := await r.read(65536): w.write(data); await w.drain()
        w.close()
    s = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = s.sockets[0].getsockname()[1]
    async def client(n):
        r, w = await asyncio.open_connection("127.0.0.1", port)
        data = bytes([n]) * 300000
        async def send(): w.write(data); await w.drain(); w.write_eof()
        task = asyncio.create_task(send()); got = await r.read(-1); await task
        assert got == data
    await asyncio.gather(*(client(n) for n in range(20)))
    p = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    out, _ = await p.communicate(b"z" * 200000); assert out == b"z" * 200000
asyncio.run(main())
PY
}
python_ctypes() {
    python3 - <<'PY'
import ctypes
libc = ctypes.CDLL("libc.so.6", use_errno=True)
CMP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
a = (ctypes.c_int * 1000)(*[(i * 7919) % 1009 for i in range(1000)])
libc.qsort(a, 1000, 4, CMP(lambda x, y: x[0] - y[0])); assert list(a) == sorted(a)
assert libc.close(12345) == -1 and ctypes.get_errno() == 9
PY
}
sqlite_fsync() {
    python3 - <<'PY'
import sqlite3
for mode in ("DELETE", "WAL"):
    c = sqlite3.connect(mode + ".db"); c.execute("pragma journal_mode=" + mode); c.execute("pragma synchronous=FULL")
    c.execute("create table t(a integer primary key, b text)")
    for i in range(50):
        with c: c.execute("insert into t(b) values (?)", ("v%d" % i * 50,))
    c.close(); c = sqlite3.connect(mode + ".db")
    assert c.execute("select count(*) from t").fetchone()[0] == 50 and c.execute("pragma integrity_check").fetchone()[0] == "ok"
PY
}
perl_text() {
    need perl
    same "$(perl -e 'my %h; $h{$_ % 97}++ for 1..50000; print join ",", map {"$_:$h{$_}"} (sort {$a<=>$b} keys %h)[0..2]')" "0:515,1:516,2:516"
    same "$(perl -e 'pipe(R,W); if (!fork) { close R; print W "x" x 100000; exit } close W; local $/; print length <R>')" 100000
}
git_loopback() {
    need git
    git init -q --bare origin.git
    export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
    git daemon --base-path="$work" --export-all --enable=receive-pack --listen=127.0.0.1 --port=9418 --reuseaddr >daemon.log 2>&1 &
    for _ in $(seq 100); do git ls-remote git://127.0.0.1/origin.git >/dev/null 2>&1 && break; sleep 0.1; done
    git init -q one && cd one && for i in $(seq 200); do echo "$i" >"f$i"; done
    git add . && git commit -qm first && git push -q git://127.0.0.1/origin.git HEAD:main || { cat ../daemon.log; exit 1; }
    git clone -q -b main git://127.0.0.1/origin.git ../two && cd ../two && git fsck --strict 2>/dev/null && same "$(cat f200)" 200
    kill %1
}
files_and_watch() {
    python3 - <<'PY'
import ctypes, os, struct
libc = ctypes.CDLL("libc.so.6", use_errno=True)
fd = libc.inotify_init1(0); assert fd >= 0 and libc.inotify_add_watch(fd, b".", 0x100 | 0x200) >= 0
open("a", "w").close(); os.unlink("a")
b = os.read(fd, 4096); assert struct.unpack_from("iIII", b)[1] == 0x100
assert libc.fanotify_init(0x200, 0) >= 0, "fanotify"
assert libc.syscall(425, 8, ctypes.create_string_buffer(120)) >= 0, "io_uring"
assert libc.syscall(323, 0o2000000 | 1) >= 0, "userfaultfd"
assert libc.syscall(444, None, 0, 1) >= 1, "landlock"
assert libc.memfd_create(b"m", 0) >= 0
PY
}
namespaces() {
    same "$(unshare -Urpmf --mount-proc bash -c 'echo $$ $(id -u)')" "1 0"
    same "$(unshare -Urn bash -c 'ip link set lo up && ip -o addr show lo | grep -c 127.0.0.1')" 1
    mkdir -p low up wk mnt && echo low >low/f && mount -t overlay -o lowerdir=low,upperdir=up,workdir=wk none mnt && echo up >mnt/f && same "$(cat low/f up/f)" $'low\nup'
    umount mnt
    mount -t tmpfs none mnt && umount mnt
    truncate -s 40M disk && mkfs.ext4 -q disk && mount -o loop disk mnt && cp /bin/bash mnt/ && umount mnt
}
cgroups() {
    root=/sys/fs/cgroup
    for c in cpu cpuset io memory pids hugetlb; do grep -qw $c $root/cgroup.controllers || { echo "no controller $c"; exit 1; }; done
    echo "+cpu +memory +pids" >$root/cgroup.subtree_control && mkdir -p $root/t && echo 20000000 >$root/t/memory.max && echo 8 >$root/t/pids.max
    (echo $BASHPID >$root/t/cgroup.procs; exec python3 -c 'a = bytearray(100 << 20)') 2>/dev/null && { echo "memory.max had no effect"; exit 1; }
    grep -q '^oom_kill [1-9]' $root/t/memory.events || { echo "no oom_kill counted"; exit 1; }
    (echo $BASHPID >$root/t/cgroup.procs; for _ in $(seq 20); do sleep 2 & done) 2>/dev/null
    grep -q '^max [1-9]' $root/t/pids.events || { echo "pids.max had no effect"; exit 1; }
    echo 1 >$root/t/cgroup.kill 2>/dev/null
    for _ in $(seq 50); do rmdir $root/t 2>/dev/null && break; sleep 0.1; done
}
network() {
    ip link add v0 type veth peer name v1 && ip link add br0 type bridge && ip link set v0 master br0 && ip link add d0 type dummy
    ip link set v0 up && ip link set br0 up && ip addr add 10.9.0.1/24 dev br0
    ip netns add n1 && ip link set v1 netns n1 && ip -n n1 addr add 10.9.0.2/24 dev v1 && ip -n n1 link set v1 up
    ping -c 2 -i 0.2 -W 5 -q 10.9.0.2 >/dev/null || { echo "no ping over veth and bridge"; exit 1; }
    grep -qw bbr /proc/sys/net/ipv4/tcp_available_congestion_control || { echo "no bbr"; exit 1; }
    ip netns del n1; ip link del br0; ip link del d0
    ip tuntap add dev t0 mode tap && ip link del t0
}
firewall() {
    need nft; need iptables
    nft -f - <<'N' || exit 1
table inet t {
    chain c {
        type filter hook input priority 0;
        ct state established,related accept
        tcp dport 4444 counter reject
    }
}
table ip n {
    chain p {
        type nat hook postrouting priority 100;
        oifname "eth9" masquerade
    }
}
N
    python3 -c 'import socket; socket.create_connection(("127.0.0.1", 4444))' 2>&1 | grep -q refused || { echo "no reject"; exit 1; }
    nft list ruleset | grep -q 'packets [1-9]' || { echo "the counter counts nothing"; exit 1; }
    nft flush ruleset
    iptables-nft -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE && iptables-nft -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT &&
        iptables-nft -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j ACCEPT && ip6tables-nft -A INPUT -p tcp --dport 1 -j DROP || exit 1
    nft flush ruleset
}
zram_swap() {
    size=/sys/block/zram0/disksize
    [ -e $size ] || { echo "no zram0"; exit 1; }
    echo 64M >$size && mkswap -q /dev/zram0 >/dev/null && swapon /dev/zram0 && grep -q zram0 /proc/swaps && swapoff /dev/zram0 && echo 1 >/sys/block/zram0/reset
}
# What issue and docs/kernel.md promise, as the running kernel says it itself.
kernel_config() {
    zcat /proc/config.gz >config || exit 1
    missing=$(for c in VIRTIO_MMIO VIRTIO_BLK VIRTIO_NET VIRTIO_VSOCKETS HW_RANDOM_VIRTIO VIRTIO_BALLOON EXT4_FS EROFS_FS OVERLAY_FS TMPFS FUSE_FS \
        CGROUPS MEMCG BLK_CGROUP CGROUP_SCHED CFS_BANDWIDTH CPUSETS CGROUP_PIDS CGROUP_FREEZER CGROUP_DEVICE CGROUP_HUGETLB CGROUP_RDMA CGROUP_MISC \
        CGROUP_PERF CGROUP_BPF UTS_NS IPC_NS USER_NS PID_NS NET_NS SECCOMP_FILTER INOTIFY_USER FANOTIFY IO_URING NETFILTER NF_TABLES NFT_COMPAT \
        NFT_NAT NFT_MASQ NETFILTER_XT_MATCH_CONNTRACK NETFILTER_XT_MATCH_ADDRTYPE IP_NF_TARGET_REJECT BRIDGE VETH TUN TCP_CONG_BBR ZRAM IKCONFIG_PROC \
        BPF_SYSCALL NO_HZ_IDLE SMP SECURITY_LANDLOCK USERFAULTFD; do echo "CONFIG_$c=y"; done | grep -vxFf config)
    same "$missing" ""
    for c in cpuset cpu io memory hugetlb pids rdma misc; do grep -qw $c /sys/fs/cgroup/cgroup.controllers || { echo "no controller $c"; exit 1; }; done
}
gcc_project() {
    need gcc; need make
    python3 - <<'PY'
for i in range(12):
    open(f"f{i}.c", "w").write("#include <stdio.h>\n#include <stdlib.h>\n" + "".join(f"int f{i}_{k}(int x){{int s=0;for(int j=0;j<x;j++)s+=j%({k}+1);return s;}}\n" for k in range(20)))
open("main.c", "w").write("#include <stdio.h>\n" + "".join(f"int f{i}_3(int);" for i in range(12)) + "\nint main(){long s=0;" + "".join(f"s+=f{i}_3(100);" for i in range(12)) + 'printf("%ld\\n",s);}\n')
open("Makefile", "w").write("O=$(patsubst %.c,%.o,$(wildcard *.c))\nprog: $O\n\tgcc -o $@ $O\n%.o: %.c\n\tgcc -O2 -c $<\n")
PY
    make -s -j2 && same "$(./prog)" "$((12 * 150))"
}
gdb_session() {
    need gdb; need gcc
    printf 'int g; int add(int a,int b){g=a+b;return g;} int main(){int s=0;for(int i=0;i<5;i++)s+=add(i,1);return s!=15;}' >p.c && gcc -g -O0 p.c -o p
    gdb -q -batch -ex 'set can-use-hw-watchpoints 0' -ex 'break add' -ex run -ex 'info args' -ex step -ex step -ex 'stepi 3' -ex 'print g' -ex 'watch g' -ex continue -ex bt -ex delete -ex continue ./p >log 2>&1
    grep -q 'Watchpoint.*g' log && grep -q 'exited normally' log || { cat log; exit 1; }
}
strace_count() {
    need strace
    strace -f -c -o log bash -c 'for i in 1 2 3; do /bin/true; done; ls | cat' >/dev/null && grep -q execve log || { cat log; exit 1; }
    same "$(strace -e trace=getcwd pwd 2>&1 | grep -c 'getcwd(')" 1
}
node_workers() {
    need node
    node - <<'JS'
const { Worker } = require('worker_threads'), http = require('http'), assert = require('assert'), { execFileSync } = require('child_process');
const w = n => new Promise((ok, bad) => new Worker('const {parentPort,workerData}=require("worker_threads");let s=0;for(let i=0;i<3e6;i++)s+=i%workerData;parentPort.postMessage(s)', { eval: true, workerData: n }).on('message', ok).on('error', bad));
(async () => {
  const r = await Promise.all([3, 5, 7, 9].map(w)); assert.equal(r[0], 3e6 - 0);
  const s = http.createServer((q, a) => q.pipe(a));
  s.keepAliveTimeout = s.headersTimeout = s.requestTimeout = 0; // five seconds of a slow machine between two requests are no fault
  s.listen(0, '127.0.0.1', async () => {
    for (let i = 0; i < 30; i++) { const x = await fetch('http://127.0.0.1:' + s.address().port, { method: 'POST', body: 'b'.repeat(100000) }); assert.equal((await x.text()).length, 100000); }
    assert.equal(execFileSync('sh', ['-c', 'seq 1000 | wc -l']).toString().trim(), '1000');
    const g = []; for (let i = 0; i < 200; i++) g.push(Buffer.alloc(1 << 18, i)); process.exit(0);
  });
})().catch(e => { console.error(e); process.exit(1); });
JS
}
go_runtime() {
    need go
    cat >p.go <<'GO'
package main

import ("fmt"; "os"; "os/exec"; "runtime"; "sync"; "time")

func spin(stop *bool) int { n := 0; for !*stop { n++ }; return n }

func main() {
	runtime.GOMAXPROCS(1)
	stop, done := false, make(chan int)
	go func() { done <- spin(&stop) }() // only a signal can pre-empt this loop
	time.Sleep(50 * time.Millisecond)
	stop = true
	select { case <-done: case <-time.After(150 * time.Second): fmt.Println("no preemption"); os.Exit(1) }
	runtime.GOMAXPROCS(4)
	var wg sync.WaitGroup; var mu sync.Mutex; total := 0
	for i := 0; i < 2000; i++ { wg.Add(1); go func(i int) { defer wg.Done(); b := make([]byte, 10000); b[i%10000] = 1; mu.Lock(); total += len(b); mu.Unlock() }(i) }
	wg.Wait(); runtime.GC()
	func() { defer func() { if recover() == nil { os.Exit(2) } }(); var p *int; *p = 1 }()
	out, err := exec.Command("echo", "hi").Output()
	if err != nil || string(out) != "hi\n" || total != 20000000 { os.Exit(3) }
}
GO
    HOME=$work GOFLAGS=-mod=mod GOCACHE=$work/cache go run p.go
}
jvm_threads() {
    need java
    cat >T.java <<'J'
import java.util.*; import java.util.concurrent.*; import java.util.stream.*;
public class T { public static void main(String[] a) throws Exception {
  ExecutorService e = Executors.newFixedThreadPool(8); List<Future<Long>> f = new ArrayList<>();
  for (int i = 0; i < 64; i++) { int n = i; f.add(e.submit(() -> LongStream.range(0, 200000).map(x -> x % (n + 1)).sum())); }
  long s = 0; for (Future<Long> x : f) s += x.get(); e.shutdown();
  for (int i = 0; i < 50; i++) { byte[] b = new byte[4 << 20]; b[i] = 1; } System.gc();
  try { Object o = null; o.hashCode(); System.exit(2); } catch (NullPointerException x) { }
  Process p = new ProcessBuilder("echo", "hi").start(); if (!new String(p.getInputStream().readAllBytes()).equals("hi\n")) System.exit(3);
  System.out.println(s > 0 ? "ok" : "bad"); } }
J
    if command -v javac >/dev/null; then javac T.java && same "$(java -Xmx256m T)" ok; else same "$(java -Xmx256m T.java)" ok; fi
}
redis_load() {
    need redis-server
    redis-server --port 6399 --bind 127.0.0.1 --appendonly yes --dir "$work" --daemonize yes >/dev/null
    for _ in $(seq 50); do redis-cli -p 6399 ping >/dev/null 2>&1 && break; sleep 0.1; done
    for i in $(seq 200); do echo "set k$i v$i"; done | redis-cli -p 6399 >/dev/null
    redis-cli -p 6399 bgsave >/dev/null; redis-cli -p 6399 bgrewriteaof >/dev/null; sleep 1
    same "$(redis-cli -p 6399 get k77)" v77; same "$(redis-cli -p 6399 dbsize)" 200
    redis-cli -p 6399 shutdown nosave
}
chromium_headless() {
    browser=$(command -v chromium || command -v chromium-headless-shell) || need chromium
    echo '<body><script>document.body.innerText = [1,2,3].map(x => x * x).join("-")</script>' >p.html
    HOME=$work "$browser" --headless --no-sandbox --disable-gpu --dump-dom "file://$work/p.html" 2>log | grep -q '1-4-9' || { tail -5 log; exit 1; }
}
# Docker's own daemon with an image of our own making: storage, limits, bridge, published port, NAT and names. What is outside of the guest
# is a network namespace behind a pair of interfaces.
docker_container() {
    need dockerd; need busybox
    dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/pid" >"$work/dockerd.log" 2>&1 &
    trap 'docker ps -aq | xargs -r docker rm -f >/dev/null 2>&1; kill %1; wait %1; ip netns del out 2>/dev/null; rm -rf "$work"' EXIT
    broken() { tail -n 4 "$work/dockerd.log" | cut -c1-200; echo "$*"; exit 1; }
    until docker version >/dev/null 2>&1; do kill -0 %1 || broken "dockerd ended"; sleep 0.2; done
    same "$(docker info -f '{{.Driver}} {{.CgroupVersion}}' 2>/dev/null)" "overlay2 2"
    mkdir -p tree/bin tree/www && cp "$(command -v busybox)" tree/bin/busybox && echo page >tree/www/index.html
    tar -C tree -c . | docker import - box >/dev/null || broken "import"
    printf 'FROM box\nRUN ["/bin/busybox", "sh", "-c", "echo made >/www/made"]\n' | DOCKER_BUILDKIT=0 docker build -q -t web - >/dev/null || broken "build"
    limits=$(docker run --rm -m 32m --pids-limit 20 --cpus 0.5 web /bin/busybox cat /sys/fs/cgroup/{memory.max,pids.max,cpu.max} /www/made 2>run.log) || broken "run: $(cat run.log)"
    same "$limits" $'33554432\n20\n50000 100000\nmade'

    ip link add o0 type veth peer name o1 && ip netns add out && ip link set o1 netns out && ip addr add 10.8.0.1/24 dev o0 && ip link set o0 up &&
        ip -n out addr add 10.8.0.2/24 dev o1 && ip -n out link set o1 up || exit 1
    docker network create inner >/dev/null || broken "network"
    docker run -d --name page --network inner -p 8080:80 web /bin/busybox httpd -f -p 80 -h /www >/dev/null || broken "published port"
    page() { for _ in $(seq 300); do "$@" && return; sleep 0.1; done; broken "no answer: $*"; }
    same "$(page ip netns exec out timeout 20 busybox wget -q -O - http://10.8.0.1:8080/ 2>/dev/null)" page
    same "$(page timeout 20 busybox wget -q -O - http://127.0.0.1:8080/made 2>/dev/null)" made
    address=$(docker inspect -f '{{.NetworkSettings.Networks.inner.IPAddress}}' page)
    names=$(docker run --rm --network inner web /bin/busybox nslookup page 127.0.0.11 2>&1)
    grep -q "$address" <<<"$names" || broken "the name of a container is not known to another, $address: $names"

    mkfifo ready
    ip netns exec out python3 -c '
import socket
s = socket.create_server(("10.8.0.2", 9000)); open("ready", "w").close()
c, peer = s.accept(); print(peer[0]); c.sendall(b"hello\n"); c.close()' >peer &
    server=$!
    cat ready
    same "$(docker run --rm web /bin/busybox nc 10.8.0.2 9000)" hello
    wait $server
    same "$(cat peer)" 10.8.0.1
    same "$(docker exec page /bin/busybox cat /www/made)" made
    docker stop -t 0 page >/dev/null && same "$(docker inspect -f '{{.State.Running}} {{.State.ExitCode}}' page)" "false 137" || broken "stop"
}
stress_cpu() { need stress-ng; stress-ng --cpu 2 --cpu-method all --timeout 4s --verify -q; }
stress_vm() { need stress-ng; stress-ng --vm 2 --vm-bytes 64m --mmap 2 --mmap-bytes 32m --fork 2 --timeout 4s --verify -q; }
stress_signal() { need stress-ng; stress-ng --sigsegv 1 --sigfpe 1 --sigpending 1 --sigsuspend 1 --sigq 1 --sigrt 1 --timer 1 --itimer 1 --kill 1 --timeout 4s -q; }
stress_scheduler() { need stress-ng; stress-ng --switch 2 --yield 2 --futex 2 --pthread 1 --sem 1 --pipe 1 --clone 1 --nanosleep 1 --timeout 4s -q; }

# Every stressor of a class for a second, one after the other. This version of stress-ng knows no class "signal": stress_signal names them. A CPU
# must not go away on a PVM-kind host (docs/kernel.md). Status 3: some stressor found nothing to stress (no such device, not as root).
stress_class() {
    need stress-ng
    stress-ng --class "$1" --seq 1 --timeout 1s --vm-bytes 64m --exclude cpu-online >log 2>&1
    case $? in 0 | 3) grep -o 'successful run completed.*' log ;; *) tail -n 20 log; exit 1 ;; esac
}
class_cpu() { stress_class cpu; }
class_vm() { stress_class vm; }
class_scheduler() { stress_class scheduler; }

all=$(declare -F | awk '{print $3}' | grep -vxE 'need|same|stress_class')
# The classes take minutes: only where the other large programs are.
command -v java >/dev/null || all=$(grep -v ^class_ <<<"$all")
case ${1:-} in
--list) echo "$all" ;;
*) grep -qx "${1:-}" <<<"$all" || { echo "no such program: ${1:-}"; exit 2; }; "$1" ;;
esac
