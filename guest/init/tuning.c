/* Kernel settings, and the OOM policy: our daemons are never the victim, and they hand a bias to what they
 * start. */
#include "guest/init/tuning.h"

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lib/base/cleanup.h"

static const struct {
    const char *path, *value;
} settings[] = {
    {"/proc/self/oom_score_adj", "-1000"},
    {"/proc/sys/kernel/panic_on_oops", "1"},
    /* envd's port and its neighbour lie in the ephemeral range (contracts/e2b.md §10) */
    {"/proc/sys/net/ipv4/ip_local_reserved_ports", "49983,49999"},
    {"/proc/sys/net/ipv4/ping_group_range", "0 2147483647"},
    {"/proc/sys/net/ipv4/ip_unprivileged_port_start", "0"},
    {"/proc/sys/net/core/somaxconn", "4096"},
    {"/proc/sys/fs/protected_hardlinks", "1"},
    {"/proc/sys/fs/protected_symlinks", "1"},
    {"/proc/sys/fs/inotify/max_user_instances", "8192"},
    {"/proc/sys/fs/inotify/max_user_watches", "524288"},
    {"/proc/sys/fs/inotify/max_queued_events", "65536"},
    {"/proc/sys/fs/pipe-user-pages-soft", "0"},
    {"/proc/sys/vm/overcommit_memory", "1"},
};

void tuning_apply(void)
{
    for (size_t i = 0; i < sizeof(settings) / sizeof(*settings); i++) {
        _cleanup_close_ int fd = open(settings[i].path, O_WRONLY | O_CLOEXEC);
        if (fd < 0 || write(fd, settings[i].value, strlen(settings[i].value)) < 0)
            continue;
    }
    struct rlimit files = {.rlim_cur = 65536, .rlim_max = 1048576};
    setrlimit(RLIMIT_NOFILE, &files);
}
