/* The requests of the control plane: one function each, one table. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "guest/common/sysinfo.h"
#include "guest/envd/version.h"
#include "guest/init/cgroups.h"
#include "guest/init/control.h"
#include "guest/init/envd_link.h"
#include "guest/init/events.h"
#include "guest/init/exec.h"
#include "guest/init/identity.h"
#include "guest/init/shutdown.h"
#include "guest/init/store.h"
#include "lib/base/clock.h"

#define PROTOCOL_VERSION 1
#define HEALTH_MS 1000

typedef Cube__Init__V1__Reply reply_t;
typedef Cube__Init__V1__Request request_t;

static void reply_empty(struct ctl *c, uint64_t id)
{
    reply_t r = CUBE__INIT__V1__REPLY__INIT;
    r.id = id;
    control_reply(c, &r);
}

static void on_hello(struct ctl *c, const request_t *req)
{
    char boot_id[64] = "";
    reply_t r = CUBE__INIT__V1__REPLY__INIT;
    Cube__Init__V1__HelloReply h = CUBE__INIT__V1__HELLO_REPLY__INIT;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, boot_id, sizeof(boot_id) - 1);
    if (fd >= 0)
        close(fd);
    boot_id[n > 0 ? n : 0] = 0;
    boot_id[strcspn(boot_id, "\n")] = 0;
    h.version = PROTOCOL_VERSION;
    h.envd_version = (char *)ENVD_VERSION;
    h.boot_id = boot_id;
    h.identity_set = identity_is_set();
    r.id = req->id;
    r.result_case = CUBE__INIT__V1__REPLY__RESULT_HELLO;
    r.hello = &h;
    control_reply(c, &r);
}

static void on_identity(struct ctl *c, const request_t *req)
{
    struct err e = {0};
    reply_t r = CUBE__INIT__V1__REPLY__INIT;
    Cube__Init__V1__IdentitySet out = CUBE__INIT__V1__IDENTITY_SET__INIT;
    r.id = req->id;
    if (identity_set(req->set_identity, &out, &e) < 0) {
        r.error_code = (char *)err_code_name(e.code);
        r.error = e.msg;
    }
    r.result_case = CUBE__INIT__V1__REPLY__RESULT_IDENTITY_SET;
    r.identity_set = &out;
    control_reply(c, &r);
}

static void on_freeze(struct ctl *c, const request_t *req)
{
    struct err e = {0};
    if (link_freeze(true, &e) < 0 || cgroups_freeze(true, &e) < 0) {
        control_error(c, req->id, &e);
        return;
    }
    if (req->freeze->sync)
        sync();
    reply_empty(c, req->id);
}

static void on_thaw(struct ctl *c, const request_t *req)
{
    struct err e = {0};
    if (link_freeze(false, &e) < 0 || cgroups_freeze(false, &e) < 0)
        control_error(c, req->id, &e);
    else
        reply_empty(c, req->id);
}

static void on_health(struct ctl *c, const request_t *req)
{
    struct err e = {0};
    reply_t r = CUBE__INIT__V1__REPLY__INIT;
    Cube__Init__V1__HealthReply h = CUBE__INIT__V1__HEALTH_REPLY__INIT;
    h.envd_ok = link_request("GET", "/health", NULL, 0, HEALTH_MS, &e) == 204;
    h.processes = store_count();
    h.uptime_ms = (uint64_t)clock_boot_ms();
    h.oom_kills = cgroups_oom_kills();
    h.envd_restarts = link_restarts();
    h.exec_sessions = exec_count();
    r.id = req->id;
    r.result_case = CUBE__INIT__V1__REPLY__RESULT_HEALTH;
    r.health = &h;
    control_reply(c, &r);
}

static void on_metrics(struct ctl *c, const request_t *req)
{
    struct sysinfo_figures f;
    reply_t r = CUBE__INIT__V1__REPLY__INIT;
    Cube__Init__V1__MetricsReply m = CUBE__INIT__V1__METRICS_REPLY__INIT;
    sysinfo_read("/", &f);
    m.cpu_count = f.cpus;
    m.cpu_busy_us = f.cpu_busy_us;
    m.mem_total = f.mem_total;
    m.mem_used = f.mem_used;
    m.mem_cache = f.mem_cache;
    m.disk_total = f.disk_total;
    m.disk_used = f.disk_used;
    r.id = req->id;
    r.result_case = CUBE__INIT__V1__REPLY__RESULT_METRICS;
    r.metrics = &m;
    control_reply(c, &r);
}

static void on_subscribe(struct ctl *c, const request_t *req)
{
    reply_empty(c, req->id);
    events_subscribe(c);
}

static void on_exec(struct ctl *c, const request_t *req)
{
    exec_start(c, req->id, req->exec);
}

static void on_exec_input(struct ctl *c, const request_t *req)
{
    struct err e = {0};
    if (exec_input(c, req->exec_input, &e) < 0)
        control_error(c, req->id, &e);
    else
        reply_empty(c, req->id);
}

static void on_shutdown(struct ctl *c, const request_t *req)
{
    reply_empty(c, req->id);
    shutdown_begin();
}

/* Programs in the sandbox may read how long they have. */
static void on_deadline(struct ctl *c, const request_t *req)
{
    struct err e = {0};
    char text[32];
    int64_t at = (clock_realtime_ms() + req->set_deadline_hint->remaining_ms) / 1000;
    int n = snprintf(text, sizeof(text), "%lld\n", (long long)at);
    int fd = open("/run/cube/deadline", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    bool ok = fd >= 0 && write(fd, text, (size_t)n) == n;
    if (!ok)
        err_sys(&e, ERR_INTERNAL, "writing /run/cube/deadline");
    if (fd >= 0)
        close(fd);
    if (ok)
        reply_empty(c, req->id);
    else
        control_error(c, req->id, &e);
}

static const struct {
    Cube__Init__V1__Request__OpCase op;
    void (*handle)(struct ctl *c, const request_t *req);
} handlers[] = {
    {CUBE__INIT__V1__REQUEST__OP_HELLO, on_hello},
    {CUBE__INIT__V1__REQUEST__OP_SET_IDENTITY, on_identity},
    {CUBE__INIT__V1__REQUEST__OP_FREEZE, on_freeze},
    {CUBE__INIT__V1__REQUEST__OP_THAW, on_thaw},
    {CUBE__INIT__V1__REQUEST__OP_HEALTH, on_health},
    {CUBE__INIT__V1__REQUEST__OP_METRICS, on_metrics},
    {CUBE__INIT__V1__REQUEST__OP_SUBSCRIBE, on_subscribe},
    {CUBE__INIT__V1__REQUEST__OP_EXEC, on_exec},
    {CUBE__INIT__V1__REQUEST__OP_SHUTDOWN, on_shutdown},
    {CUBE__INIT__V1__REQUEST__OP_EXEC_INPUT, on_exec_input},
    {CUBE__INIT__V1__REQUEST__OP_SET_DEADLINE_HINT, on_deadline},
};

void request_handle(struct ctl *c, const request_t *req)
{
    struct err e = {0};
    for (size_t i = 0; i < sizeof(handlers) / sizeof(*handlers); i++)
        if (handlers[i].op == req->op_case) {
            handlers[i].handle(c, req);
            return;
        }
    err_set(&e, ERR_UNSUPPORTED, "the guest does not know this request");
    control_error(c, req->id, &e);
}
