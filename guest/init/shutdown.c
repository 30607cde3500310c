/* Shutdown. Invariant: the root is synced and read-only before the machine is reset. */
#include "guest/init/shutdown.h"

#include <signal.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <unistd.h>

#include "guest/common/loop.h"
#include "guest/init/cgroups.h"
#include "lib/base/log.h"

#define GRACE_MS 2000
#define CHECK_MS 20

static struct timer check;
static int waited_ms;

static void power_off(void)
{
    cgroups_kill();
    sync();
    mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL);
    reboot(RB_AUTOBOOT);
    log_error("the machine could not be reset");
}

static void on_check(void *owner)
{
    waited_ms += CHECK_MS;
    if (!cgroups_populated() || waited_ms >= GRACE_MS)
        power_off();
    else
        timer_set(&check, CHECK_MS);
}

void shutdown_begin(void)
{
    if (check.cb)
        return;
    check.cb = on_check;
    cgroups_signal(SIGTERM);
    timer_set(&check, CHECK_MS);
}
