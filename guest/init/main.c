/* cube-init: PID 1 of every sandbox. Mounts, supervises cube-envd and cube-gateway, reaps, serves the
 * infrastructure plane (contracts/internal.md §5, proto/init.proto). */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest/common/loop.h"
#include "guest/init/cgroups.h"
#include "guest/init/control.h"
#include "guest/init/envd_link.h"
#include "guest/init/events.h"
#include "guest/init/exec.h"
#include "guest/init/identity.h"
#include "guest/init/mounts.h"
#include "guest/init/net.h"
#include "guest/init/probe.h"
#include "guest/init/shutdown.h"
#include "guest/init/store.h"
#include "guest/init/tuning.h"
#include "lib/base/log.h"

static struct ev signals = {.fd = -1}, memory_events = {.fd = -1};

static void child_ended(const siginfo_t *info)
{
    static struct notify_msg m;
    if (link_child_ended(info->si_pid) || exec_child_ended(info->si_pid, info->si_code, info->si_status))
        return;
    if (store_exited(info->si_pid, info->si_code, info->si_status, &m))
        link_notify(&m);
}

static void on_signal(void *owner, uint32_t events)
{
    struct signalfd_siginfo s;
    while (read(signals.fd, &s, sizeof(s)) == sizeof(s))
        if (s.ssi_signo != SIGCHLD)
            shutdown_begin();
    for (;;) {
        siginfo_t info = {0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG) < 0 || !info.si_pid)
            return;
        child_ended(&info);
    }
}

static int signals_open(void)
{
    sigset_t set;
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    reboot(RB_DISABLE_CAD);
    signals = (struct ev){.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), .cb = on_signal};
    return signals.fd < 0 ? -1 : ev_watch(&signals, EPOLLIN);
}

static void on_memory_event(void *owner, uint32_t events)
{
    static uint32_t before;
    char drop[4096], text[16];
    while (read(memory_events.fd, drop, sizeof(drop)) > 0)
        continue;
    uint32_t now = cgroups_oom_kills();
    if (now != before) {
        snprintf(text, sizeof(text), "%u", now - before);
        events_emit("oom", "error", "the sandbox ran out of memory: processes were killed", "killed", text);
    }
    before = now;
}

static void memory_watch(void)
{
    memory_events = (struct ev){.fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK), .cb = on_memory_event};
    if (memory_events.fd < 0 ||
        inotify_add_watch(memory_events.fd, CGROUP_SANDBOX "/memory.events", IN_MODIFY) < 0)
        ev_close(&memory_events);
    else
        ev_watch(&memory_events, EPOLLIN);
}

/* Nothing can be done without these: the kernel panics and the VMM reports it, with our last line on the
 * console. */
static int fail(const struct err *e, const char *what)
{
    log_fail(e, "%s", what);
    sync();
    return 1;
}

int main(int argc, char **argv)
{
    struct tools tools;
    struct err e = {0};
    if (argc > 1 && !strcmp(argv[1], "--version")) {
        printf("cube-init %s\n", CUBE_VERSION);
        return 0;
    }
    if (getpid() != 1) {
        fputs("cube-init runs as PID 1 of a sandbox: it mounts file systems and resets the machine at its "
              "end.\n",
              stderr);
        return 2;
    }
    if (argc > 1 && !strcmp(argv[1], "--probe"))
        probe_run();
    log_init("init", LOG_INFO);
    umask(022);
    prctl(PR_SET_DUMPABLE, 0);
    if (mounts_setup(&tools, &e) < 0)
        return fail(&e, "mounting");
    cgroups_setup();
    tuning_apply();
    if (net_loopback_up(&e) < 0)
        log_fail(&e, "network");
    identity_prepare();
    if (loop_open() < 0 || signals_open() < 0)
        return fail(&e, "event loop");
    memory_watch();
    e = (struct err){0};
    if (link_start(&tools, &e) < 0 || control_listen(-1, &e) < 0)
        return fail(&e, "services");
    loop_run();
    return 0;
}
