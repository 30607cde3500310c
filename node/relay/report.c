/* What the relay tells others: activity per sandbox for cube-node (a Unix socket) and metrics for the
 * operator (loopback HTTP). Both answer one connection with one text and close; neither reads anything that
 * matters. */
#include "node/relay/relay.h"

#include "lib/base/buf.h"
#include "lib/base/cleanup.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

struct reporter {
    struct dp_watch listener;
    struct relay *relay;
};

/* One connection that gets a text. */
struct report {
    struct dp_io io;
    struct relay *relay;
    struct dp_timer timer;
    struct dp_task bury;
    bool http, answered;
};

static void on_report_bury(struct dp_task *t)
{
    free((char *)t - offsetof(struct report, bury));
}

static void report_close(struct report *p)
{
    if (!dp_io_is_open(&p->io))
        return;
    dp_timer_stop(&p->timer);
    dp_io_close(&p->io, false);
    dp_bury(p->relay->loop, &p->bury);
}

static void on_report_timeout(struct dp_timer *t)
{
    report_close((struct report *)((char *)t - offsetof(struct report, timer)));
}

static void on_report_drain(struct dp_io *io)
{
    report_close((struct report *)io);
}

static void activity_text(struct relay *r, struct buf *out)
{
    int64_t now = dp_now_ms(r->loop);
    for (size_t i = 0; i < sizeof r->tickets / sizeof r->tickets[0]; i++)
        for (struct ticket *t = r->tickets[i]; t; t = t->next)
            buf_printf(out, "%s %" PRIu64 " %u %" PRIu64 " %" PRId64 "\n", t->sandbox, t->gen, t->open,
                       t->bytes, t->last_ms ? now - t->last_ms : (int64_t)-1);
}

static void metrics_text(struct relay *r, struct buf *out)
{
    static const char *const reason[8] = {"ok",        "stale",   "unknown", "port_closed",
                                          "not_ready", "bad_mac", "limit",   "other"};
    buf_printf(out, "# TYPE cube_relay_streams gauge\ncube_relay_streams %u\n", r->open);
    buf_printf(out, "# TYPE cube_relay_accepted_total counter\ncube_relay_accepted_total %" PRIu64 "\n",
               r->accepted);
    buf_printf(
        out,
        "# TYPE cube_relay_links gauge\ncube_relay_links %u\n# TYPE cube_relay_handed_over_total counter\n"
        "cube_relay_handed_over_total %" PRIu64 "\n",
        r->link_count, r->handed_over);
    buf_printf(out,
               "# TYPE cube_relay_bytes_total counter\ncube_relay_bytes_total{direction=\"in\"} %" PRIu64
               "\ncube_relay_bytes_total{direction=\"out\"} %" PRIu64 "\n",
               r->bytes_in, r->bytes_out);
    buf_puts(out, "# TYPE cube_relay_refused_total counter\n");
    for (int i = 1; i < 7; i++)
        buf_printf(out, "cube_relay_refused_total{reason=\"%s\"} %" PRIu64 "\n", reason[i], r->refused[i]);
}

static void report_answer(struct report *p, const char *path)
{
    _cleanup_buf_ struct buf body = {0}, out = {0};
    const char *status = "200 OK";
    if (!p->http)
        activity_text(p->relay, &body);
    else if (strncmp(path, "GET /metrics ", 13) == 0)
        metrics_text(p->relay, &body);
    else if (strncmp(path, "GET /healthz ", 13) == 0)
        buf_puts(&body, "ok\n");
    else if (strncmp(path, "GET /readyz ", 12) == 0)
        buf_puts(&body, p->relay->draining ? "draining\n" : "ok\n");
    else
        status = "404 Not Found";
    if (p->http)
        buf_printf(&out,
                   "HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: "
                   "%zu\r\nConnection: close\r\n\r\n",
                   status, body.len);
    buf_append(&out, body.data, body.len);
    p->answered = true;
    if (!dp_io_write(&p->io, out.data, out.len) || !dp_io_blocked(&p->io))
        report_close(p);
}

static void on_report_read(struct dp_io *io)
{
    struct report *p = (struct report *)io;
    char bytes[2048];
    ssize_t n = dp_io_read(io, bytes, sizeof bytes - 1);
    if (n == DP_IO_AGAIN)
        return;
    if (n <= 0 || !p->http || p->answered) {
        report_close(p);
        return;
    }
    bytes[n] = 0;
    report_answer(p, bytes);
}

static void report_start(struct reporter *rep, bool http)
{
    int fd = accept4(rep->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct report *p = fd >= 0 ? calloc(1, sizeof *p) : NULL;
    if (p == NULL) {
        if (fd >= 0)
            close(fd);
        return;
    }
    *p = (struct report){.io = {.on_read = on_report_read, .on_drain = on_report_drain},
                         .relay = rep->relay,
                         .timer = {.fire = on_report_timeout},
                         .bury = {.run = on_report_bury},
                         .http = http};
    if (dp_io_open(&p->io, rep->relay->loop, fd, NULL, false) != 0) {
        report_close(p);
        return;
    }
    dp_timer_start(rep->relay->loop, &p->timer, 5000);
    if (!http)
        report_answer(p, "");
}

static void on_activity(struct dp_watch *w, uint32_t events)
{
    report_start((struct reporter *)w, false);
}

static void on_admin(struct dp_watch *w, uint32_t events)
{
    report_start((struct reporter *)w, true);
}

static int serve(struct relay *r, const char *address, void (*ready)(struct dp_watch *, uint32_t),
                 struct err *e)
{
    int fd = dp_listen(address, false, e);
    if (fd < 0)
        return -1;
    struct reporter *rep = calloc(1, sizeof *rep);
    if (rep == NULL) {
        close(fd);
        return err_set(e, ERR_INTERNAL, "out of memory");
    }
    *rep = (struct reporter){.listener = {.ready = ready, .fd = fd}, .relay = r};
    return dp_watch_add(r->loop, &rep->listener, DP_WATCH_LISTEN);
}

int activity_serve(struct relay *r, struct err *e)
{
    char address[256];
    snprintf(address, sizeof address, "unix:%s/relay/activity.sock", r->cfg.run_dir);
    if (serve(r, address, on_activity, e) != 0)
        return -1;
    chmod(address + 5, 0660);
    return 0;
}

int relay_admin_serve(struct relay *r, struct err *e)
{
    if (r->cfg.admin_listen[0] == 0)
        return 0;
    if (strncmp(r->cfg.admin_listen, "127.", 4) != 0 && strncmp(r->cfg.admin_listen, "[::1]", 5) != 0)
        return err_set(e, ERR_INVALID, "relay.admin_listen %s: only loopback is allowed",
                       r->cfg.admin_listen);
    return serve(r, r->cfg.admin_listen, on_admin, e);
}
