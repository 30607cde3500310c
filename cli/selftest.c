/* Owns the host's half of the self-test. Invariant: leaves no process and no file behind. */
#include "cli/selftest.h"

#include "cli/daemons.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "node/vmmctl/client.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SELFTEST_MIB 128
#define SELFTEST_LIMIT_MS 90000 /* a guard against a hang: half a second where nothing else runs */
#define CONSOLE_BYTES 16384

static int boot(struct vmm_client *c, const char *kernel, const char *tools, int console, struct err *e)
{
    struct vmm_disk_spec disk = {tools, NULL, 0};
    struct vmm_wiring w;
    Cube__Vmm__V1__Boot b = CUBE__VMM__V1__BOOT__INIT;
    Cube__Vmm__V1__Request q = CUBE__VMM__V1__REQUEST__INIT;
    Cube__Vmm__V1__Reply *reply = NULL;

    if (vmm_wiring_open(&w, &disk, 1, -1, console, NULL, NULL, SELFTEST_MIB, 1, e) < 0)
        return -1;
    int fd = open(kernel, O_RDONLY | O_CLOEXEC);
    int rc = fd < 0 ? err_sys(e, ERR_NOT_FOUND, "opening %s", kernel) : 0;
    if (rc == 0) {
        b.kernel_fd = vmm_wiring_add(&w, fd);
        b.cmdline = (char *)"root=/dev/vda rootfstype=erofs ro init=/cube-init -- --probe";
        b.wiring = &w.msg;
        q.op_case = CUBE__VMM__V1__REQUEST__OP_BOOT;
        q.boot = &b;
        rc = vmm_call(c, &q, w.fds, w.nfds, &reply, e);
        vmm_reply_free(reply);
    }
    vmm_wiring_close(&w);
    return rc;
}

/* What the probe said, or why there is nothing of it. */
static int judge(int console, bool ended, struct err *e)
{
    static char text[CONSOLE_BYTES];
    ssize_t n = pread(console, text, sizeof text - 1, 0);

    text[n > 0 ? n : 0] = '\0';
    if (ended && strstr(text, "cube-probe: ok"))
        return 0;
    const char *said = strstr(text, "cube-probe: FAILED: ");
    if (said)
        err_set(e, ERR_UNSUPPORTED, "%.*s", (int)strcspn(said + 20, "\r\n"), said + 20);
    else
        err_set(e, ERR_UNSUPPORTED, "the guest kernel %s; its last words: %s",
                ended ? "ended before the probe did" : "did not come to the probe in time",
                n > 120 ? text + n - 120 : text);
    return err_remedy(e, "the interface of this host's KVM may have changed: docs/kernel.md, \"Self-test\"");
}

static int run(struct vmm_client *c, const char *kernel, const char *tools, struct err *e)
{
    _cleanup_close_ int console = memfd_create("console", MFD_CLOEXEC);

    if (console < 0)
        return err_sys(e, ERR_INTERNAL, "making a console");
    if (boot(c, kernel, tools, console, e) < 0)
        return -1;
    return judge(console, vmm_wait_exit(c, SELFTEST_LIMIT_MS) == 1, e);
}

long selftest_run(const char *kernel, const char *tools, struct err *e)
{
    char program[512];
    struct vmm_client c;
    int64_t began = clock_mono_us();

    snprintf(program, sizeof program, "%s/node/vmm/cube-vmm", daemon_build_dir());
    struct vmm_spawn s = {program, SELFTEST_MIB, 1, true};
    /* Its log is for a node's journal; what matters here comes as an error. */
    _cleanup_close_ int terminal = fcntl(2, F_DUPFD_CLOEXEC, 3);
    _cleanup_close_ int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (terminal >= 0 && nowhere >= 0)
        dup2(nowhere, 2);
    int spawned = vmm_spawn(&c, &s, e);
    if (terminal >= 0)
        dup2(terminal, 2);
    if (spawned < 0)
        return -1;
    int rc = run(&c, kernel, tools, e);
    vmm_close(&c);
    return rc < 0 ? -1 : (long)((clock_mono_us() - began) / 1000);
}
