/* cube-jailer: what a jail shuts out, who may ask, reaping, adoption by a second jailer, and that nothing is
 * left behind. */
#include "tests/vmm/harness.h"

#include "proto/jailer.pb-c.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

typedef Cube__Jailer__V1__Request Request;
typedef Cube__Jailer__V1__Reply Reply;

static const char *jailer_program;
static pid_t jailer;

static void config_write(void)
{
    char text[1024];
    int fd = file_new("cube.yaml");
    int n = snprintf(
        text, sizeof text,
        "common:\n  run_dir: %s/run\njailer:\n  cgroup: %s\n  node_uid: 59002\n  node_gid: 59002\n  vmm: %s\n"
        "  vm_uid_base: 59300\n",
        tmp, strrchr(tmp, '/') + 1, vmm_program);
    CHECK(write(fd, text, (size_t)n) == n);
    close(fd);
}

static void jailer_start(void)
{
    char sock[200];

    snprintf(sock, sizeof sock, "%s/run/jailer.sock", tmp);
    unlink(sock);
    jailer = fork();
    CHECK(jailer >= 0);
    if (jailer == 0) {
        execl(jailer_program, "cube-jailer", "--config", in_tmp("cube.yaml"), NULL);
        _exit(127);
    }
    for (int i = 0; i < 6000 && access(sock, F_OK) < 0; i++)
        usleep(10000);
    CHECK(access(sock, F_OK) == 0);
}

static int dial(const char *name, uid_t as)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(a.sun_path, sizeof a.sun_path, "%s/run/%s", tmp, name);
    CHECK(seteuid(as) == 0);
    int rc = 0;
    for (int i = 0; i < 6000 && (rc = connect(s, (struct sockaddr *)&a, sizeof a)) < 0 &&
                    (errno == ECONNREFUSED ||
                     errno == ENOENT); /* a jailer that starts: not bound yet, not listening yet */
         i++)
        usleep(10000);
    CHECK(seteuid(0) == 0);
    if (rc < 0) {
        close(s);
        return -1;
    }
    return s;
}

static void send_request(int s, Request *q)
{
    uint8_t data[4096];
    size_t n = cube__jailer__v1__request__pack(q, data);

    CHECK(send(s, data, n, MSG_NOSIGNAL) == (ssize_t)n);
}

/* The next message with its descriptors; NULL after a minute or when the connection is over. */
static Reply *receive(int s, int *fds, unsigned *nfds)
{
    static uint8_t data[1 << 20];
    char anc[CMSG_SPACE(sizeof(int) * 4)];
    struct iovec iov = {data, sizeof data};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = anc, .msg_controllen = sizeof anc};
    struct pollfd p = {s, POLLIN, 0};

    if (poll(&p, 1, 60000) != 1)
        return NULL;
    ssize_t n = recvmsg(s, &m, MSG_CMSG_CLOEXEC);
    if (n <= 0)
        return NULL;
    unsigned k = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        k = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        if (fds)
            memcpy(fds, CMSG_DATA(c), k * sizeof(int));
    }
    if (nfds)
        *nfds = k;
    return cube__jailer__v1__reply__unpack(NULL, (size_t)n, data);
}

static uint64_t next_id = 1;
static unsigned ended_events;
static int last_status;

/* Sends and waits for the answer; events on the way are counted. */
static Reply *call(int s, Request *q, int *fds, unsigned *nfds)
{
    q->id = next_id++;
    send_request(s, q);
    for (;;) {
        Reply *r = receive(s, fds, nfds);
        if (!r)
            FAIL("no answer of the jailer");
        if (r->id == q->id)
            return r;
        if (r->result_case == CUBE__JAILER__V1__REPLY__RESULT_ENDED) {
            ended_events++;
            last_status = r->ended->status;
        }
        cube__jailer__v1__reply__free_unpacked(r, NULL);
    }
}

