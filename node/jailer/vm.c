/* The VMs of this node. Invariant: a VM's record is on disk before its process can run, and is removed only
 * after its process, group and socket are gone; so a jailer that is started again finds everything an earlier
 * one made. */
#include "node/jailer/jailer.h"

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

struct vm *vms;

struct vm *vm_find(const char *name)
{
    for (struct vm *v = vms; v; v = v->next)
        if (!strcmp(v->name, name))
            return v;
    return NULL;
}

struct vm *vm_find_pid(pid_t pid)
{
    for (struct vm *v = vms; v; v = v->next)
        if (v->pid == pid && v->pidfd >= 0)
            return v;
    return NULL;
}

static void record_path(const struct options *o, const char *name, const char *file, char out[256])
{
    snprintf(out, 256, "%.60s/jailer/vm/%.40s%s%.20s", o->run_dir, name, *file ? "/" : "", file);
}

void vm_socket_path(const struct options *o, const char *name, char out[108])
{
    snprintf(out, 108, "%s/vmm/%s.sock", o->run_dir, name);
}

static int free_slot(void)
{
    static uint8_t used[VMS_MAX];

    memset(used, 0, sizeof used);
    for (struct vm *v = vms; v; v = v->next)
        used[v->slot] = 1;
    for (int i = 0; i < VMS_MAX; i++)
        if (!used[i])
            return i;
    return -1;
}

static int socket_make(const struct options *o, const char *name, struct err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    _cleanup_close_ int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    vm_socket_path(o, name, a.sun_path);
    unlink(a.sun_path);
    if (s < 0 || bind(s, (struct sockaddr *)&a, sizeof a) < 0 || chmod(a.sun_path, 0600) < 0 ||
        chown(a.sun_path, (uid_t)o->node_uid, (gid_t)o->node_gid) < 0 || listen(s, 8) < 0)
        return err_sys(e, ERR_INTERNAL, "make the control socket of %s", name);
    return fd_steal(&s);
}

static int record_write(const struct options *o, const struct vm *v, struct err *e)
{
    char path[256], text[128];

    record_path(o, v->name, "record", path);
    snprintf(text, sizeof text, "1 %d %" PRIu64 " %u\n", v->pid, v->start_time, v->slot);
    return file_replace(path, text, e);
}

static int start(const struct options *o, struct vm *v, const struct limits *l, unsigned memory_mib,
                 unsigned vcpus, struct err *e)
{
    _cleanup_close_ int listener = socket_make(o, v->name, e);
    _cleanup_close_ int log_r = -1, log_w = -1;
    char path[256];
    int p[2];

    record_path(o, v->name, "", path);
    if (listener < 0 || dir_make(path, 0755, 0, 0, e) < 0 || record_write(o, v, e) < 0 ||
        cgroup_make(v->name, l, e) < 0)
        return -1;
    if (pipe2(p, O_CLOEXEC | O_NONBLOCK) < 0)
        return err_sys(e, ERR_CAPACITY, "pipe");
    log_r = p[0];
    log_w = p[1];
    struct jail j = {.o = o,
                     .name = v->name,
                     .listener = listener,
                     .log_fd = log_w,
                     .slot = v->slot,
                     .memory_mib = memory_mib,
                     .vcpus = vcpus,
                     .limits = *l};
    v->pid = jail_start(&j, &v->pidfd, e);
    if (v->pid < 0) {
        v->pidfd = -1;
        return -1;
    }
    v->start_time = process_start_time(v->pid);
    v->log_fd = fd_steal(&log_r);
    return record_write(o, v, e);
}

struct vm *vm_spawn(const struct options *o, const char *name, const struct limits *l, unsigned memory_mib,
                    unsigned vcpus, struct err *e)
{
    int slot = free_slot();

    if (vm_find(name)) {
        err_set(e, ERR_CONFLICT, "a VM named %s exists", name);
        return NULL;
    }
    struct vm *v = slot < 0 ? NULL : calloc(1, sizeof *v);
    if (!v) {
        err_set(e, ERR_CAPACITY, "no room for another VM process");
        return NULL;
    }
    *v = (struct vm){.slot = (unsigned)slot, .pidfd = -1, .log_fd = -1, .status = -1};
    strcpy(v->name, name);
    v->next = vms;
    vms = v;
    if (start(o, v, l, memory_mib, vcpus, e) == 0)
        return v;
    if (v->pidfd >= 0) { /* it runs, but could not be recorded: not to be used */
        syscall(SYS_pidfd_send_signal, v->pidfd, SIGKILL, NULL, 0);
        waitid(P_PID, (id_t)v->pid, NULL, WEXITED);
        close(v->pidfd);
        v->pidfd = -1;
    }
    vm_forget(o, v);
    return NULL;
}

