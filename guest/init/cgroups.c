/* The cgroup tree. Invariant: our own programs are never in a group that is frozen, killed or limited for the
 * user. */
#include "guest/init/cgroups.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"

#define INFRA CGROUP_ROOT "/infra"
#define FREEZE_MS 2000
#define INFRA_MEMORY_MIN "16777216" /* what our programs may keep when the guest is out of memory */

static int put(const char *path, const char *text)
{
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    return write(fd, text, strlen(text)) < 0 ? -1 : 0;
}

static size_t get(const char *path, char *out, size_t cap)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, out, cap - 1);
    out[n > 0 ? n : 0] = 0;
    return n > 0 ? (size_t)n : 0;
}

static void controllers_enable(const char *group)
{
    static const char *const wanted[] = {"+memory", "+pids", "+cpu"};
    char path[128];
    snprintf(path, sizeof(path), "%s/cgroup.subtree_control", group);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++)
        if (put(path, wanted[i]) < 0)
            log_debug("cgroup controller %s: %s", wanted[i], strerror(errno));
}

void cgroups_setup(void)
{
    static const char *const groups[] = {INFRA, CGROUP_SANDBOX, CGROUP_SANDBOX "/user", CGROUP_SANDBOX "/pty",
                                         CGROUP_SANDBOX "/system"};
    controllers_enable(CGROUP_ROOT);
    for (size_t i = 0; i < sizeof(groups) / sizeof(*groups); i++) {
        if (mkdir(groups[i], 0755) < 0 && errno != EEXIST)
            log_warn("making cgroup %s: %s", groups[i], strerror(errno));
        if (i == 1)
            controllers_enable(CGROUP_SANDBOX);
    }
    if (put(INFRA "/cgroup.procs", "0") < 0)
        log_warn("moving into cgroup infra: %s", strerror(errno));
    put(INFRA "/memory.min", INFRA_MEMORY_MIN);
}

int cgroups_open(const char *child)
{
    char path[128];
    snprintf(path, sizeof(path), CGROUP_SANDBOX "/%s", child);
    return open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

int cgroups_freeze(bool freeze, struct err *e)
{
    char text[256];
    const char *want = freeze ? "frozen 1" : "frozen 0";
    if (put(CGROUP_SANDBOX "/cgroup.freeze", freeze ? "1" : "0") < 0)
        return err_sys(e, ERR_INTERNAL, freeze ? "freezing the sandbox" : "thawing the sandbox");
    _cleanup_close_ int fd = open(CGROUP_SANDBOX "/cgroup.events", O_RDONLY | O_CLOEXEC);
    int64_t until = clock_boot_ms() + FREEZE_MS;
    while (fd >= 0) {
        ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
        text[n > 0 ? n : 0] = 0;
        if (strstr(text, want))
            return 0;
        int64_t left = until - clock_boot_ms();
        struct pollfd p = {.fd = fd, .events = POLLPRI};
        if (left <= 0 || poll(&p, 1, (int)left) < 0)
            break;
    }
    return err_set(e, ERR_DEADLINE, "user processes were not %s within %d ms", freeze ? "frozen" : "thawed",
                   FREEZE_MS);
}

void cgroups_kill(void)
{
    if (put(CGROUP_SANDBOX "/cgroup.kill", "1") < 0)
        log_warn("killing the sandbox's processes: %s", strerror(errno));
}

uint32_t cgroups_oom_kills(void)
{
    char text[512];
    if (!get(CGROUP_SANDBOX "/memory.events", text, sizeof(text)))
        return 0;
    const char *p = strstr(text, "oom_kill ");
    return p ? (uint32_t)strtoul(p + 9, NULL, 10) : 0;
}

bool cgroups_populated(void)
{
    char text[256];
    return get(CGROUP_SANDBOX "/cgroup.events", text, sizeof(text)) && strstr(text, "populated 1");
}

void cgroups_signal(int sig)
{
    static const char *const groups[] = {"user", "pty", "system"};
    for (size_t i = 0; i < sizeof(groups) / sizeof(*groups); i++) {
        char path[128], line[32];
        snprintf(path, sizeof(path), CGROUP_SANDBOX "/%s/cgroup.procs", groups[i]);
        _cleanup_fclose_ FILE *f = fopen(path, "re");
        while (f && fgets(line, sizeof(line), f))
            if (atoi(line) > 1)
                kill((pid_t)atoi(line), sig);
    }
}
