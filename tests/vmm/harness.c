/* See harness.h. */
#include "tests/vmm/harness.h"

#include "lib/base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

const char *tmp, *vmm_program, *kernel;
static char tmp_dir[64], kernel_path[PATH_MAX];

void fail(const char *file, int line, const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "%s:%d: ", file, line);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(1); /* runs harness_end */
}

int64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000ll + t.tv_nsec / 1000;
}

static void run(const char *const argv[])
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        execvp(argv[0], (char *const *)argv);
        _exit(127);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        FAIL("%s failed", argv[0]);
}

void copy_file(const char *from, const char *to)
{
    run((const char *const[]){"cp", "--sparse=always", from, to, NULL});
}

const char *in_tmp(const char *name)
{
    static char path[4][PATH_MAX];
    static unsigned i;

    i = (i + 1) % 4;
    snprintf(path[i], PATH_MAX, "%s/%s", tmp, name);
    return path[i];
}

int file_new(const char *name)
{
    int fd = open(in_tmp(name), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    CHECK(fd >= 0);
    return fd;
}

/* The kernel of this host's kind: CUBE_VMLINUX, or what guest/kernel/build.sh built. */
static bool find_kernel(void)
{
    const char *given = getenv("CUBE_VMLINUX");

    if (given) {
        snprintf(kernel_path, sizeof kernel_path, "%s", given);
    } else {
        FILE *p = popen(CUBE_SOURCE_ROOT "/guest/kernel/build.sh --path", "re");
        if (p && fgets(kernel_path, sizeof kernel_path, p))
            kernel_path[strcspn(kernel_path, "\n")] = 0;
        if (p)
            pclose(p);
    }
    kernel = kernel_path;
    return access(kernel_path, R_OK) == 0;
}

void harness_end(void)
{
    if (tmp && !getenv("KEEP"))
        run((const char *const[]){"rm", "-rf", tmp, NULL});
    tmp = NULL;
}

void harness_start(int argc, char **argv, const char *name)
{
    if (argc < 4)
        FAIL("usage: %s VMM JAILER INIT", argv[0]);
    vmm_program = argv[1];
    if (access("/dev/kvm", R_OK | W_OK) < 0 || !find_kernel()) {
        printf("skipped: no /dev/kvm, or no kernel (guest/kernel/build.sh, or CUBE_VMLINUX)\n");
        exit(77);
    }
    snprintf(tmp_dir, sizeof tmp_dir, "/tmp/V-%s-XXXXXX", name);
    CHECK(mkdtemp(tmp_dir));
    tmp = tmp_dir;
    atexit(harness_end);
    signal(SIGPIPE, SIG_IGN);
    static const char *const dirs[] = {"root", "root/proc", "root/sys", "root/dev", "root/data"};
    for (unsigned i = 0; i < 5; i++)
        CHECK(mkdir(in_tmp(dirs[i]), 0755) == 0);
    copy_file(argv[3], in_tmp("root/init"));
    close(file_new("root.ext4"));
    CHECK(truncate(in_tmp("root.ext4"), 128 << 20) == 0);
    run((const char *const[]){"mke2fs", "-q", "-t", "ext4", "-d", in_tmp("root"), in_tmp("root.ext4"), NULL});
}

void guest_spawn(struct guest *g, unsigned memory_mib, unsigned vcpus)
{
    struct vmm_spawn s = {vmm_program, memory_mib, vcpus, !getenv("NO_SECCOMP")};
    struct err e = {0};

    memset(g, 0, sizeof *g);
    g->memory_mib = memory_mib;
    g->vcpus = vcpus;
    OK(vmm_spawn(&g->c, &s, &e), e);
}

static void wire(struct guest *g, const char *layer, int tap_fd)
{
    struct vmm_disk_spec d = {in_tmp("root.ext4"), in_tmp(layer), 0};
    struct err e = {0};
    _cleanup_close_ int console = open(in_tmp("console"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    OK(vmm_wiring_open(&g->w, &d, 1, tap_fd, console, NULL, NULL, g->memory_mib, g->vcpus, &e), e);
    /* The listeners' addresses are needed after the descriptors were handed over. */
    g->w.ctl_listener = fcntl(g->w.ctl_listener, F_DUPFD_CLOEXEC, 3);
    g->w.in_listener = fcntl(g->w.in_listener, F_DUPFD_CLOEXEC, 3);
}

void guest_boot(struct guest *g, const char *layer)
{
    guest_boot_with(g, layer, -1, "root=/dev/vda rw init=/init");
}

void guest_boot_with(struct guest *g, const char *layer, int tap_fd, const char *cmdline)
{
    Cube__Vmm__V1__Request q = CUBE__VMM__V1__REQUEST__INIT;
    Cube__Vmm__V1__Boot b = CUBE__VMM__V1__BOOT__INIT;
    struct err e = {0};

    wire(g, layer, tap_fd);
    b.wiring = &g->w.msg;
    int k = open(kernel, O_RDONLY | O_CLOEXEC);
    CHECK(k >= 0);
    b.kernel_fd = vmm_wiring_add(&g->w, k);
    b.cmdline = (char *)cmdline;
    if (g->memory_file) {
        int fd = file_new(g->memory_file);
        CHECK(ftruncate(fd, (off_t)g->memory_mib << 20) == 0);
        b.has_memory_fd = true;
        b.memory_fd = vmm_wiring_add(&g->w, fd);
    }
    q.op_case = CUBE__VMM__V1__REQUEST__OP_BOOT;
    q.boot = &b;
    OK(vmm_call(&g->c, &q, g->w.fds, g->w.nfds, NULL, &e), e);
    vmm_wiring_close(&g->w);
    int fd = guest_dial(g, 0, NULL);
    if (strcmp(ask(fd, "ping"), "pong"))
        FAIL("the guest does not answer after boot");
    close(fd);
}

int guest_snapshot(struct guest *g, const char *name, bool delta, bool resume,
                   Cube__Vmm__V1__SnapshotDone *done, struct err *e)
{
    Cube__Vmm__V1__Request q = CUBE__VMM__V1__REQUEST__INIT;
    Cube__Vmm__V1__Snapshot s = CUBE__VMM__V1__SNAPSHOT__INIT;
    Cube__Vmm__V1__Reply *r = NULL;
    char file[2][80];

    snprintf(file[0], 80, "%s.state", name);
    snprintf(file[1], 80, "%s.mem", name);
    bool in_place = g->memory_file && !strcmp(g->memory_file, file[1]);
    int fds[2] = {file_new(file[0]),
                  in_place ? open(in_tmp(file[1]), O_RDWR | O_CLOEXEC) : file_new(file[1])};
    s.state_fd = 0;
    s.memory_fd = 1;
    s.delta = delta;
    s.resume = resume;
    q.op_case = CUBE__VMM__V1__REQUEST__OP_SNAPSHOT;
    q.snapshot = &s;
    int rc = vmm_call(&g->c, &q, fds, 2, &r, e);
    if (rc == 0 && done)
        *done = *r->snapshot;
    vmm_reply_free(r);
    close(fds[0]);
    close(fds[1]);
    return rc;
}

int guest_restore(struct guest *g, const struct snapshot_files *f, struct err *e,
                  Cube__Vmm__V1__Started *started)
{
    return guest_restore_with(g, f, -1, e, started);
}

int guest_restore_with(struct guest *g, const struct snapshot_files *f, int tap_fd, struct err *e,
                       Cube__Vmm__V1__Started *started)
{
    Cube__Vmm__V1__Request q = CUBE__VMM__V1__REQUEST__INIT;
    Cube__Vmm__V1__Restore b = CUBE__VMM__V1__RESTORE__INIT;
    Cube__Vmm__V1__Reply *r = NULL;
    uint32_t deltas[4];

    wire(g, f->layer, tap_fd);
    b.wiring = &g->w.msg;
    b.state_fd = vmm_wiring_add(&g->w, open(in_tmp(f->state), O_RDONLY | O_CLOEXEC));
    b.memory_fd = vmm_wiring_add(&g->w, open(in_tmp(f->memory), O_RDONLY | O_CLOEXEC));
    for (unsigned i = 0; i < 4 && f->deltas[i]; i++) {
        deltas[i] = vmm_wiring_add(&g->w, open(in_tmp(f->deltas[i]), O_RDONLY | O_CLOEXEC));
        b.n_delta_fds++;
    }
    b.delta_fds = deltas;
    if (f->working_set) {
        b.has_working_set = true;
        b.working_set_fd = vmm_wiring_add(&g->w, open(in_tmp(f->working_set), O_RDONLY | O_CLOEXEC));
    }
    q.op_case = CUBE__VMM__V1__REQUEST__OP_RESTORE;
    q.restore = &b;
    int rc = vmm_call(&g->c, &q, g->w.fds, g->w.nfds, &r, e);
    vmm_wiring_close(&g->w);
    if (rc == 0 && started)
        *started = *r->started;
    vmm_reply_free(r);
    return rc;
}

static void listeners_close(struct guest *g)
{
    if (g->w.ctl_listener > 0)
        close(g->w.ctl_listener);
    if (g->w.in_listener > 0)
        close(g->w.in_listener);
    g->w.ctl_listener = g->w.in_listener = 0;
}

void guest_kill(struct guest *g)
{
    kill(g->c.pid, SIGKILL);
    waitpid(g->c.pid, NULL, 0);
    g->c.pid = 0;
    guest_end(g);
}

void guest_end(struct guest *g)
{
    vmm_close(&g->c);
    listeners_close(g);
}

int guest_dial(struct guest *g, unsigned port, int *status)
{
    struct timeval limit = {60, 0};
    struct err e = {0};
    int fd = vmm_connect_to(port ? g->w.in_listener : g->w.ctl_listener, &e);

    CHECK(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (port == 0)
        return fd;
    uint8_t head[2] = {(uint8_t)(port >> 8), (uint8_t)port}, st = 255;
    CHECK(write(fd, head, 2) == 2);
    if (read(fd, &st, 1) != 1)
        FAIL("no status byte for port %u", port);
    if (status)
        *status = st;
    if (st == 0)
        return fd;
    close(fd);
    return -1;
}

const char *ask(int fd, const char *fmt, ...)
{
    static char line[4400];
    size_t n = 0;
    va_list ap;

    va_start(ap, fmt);
    int len = vsnprintf(line, sizeof line - 1, fmt, ap);
    va_end(ap);
    line[len++] = '\n';
    if (write(fd, line, (size_t)len) != len)
        return "(connection is gone)";
    while (n < sizeof line - 1 && read(fd, line + n, 1) == 1 && line[n] != '\n')
        n++;
    line[n] = 0;
    return line;
}

void simple(struct guest *g, Cube__Vmm__V1__Request__OpCase op)
{
    Cube__Vmm__V1__Request q = CUBE__VMM__V1__REQUEST__INIT;
    Cube__Vmm__V1__Freeze freeze = CUBE__VMM__V1__FREEZE__INIT;
    struct err e = {0};

    q.op_case = op;
    q.freeze = &freeze; /* freeze and thaw have no members */
    OK(vmm_call(&g->c, &q, NULL, 0, NULL, &e), e);
}
