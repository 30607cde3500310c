/* The VMs of this node. Invariant: a VM's record is on disk before its process can run, and is removed only
 * after its process, group and socket are gone; so a jailer that is started again finds everything an earlier
 * one made. */
#include "node/jailer/jailer.h"

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/seqpacket.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>

struct vm *vms;

bool name_ok(const char *s, size_t max)
{
    size_t n = strlen(s);

    if (n == 0 || n > max || s[0] == '-')
        return false;
    return strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == n;
}

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

static struct vm *vm_add(const char *name)
{
    struct vm *v = calloc(1, sizeof *v);

    if (!v)
        return NULL;
    *v = (struct vm){.pidfd = -1, .log_fd = -1, .kill_client = -1, .status = -1, .next = vms};
    snprintf(v->name, sizeof v->name, "%s", name);
    vms = v;
    return v;
}

static void record_path(const struct options *o, const char *name, const char *file, char out[256])
{
    snprintf(out, 256, "%.60s/jailer/vm/%.40s%.20s", o->run_dir, name, file);
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

static int record_write(const struct options *o, const struct vm *v, struct err *e)
{
    char path[256], text[128];

    record_path(o, v->name, "/record", path);
    snprintf(text, sizeof text, "1 %d %" PRIu64 " %u\n", v->pid, v->start_time, v->slot);
    return textfile_replace(path, text, e);
}

static int start(const struct options *o, struct vm *v, const struct limits *l, unsigned memory_mib,
                 unsigned vcpus, struct err *e)
{
    _cleanup_close_ int log_r = -1, log_w = -1, go = -1;
    char path[256], sock[108];
    int p[2];

    /* Its directory first: by it another jailer finds the rest. */
    record_path(o, v->name, "", path);
    if (dir_make(path, 0755, 0, 0, e) < 0)
        return -1;
    vm_socket_path(o, v->name, sock);
    _cleanup_close_ int listener = seqpacket_listen(sock, (uid_t)o->node_uid, (gid_t)o->node_gid, e);
    if (listener < 0 || cgroup_make(v->name, l, e) < 0)
        return -1;
    if (pipe2(p, O_CLOEXEC | O_NONBLOCK) < 0)
        return err_sys(e, ERR_CAPACITY, "pipe");
    log_r = p[0];
    log_w = p[1];
    struct jail j = {o, v->name, listener, log_w, v->slot, memory_mib, vcpus, *l};
    v->pid = jail_start(&j, &v->pidfd, &go, e);
    if (v->pid < 0)
        return -1;
    v->start_time = proc_start_time(v->pid);
    v->log_fd = fd_steal(&log_r);
    if (record_write(o, v, e) < 0)
        return -1;
    return write(go, "g", 1) == 1 ? 0 : err_sys(e, ERR_INTERNAL, "start %s", v->name);
}

struct vm *vm_spawn(const struct options *o, const char *name, const struct limits *l, unsigned memory_mib,
                    unsigned vcpus, struct err *e)
{
    int slot = free_slot();

    if (vm_find(name)) {
        err_set(e, ERR_CONFLICT, "a VM named %s exists", name);
        return NULL;
    }
    struct vm *v = slot < 0 ? NULL : vm_add(name);
    if (!v) {
        err_set(e, ERR_CAPACITY, "no room for another VM process");
        return NULL;
    }
    v->slot = (unsigned)slot;
    if (start(o, v, l, memory_mib, vcpus, e) == 0)
        return v;
    if (v->pid > 0) { /* its pipe is closed, so it ends by itself */
        waitid(P_PID, (id_t)v->pid, NULL, WEXITED);
        close(v->pidfd);
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
    bool own_limit = false, oom = cgroup_oom(v->name, &own_limit);
    v->oom = oom && own_limit;
    v->host_oom = oom && !own_limit;
    record_path(o, v->name, "/exit.json", path);
    snprintf(text, sizeof text,
             "{\"status\":%d,\"oom\":%s,\"host_oom\":%s,\"pid\":%d,\"start_time\":%" PRIu64
             ",\"ended_ms\":%" PRId64 "}\n",
             status, v->oom ? "true" : "false", v->host_oom ? "true" : "false", v->pid, v->start_time,
             clock_realtime_ms());
    if (textfile_replace(path, text, &e) < 0)
        log_warn("%s: %s", v->name, e.msg);
}

static bool record_remove(const struct options *o, const char *name)
{
    static const char *const files[] = {"/exit.json", "/exit.json.new", "/record", "/record.new", ""};
    char path[256];

    for (unsigned i = 0; i < 5; i++) {
        record_path(o, name, files[i], path);
        if (remove(path) < 0 && errno != ENOENT)
            return false;
    }
    return true;
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
    struct vm *v = vm_add(name);

    if (!v)
        return;
    record_path(o, name, "/record", path);
    if (textfile_read(path, text, sizeof text) < 0 ||
        sscanf(text, "1 %d %" SCNu64 " %u", &v->pid, &v->start_time, &v->slot) != 3 || v->slot >= VMS_MAX)
        v->pid = 0, v->slot = 0;
    if (v->pid > 0)
        v->pidfd = (int)syscall(SYS_pidfd_open, v->pid, 0);
    /* The number may have gone to somebody else; once the pidfd is open, that can no longer happen. */
    if (v->pidfd >= 0 && proc_start_time(v->pid) == v->start_time)
        return;
    record_path(o, name, "/exit.json", path);
    if (textfile_read(path, text, sizeof text) <= 0 || sscanf(text, "{\"status\":%d", &v->status) != 1)
        vm_mark_ended(o, v, -1);
    else if (v->pidfd >= 0)
        close(fd_steal(&v->pidfd));
    v->oom |= v->pidfd < 0 && strstr(text, "\"oom\":true");
    v->host_oom |= v->pidfd < 0 && strstr(text, "\"host_oom\":true");
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
    if (made) { /* only its name says something */
        _cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        return fd < 0 ? err_sys(e, ERR_INTERNAL, "make %s", path) : 0;
    }
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