static int hello(uid_t as)
{
    Request q = CUBE__JAILER__V1__REQUEST__INIT;
    Cube__Jailer__V1__Hello h = CUBE__JAILER__V1__HELLO__INIT;
    int s = dial("jailer.sock", as);

    CHECK(s >= 0);
    h.version = 1;
    q.op_case = CUBE__JAILER__V1__REQUEST__OP_HELLO;
    q.hello = &h;
    Reply *r = call(s, &q, NULL, NULL);
    CHECK(r->result_case == CUBE__JAILER__V1__REPLY__RESULT_HELLO && r->hello->version == 1);
    cube__jailer__v1__reply__free_unpacked(r, NULL);
    return s;
}

struct spawned {
    char name[41];
    pid_t pid;
    int pidfd, ctl;
};

static char error_code[40];

static bool spawn(int s, const char *name, struct spawned *out)
{
    Request q = CUBE__JAILER__V1__REQUEST__INIT;
    Cube__Jailer__V1__Spawn sp = CUBE__JAILER__V1__SPAWN__INIT;
    Cube__Jailer__V1__Limits l = CUBE__JAILER__V1__LIMITS__INIT;
    int fds[4];
    unsigned n = 0;

    l.memory_bytes = 400u << 20;
    l.cpu_milli = 1500;
    l.pids = 64;
    sp.name = (char *)name;
    sp.limits = &l;
    sp.memory_mib = 256;
    q.op_case = CUBE__JAILER__V1__REQUEST__OP_SPAWN;
    q.spawn = &sp;
    Reply *r = call(s, &q, fds, &n);
    snprintf(error_code, sizeof error_code, "%s", r->error_code);
    bool ok = !r->error_code[0];
    if (ok) {
        CHECK(n == 2 && r->spawn->pid > 1 && r->spawn->start_time > 0);
        *out = (struct spawned){.pid = (pid_t)r->spawn->pid, .pidfd = fds[0], .ctl = fds[1]};
        snprintf(out->name, sizeof out->name, "%s", name);
    }
    cube__jailer__v1__reply__free_unpacked(r, NULL);
    return ok;
}

/* Kill, Forget, DropTap: requests whose only member is a name. Returns the error code ("" = ok). */
static const char *named(int s, Cube__Jailer__V1__Request__OpCase op, const char *name)
{
    Request q = CUBE__JAILER__V1__REQUEST__INIT;
    Cube__Jailer__V1__Kill k = CUBE__JAILER__V1__KILL__INIT;
    Cube__Jailer__V1__Forget f = CUBE__JAILER__V1__FORGET__INIT;
    Cube__Jailer__V1__DropTap d = CUBE__JAILER__V1__DROP_TAP__INIT;

    k.name = f.name = d.name = (char *)name;
    q.op_case = op;
    if (op == CUBE__JAILER__V1__REQUEST__OP_KILL)
        q.kill = &k;
    else if (op == CUBE__JAILER__V1__REQUEST__OP_FORGET)
        q.forget = &f;
    else
        q.drop_tap = &d;
    Reply *r = call(s, &q, NULL, NULL);
    snprintf(error_code, sizeof error_code, "%s", r->error_code);
    cube__jailer__v1__reply__free_unpacked(r, NULL);
    return error_code;
}
#define KILL CUBE__JAILER__V1__REQUEST__OP_KILL
#define FORGET CUBE__JAILER__V1__REQUEST__OP_FORGET
#define DROP_TAP CUBE__JAILER__V1__REQUEST__OP_DROP_TAP

