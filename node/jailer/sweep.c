/* `--sweep`: ends every VM that a jailer of this run directory started and removes all it ever made. */
#include "node/jailer/jailer.h"

#include "lib/base/cleanup.h"
#include "lib/base/log.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

#define END_WAIT_MS 5000

static int end_and_forget(const struct options *o, struct vm *v, struct err *e)
{
    if (v->pidfd >= 0) {
        struct pollfd p = {v->pidfd, POLLIN, 0};
        syscall(SYS_pidfd_send_signal, v->pidfd, SIGKILL, NULL, 0);
        if (poll(&p, 1, END_WAIT_MS) != 1)
            return err_set(e, ERR_INTERNAL, "process %d of %s does not end", v->pid, v->name);
        vm_mark_ended(o, v, -1);
    }
    vm_forget(o, v);
    return 0;
}

static int taps_drop(const struct options *o, struct err *e)
{
    char path[256];

    snprintf(path, sizeof path, "%s/jailer/tap", o->run_dir);
    _cleanup_closedir_ DIR *d = opendir(path);
    for (struct dirent *x; d && (x = readdir(d));)
        if (name_ok(x->d_name, TAP_NAME_MAX) &&
            (tap_drop(x->d_name, e) < 0 || tap_record(o, x->d_name, false, e) < 0))
            return -1;
    return 0;
}

int sweep(const struct options *o, struct err *e)
{
    static const char *const dirs[] = {"jailer/vm", "jailer/tap", "jailer/empty", "jailer", "vmm"};

    if (vm_adopt_all(o, e) < 0)
        return -1;
    while (vms)
        if (end_and_forget(o, vms, e) < 0)
            return -1;
    if (taps_drop(o, e) < 0)
        return -1;
    cgroup_teardown();
    host_bpf_unmount(o);
    unlink(o->socket);
    for (unsigned i = 0; i < sizeof dirs / sizeof dirs[0]; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", o->run_dir, dirs[i]);
        if (rmdir(path) < 0 && errno != ENOENT)
            log_warn("%s stays: %s", path, strerror(errno));
    }
    return 0;
}
