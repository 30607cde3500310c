/* Owns the table of daemons and the drop of privileges before exec; invariant: no daemon but the jailer runs
 * as root. */
#include "cli/daemons.h"
#include "lib/base/log.h"

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

const struct daemon_spec daemon_table[] = {
    {.name = "redis", .uid = UID_REDIS},
    {.name = "cube-master", .binary = "master/cube-master", .uid = UID_MASTER, .admin_port = 110},
    {.name = "cube-lifecycle", .binary = "lifecycle/cube-lifecycle", .uid = UID_LIFECYCLE, .admin_port = 130},
    {.name = "cube-api", .binary = "api/cube-api", .uid = UID_API, .admin_port = 100},
    {.name = "cube-jailer", .binary = "node/jailer/cube-jailer", .uid = 0, .admin_port = 0},
    {.name = "cube-node",
     .binary = "node/daemon/cube-node",
     .uid = UID_NODE,
     .extra_groups = {UID_RELAY, UID_DNS},
     .net_caps = true,
     .admin_port = 140},
    {.name = "cube-relay", .binary = "node/relay/cube-relay", .uid = UID_RELAY, .admin_port = 141},
    {.name = "cube-dns", .binary = "node/dns/cube-dns", .uid = UID_DNS, .admin_port = 144},
    {.name = "cube-proxy", .binary = "proxy/cube-proxy", .uid = UID_PROXY, .admin_port = 120},
    {0},
};

const char *daemon_build_dir(void)
{
    static char dir[PATH_MAX];
    if (dir[0])
        return dir;
    const char *env = getenv("CUBE_BIN_DIR");
    if (env && *env) {
        snprintf(dir, sizeof dir, "%s", env);
        return dir;
    }
    ssize_t n = readlink("/proc/self/exe", dir, sizeof dir - 1);
    if (n < 0)
        n = 0;
    dir[n] = '\0';
    for (int up = 0; up < 2; up++) { /* <build>/cli/cube */
        char *slash = strrchr(dir, '/');
        if (slash)
            *slash = '\0';
    }
    return dir;
}

static void keep_net_caps(void)
{
    static const int caps[] = {CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON};
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{0}};
    for (size_t i = 0; i < sizeof caps / sizeof *caps; i++) {
        unsigned bit = 1u << (caps[i] % 32);
        data[caps[i] / 32].permitted |= bit;
        data[caps[i] / 32].effective |= bit;
        data[caps[i] / 32].inheritable |= bit;
    }
    if (syscall(SYS_capset, &head, data) < 0) {
        log_error("keeping network capabilities: %s", strerror(errno));
        _exit(126);
    }
    for (size_t i = 0; i < sizeof caps / sizeof *caps; i++)
        if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, caps[i], 0, 0) < 0) {
            log_error("raising capability %d: %s", caps[i], strerror(errno));
            _exit(126);
        }
}

void daemon_drop_privileges(const struct daemon_spec *d)
{
    if (d->uid == 0)
        return;
    size_t groups = d->extra_groups[0] == 0 ? 0 : d->extra_groups[1] == 0 ? 1 : 2;
    if (prctl(PR_SET_KEEPCAPS, d->net_caps) < 0 || setgroups(groups, d->extra_groups) < 0 ||
        setresgid(d->uid, d->uid, d->uid) < 0 || setresuid(d->uid, d->uid, d->uid) < 0) {
        log_error("becoming user %u for %s: %s", d->uid, d->name, strerror(errno));
        _exit(126);
    }
    if (d->net_caps)
        keep_net_caps();
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}