void vm_mark_ended(const struct options *o, struct vm *v, int32_t status)
{
    char path[256], text[256];
    struct err e = {0};

    if (v->pidfd >= 0)
        close(v->pidfd);
    v->pidfd = -1;
    v->status = status;
    v->oom = cgroup_oom(v->name);
    record_path(o, v->name, "exit.json", path);
    snprintf(text, sizeof text,
             "{\"pid\":%d,\"start_time\":%" PRIu64 ",\"status\":%d,\"oom\":%s,\"ended_ms\":%" PRId64 "}\n",
             v->pid, v->start_time, status, v->oom ? "true" : "false", clock_realtime_ms());
    if (file_replace(path, text, &e) < 0)
        log_warn("%s: %s", v->name, e.msg);
}

static bool record_remove(const struct options *o, const char *name)
{
    static const char *const files[] = {"exit.json", "exit.json.new", "record", "record.new", ""};
    char path[256];

    for (unsigned i = 0; i < 4; i++) {
        record_path(o, name, files[i], path);
        unlink(path);
    }
    record_path(o, name, "", path);
    return rmdir(path) == 0 || errno == ENOENT;
}

void vm_forget(const struct options *o, struct vm *v)
{
    char path[108];

    vm_socket_path(o, v->name, path);
    unlink(path);
    /* The last of a group's processes may take a moment to leave it. */
    for (int i = 0; !cgroup_drop(v->name) && i < 50; i++)
        usleep(2000);
    if (!cgroup_drop(v->name) || !record_remove(o, v->name))
        log_warn("%s: its cgroup or record could not be removed; the next start tries again", v->name);
    if (v->log_fd >= 0)
        close(v->log_fd);
    struct vm **at = &vms;
    while (*at != v)
        at = &(*at)->next;
    *at = v->next;
    free(v);
}

static void adopt(const struct options *o, const char *name)
{
    char path[256], text[128];
    struct vm *v = calloc(1, sizeof *v);

    if (!v)
        return;
    *v = (struct vm){.pidfd = -1, .log_fd = -1, .status = -1};
    strcpy(v->name, name);
    record_path(o, name, "record", path);
    if (file_read(path, text, sizeof text) < 0 ||
        sscanf(text, "1 %d %" SCNu64 " %u", &v->pid, &v->start_time, &v->slot) != 3 || v->slot >= VMS_MAX) {
        v->pid = 0;
        v->slot = 0;
    }
    v->next = vms;
    vms = v;
    if (v->pid > 0 && v->start_time && process_start_time(v->pid) == v->start_time)
        v->pidfd = (int)syscall(SYS_pidfd_open, v->pid, 0);
    /* Between the two look-ups the number may have gone to somebody else. */
    if (v->pidfd >= 0 && process_start_time(v->pid) != v->start_time) {
        close(v->pidfd);
        v->pidfd = -1;
    }
    if (v->pidfd >= 0)
        return;
    record_path(o, name, "exit.json", path);
    if (file_read(path, text, sizeof text) > 0) {
        const char *s = strstr(text, "\"status\":");
        v->status = s ? (int32_t)strtol(s + 9, NULL, 10) : -1;
        v->oom = strstr(text, "\"oom\":true");
    } else {
        vm_mark_ended(o, v, -1);
    }
}

int vm_adopt_all(const struct options *o, struct err *e)
{
    char path[256];

    snprintf(path, sizeof path, "%s/jailer/vm", o->run_dir);
    _cleanup_closedir_ DIR *d = opendir(path);
    if (!d)
        return err_sys(e, ERR_INTERNAL, "read %s", path);
    for (struct dirent *x; (x = readdir(d));)
        if (name_ok(x->d_name, NAME_MAX_LEN))
            adopt(o, x->d_name);
    return 0;
}

int tap_record(const struct options *o, const char *name, bool made, struct err *e)
{
    char path[256];

    snprintf(path, sizeof path, "%s/jailer/tap/%s", o->run_dir, name);
    if (made)
        return file_replace(path, "1\n", e);
    if (unlink(path) < 0 && errno != ENOENT)
        return err_sys(e, ERR_INTERNAL, "remove %s", path);
    return 0;
}

bool tap_recorded(const struct options *o, const char *name)
{
    char path[256];

    snprintf(path, sizeof path, "%s/jailer/tap/%s", o->run_dir, name);
    return access(path, F_OK) == 0;
}