static bool status_line(pid_t pid, const char *line)
{
    char path[64], text[8192];

    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *f = fopen(path, "re");
    CHECK(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    fclose(f);
    return strstr(text, line) != NULL;
}

static void expect_namespace(pid_t pid, const char *ns)
{
    char a[64], b[64], theirs[64] = "", ours[64] = "";

    snprintf(a, sizeof a, "/proc/%d/ns/%s", pid, ns);
    snprintf(b, sizeof b, "/proc/self/ns/%s", ns);
    CHECK(readlink(a, theirs, 63) > 0 && readlink(b, ours, 63) > 0);
    if (!strcmp(theirs, ours))
        FAIL("the jail shares the %s namespace", ns);
}

static unsigned entries(const char *path)
{
    char cmd[300];
    unsigned n = 0;

    snprintf(cmd, sizeof cmd, "ls -A %s 2>/dev/null | wc -l", path);
    FILE *p = popen(cmd, "re");
    CHECK(p && fscanf(p, "%u", &n) == 1);
    pclose(p);
    return n;
}

static void inspect(const struct spawned *v)
{
    static const char *const ns[] = {"user", "mnt", "pid", "net", "ipc", "uts"};
    char path[64];

    /* The control socket answers: the process is past its set-up. */
    struct vmm_client c;
    struct err e = {0};
    OK(vmm_attach(&c, v->ctl, &e), e);
    for (unsigned i = 0; i < 6; i++)
        expect_namespace(v->pid, ns[i]);
    CHECK(status_line(v->pid, "\nCapEff:\t0000000000000000"));
    CHECK(status_line(v->pid, "\nCapPrm:\t0000000000000000"));
    CHECK(status_line(v->pid, "\nCapBnd:\t0000000000000000"));
    CHECK(status_line(v->pid, "\nNoNewPrivs:\t1"));
    CHECK(status_line(v->pid, "\nUid:\t593"));
    CHECK(status_line(v->pid, "\nGid:\t593"));
    CHECK(status_line(v->pid, "\nGroups:\t \n") || status_line(v->pid, "\nGroups:\t\n"));
    snprintf(path, sizeof path, "/proc/%d/root", v->pid);
    CHECK(entries(path) == 0);
    /* Its other threads serve devices and are filtered from the start. */
    snprintf(path, sizeof path, "grep -h ^Seccomp: /proc/%d/task/*/status | grep -c 2", v->pid);
    FILE *p = popen(path, "re");
    unsigned filtered = 0;
    CHECK(p && fscanf(p, "%u", &filtered) == 1);
    pclose(p);
    CHECK(filtered >= 3);
}

static bool in_group(pid_t pid)
{
    char path[64], text[4096];

    snprintf(path, sizeof path, "/proc/%d/cgroup", pid);
    FILE *f = fopen(path, "re");
    CHECK(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    fclose(f);
    return strstr(text, strrchr(tmp, '/') + 1) != NULL;
}

static unsigned cgroups_left(void)
{
    char cmd[200];
    unsigned n = 0;

    snprintf(cmd, sizeof cmd, "find /sys/fs/cgroup -type d -path '*%s*' | wc -l", strrchr(tmp, '/') + 1);
    FILE *p = popen(cmd, "re");
    CHECK(p && fscanf(p, "%u", &n) == 1);
    pclose(p);
    return n;
}

static void sweep(void)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        execl(jailer_program, "cube-jailer", "--config", in_tmp("cube.yaml"), "--sweep", NULL);
        _exit(127);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void lives(int s)
{
    struct spawned a, b;
    int64_t t0 = now_us();

    CHECK(spawn(s, "vm-1", &a));
    printf("spawn: %lld us\n", (long long)(now_us() - t0));
    CHECK(!spawn(s, "vm-1", &b) && !strcmp(error_code, "conflict"));
    CHECK(!spawn(s, "../x", &b) && !strcmp(error_code, "invalid_argument"));
    CHECK(!spawn(s, "-x", &b) && !spawn(s, "", &b));
    inspect(&a);
    CHECK(in_group(a.pid));
    CHECK(spawn(s, "vm-2", &b));
    CHECK(!strcmp(named(s, FORGET, "vm-1"), "conflict"));
    ended_events = 0;
    CHECK(!*named(s, KILL, "vm-1"));
    CHECK(kill(a.pid, 0) < 0 && errno == ESRCH);
    Reply *r = receive(s, NULL, NULL);
    CHECK(r && r->result_case == CUBE__JAILER__V1__REPLY__RESULT_ENDED && WIFSIGNALED(r->ended->status));
    cube__jailer__v1__reply__free_unpacked(r, NULL);
    CHECK(access(in_tmp("run/jailer/vm/vm-1/exit.json"), F_OK) == 0);
    CHECK(!*named(s, FORGET, "vm-1"));
    CHECK(access(in_tmp("run/jailer/vm/vm-1"), F_OK) < 0 && access(in_tmp("run/vmm/vm-1.sock"), F_OK) < 0);
    CHECK(!strcmp(named(s, KILL, "vm-1"), "not_found"));
    close(a.ctl);
    close(a.pidfd);
    close(b.ctl);
    close(b.pidfd);
}

static void strangers(void)
{
    char c;
    int s = dial("jailer.sock", 59001); /* the file's mode keeps them out */

    CHECK(s < 0);
    CHECK(chmod(in_tmp("run/jailer.sock"), 0666) == 0);
    s = dial("jailer.sock", 59001);
    CHECK(s >= 0 && read(s, &c, 1) <= 0); /* and so does the check of who is there */
    close(s);
    CHECK(chmod(in_tmp("run/jailer.sock"), 0600) == 0);
    s = hello(59002);
    close(s);
}

/* kill -9 of the jailer: the VM goes on, and the next jailer knows it. */
static void adoption(void)
{
    Request q = CUBE__JAILER__V1__REQUEST__INIT;
    Cube__Jailer__V1__List l = CUBE__JAILER__V1__LIST__INIT;

    kill(jailer, SIGKILL);
    waitpid(jailer, NULL, 0);
    jailer_start();
    int s = hello(59002);
    q.op_case = CUBE__JAILER__V1__REQUEST__OP_LIST;
    q.list = &l;
    Reply *r = call(s, &q, NULL, NULL);
    CHECK(r->result_case == CUBE__JAILER__V1__REPLY__RESULT_LIST && r->list->n_vms == 1);
    CHECK(!strcmp(r->list->vms[0]->name, "vm-2") && r->list->vms[0]->alive);
    CHECK(kill((pid_t)r->list->vms[0]->pid, 0) == 0);
    cube__jailer__v1__reply__free_unpacked(r, NULL);
    int ctl = dial("vmm/vm-2.sock", 59002);
    struct vmm_client c;
    struct err e = {0};
    CHECK(ctl >= 0);
    OK(vmm_attach(&c, ctl, &e), e);
    close(ctl);
    CHECK(!*named(s, KILL, "vm-2"));
    CHECK(!*named(s, FORGET, "vm-2"));
    close(s);
}

static void taps(void)
{
    Request q = CUBE__JAILER__V1__REQUEST__INIT;
    Cube__Jailer__V1__MakeTap m = CUBE__JAILER__V1__MAKE_TAP__INIT;
    int s = hello(59002), fds[4];
    unsigned n = 0;

    m.name = "vtesttap0";
    q.op_case = CUBE__JAILER__V1__REQUEST__OP_MAKE_TAP;
    q.make_tap = &m;
    Reply *r = call(s, &q, fds, &n);
    if (r->error_code[0])
        FAIL("TAP: %s", r->error);
    CHECK(n == 1 && r->tap->ifindex > 0);
    CHECK(access("/sys/class/net/vtesttap0", F_OK) == 0);
    cube__jailer__v1__reply__free_unpacked(r, NULL);
    CHECK(!strcmp(named(s, DROP_TAP, "lo"), "not_found")); /* not ours */
    CHECK(!*named(s, DROP_TAP, "vtesttap0"));
    CHECK(access("/sys/class/net/vtesttap0", F_OK) < 0);
    close(fds[0]);
    m.name = "a-name-that-is-too-long";
    r = call(s, &q, NULL, NULL);
    CHECK(!strcmp(r->error_code, "invalid_argument"));
    cube__jailer__v1__reply__free_unpacked(r, NULL);
    close(s);
}

/* What ending a sandbox costs: kill until reaped, forget until everything is gone. */
static void kill_times(int s)
{
    for (int i = 0; i < 5; i++) {
        struct guest g = {.memory_mib = 256, .vcpus = 1};
        struct spawned v;
        struct err e = {0};
        char layer[32];

        CHECK(spawn(s, "vm-k", &v));
        OK(vmm_attach(&g.c, v.ctl, &e), e);
        snprintf(layer, sizeof layer, "kill%d.layer", i);
        guest_boot(&g, layer);
        int64_t t0 = now_us();
        CHECK(!*named(s, KILL, "vm-k"));
        int64_t t1 = now_us();
        CHECK(!*named(s, FORGET, "vm-k"));
        printf("kill: %lld us, forget: %lld us\n", (long long)(t1 - t0), (long long)(now_us() - t1));
        g.c.pid = 0;
        close(v.pidfd);
        guest_end(&g);
    }
}

/* A guest in the jail, with everything that the node would pass. */
static void guest_in_jail(void)
{
    struct guest g = {.memory_mib = 256, .vcpus = 1};
    int s = hello(59002);
    struct err e = {0};
    struct spawned v;

    CHECK(spawn(s, "vm-3", &v));
    OK(vmm_attach(&g.c, v.ctl, &e), e);
    guest_boot(&g, "jail.layer");
    int fd = guest_dial(&g, 49983, NULL);
    /* RAM and its copy in the page cache are more than the group's limit: the copy has to make room. */
    CHECK(!strcmp(ask(fd, "dirty 190"), "ok") && !strcmp(ask(fd, "check"), "good 190"));
    CHECK(strlen(ask(fd, "write /data/x 5 1")) > 8);
    CHECK(status_line(v.pid, "\nSeccomp:\t2")); /* now the control thread, too */
    Cube__Vmm__V1__SnapshotDone done;
    OK(guest_snapshot(&g, "jail", false, true, &done, &e), e);
    CHECK(done.pages > 190 * 256);
    CHECK(!strcmp(ask(fd, "check"), "good 190"));
    (void)!write(fd, "reboot\n", 7);
    CHECK(vmm_wait_exit(&g.c, 60000) == 1 && g.c.exit && !strcmp(g.c.exit->exit->reason, "reset"));
    ended_events = 0;
    Reply *r = receive(s, NULL, NULL);
    CHECK(r && r->result_case == CUBE__JAILER__V1__REPLY__RESULT_ENDED);
    CHECK(WIFEXITED(r->ended->status) && WEXITSTATUS(r->ended->status) == 10);
    cube__jailer__v1__reply__free_unpacked(r, NULL);
    close(fd);
    close(v.pidfd);
    guest_end(&g);
    kill_times(s);
    /* A second one is left running for the sweep. */
    CHECK(spawn(s, "vm-4", &v));
    close(v.ctl);
    close(v.pidfd);
    close(s);
}

static void jailer_end(void)
{
    if (jailer > 0 && waitpid(jailer, NULL, WNOHANG) == 0) {
        kill(jailer, SIGKILL);
        waitpid(jailer, NULL, 0);
    }
    if (tmp && access(in_tmp("run/jailer"), F_OK) == 0)
        sweep();
}

int main(int argc, char **argv)
{
    if (getuid() != 0) {
        printf("skipped: needs root\n");
        return 77;
    }
    harness_start(argc, argv, "jailer");
    jailer_program = argv[2];
    CHECK(chmod(tmp, 0755) == 0);
    config_write();
    atexit(jailer_end);
    jailer_start();
    int s = hello(59002);
    lives(s);
    close(s);
    strangers();
    adoption();
    taps();
    guest_in_jail();
    kill(jailer, SIGTERM);
    int status;
    CHECK(waitpid(jailer, &status, 0) == jailer && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    jailer = 0;
    sweep();
    CHECK(entries(in_tmp("run")) == 0);
    CHECK(cgroups_left() == 0);
    printf("jailer: all good\n");
    return 0;
}
