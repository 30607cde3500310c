/* Owns the control socket: one command a line, one line of answer. For tests only; a Unix socket of mode
 * 0600. */
#include "tests/control/faultnode/sim.h"
#include "lib/base/buf.h"
#include "lib/base/clock.h"
#include "lib/base/jsonw.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static struct sim_node *node_named(struct sim *s, const char *id)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->nodes[i].id, id) == 0)
            return &s->nodes[i];
    return NULL;
}

static void write_list(struct sim_node *n, struct buf *out)
{
    static const char *const names[] = {"none",     "creating", "running", "pausing", "paused",
                                        "resuming", "killing",  "killed",  "failed",  "lost"};
    struct jsonw w = jsonw_start(out);
    jsonw_arr(&w);
    for (size_t b = 0; b < SIM_BUCKETS; b++)
        for (struct sim_sandbox *s = n->buckets[b]; s; s = s->next) {
            jsonw_obj(&w);
            jsonw_kstr(&w, "id", s->id);
            jsonw_kint(&w, "gen", (int64_t)s->gen);
            jsonw_kstr(&w, "state", names[s->state]);
            jsonw_kint(&w, "end_ms", s->end_ms);
            jsonw_kstr(&w, "template", s->spec ? s->spec->template_id : "");
            jsonw_obj_end(&w);
        }
    jsonw_arr_end(&w);
}

static void write_stats(struct sim_node *n, struct buf *out)
{
    struct jsonw w = jsonw_start(out);
    jsonw_obj(&w);
    jsonw_kint(&w, "starts", (int64_t)n->starts);
    jsonw_kint(&w, "restores", (int64_t)n->restores);
    jsonw_kint(&w, "pauses", (int64_t)n->pauses);
    jsonw_kint(&w, "kills", (int64_t)n->kills);
    jsonw_kint(&w, "lists", (int64_t)n->lists);
    jsonw_kint(&w, "count", (int64_t)n->count);
    jsonw_kbool(&w, "registered", n->registered);
    jsonw_key(&w, "dropped");
    jsonw_arr(&w);
    for (size_t i = 0; i < n->drops && i < 16; i++)
        jsonw_str(&w, n->dropped[i]);
    jsonw_arr_end(&w);
    jsonw_obj_end(&w);
}

static bool node_order(struct sim_node *n, int argc, char **a)
{
    const char *verb = a[1];
    int64_t number = argc > 2 ? strtoll(a[2], NULL, 10) : 0;
    enum err_code code = argc > 2 && strcmp(a[2], "-") != 0 ? err_code_parse(a[2]) : ERR_OK;
    if (strcmp(verb, "refuse_start") == 0)
        n->refuse_start = code;
    else if (strcmp(verb, "refuse_pause") == 0)
        n->refuse_pause = code;
    else if (strcmp(verb, "refuse_restore") == 0)
        n->refuse_restore = code;
    else if (strcmp(verb, "start_ms") == 0)
        n->start_ms = number;
    else if (strcmp(verb, "pause_ms") == 0)
        n->pause_ms = number;
    else if (strcmp(verb, "snapshot_ms") == 0)
        n->snapshot_ms = number;
    else if (strcmp(verb, "kill_ms") == 0)
        n->kill_ms = number;
    else if (strcmp(verb, "list_ms") == 0)
        n->list_ms = number;
    else if (strcmp(verb, "older") == 0)
        n->older = (uint64_t)number;
    else if (strcmp(verb, "silent") == 0)
        n->silent = number;
    else if (strcmp(verb, "pressure") == 0)
        n->pressure = number;
    else if (strcmp(verb, "unfit") == 0)
        n->unfit = number;
    else if (strcmp(verb, "memory") == 0)
        n->memory_mib = (uint64_t)number;
    else if (strcmp(verb, "full") == 0)
        n->full_due = true;
    else
        return false;
    return true;
}

static bool sandbox_order(struct sim_node *n, int argc, char **a)
{
    struct sim_sandbox *s = argc > 2 ? sim_find(n, a[2]) : NULL;
    const char *verb = a[1];
    if (!s)
        return false;
    if (strcmp(verb, "forget") == 0) {
        sim_remove(n, s);
        return true;
    }
    s->changed = true;
    if (strcmp(verb, "die") == 0 || strcmp(verb, "killed") == 0) {
        s->state =
            strcmp(verb, "die") == 0 ? CUBE__V1__SANDBOX_STATE__FAILED : CUBE__V1__SANDBOX_STATE__KILLED;
        snprintf(s->reason, sizeof s->reason, "%s", argc > 3 ? a[3] : "the VM ended");
    } else if (strcmp(verb, "paused") == 0) {
        s->state = CUBE__V1__SANDBOX_STATE__PAUSED;
        snprintf(s->reason, sizeof s->reason, "%s", argc > 3 ? a[3] : "paused by the node");
    } else if (strcmp(verb, "active") == 0 && argc > 3) {
        s->last_activity_ms = clock_realtime_ms();
        snprintf(s->awake, sizeof s->awake, "%s", strcmp(a[3], "-") == 0 ? "" : a[3]);
    } else if (strcmp(verb, "gen") == 0 && argc > 3) {
        s->gen = strtoull(a[3], NULL, 10);
    } else if (strcmp(verb, "rss") == 0 && argc > 3) {
        s->rss_mib = strtoull(a[3], NULL, 10);
    } else if (strcmp(verb, "oom") == 0 && argc > 3) {
        s->oom_kills = (uint32_t)strtoul(a[3], NULL, 10);
    } else if (strcmp(verb, "unhealthy") == 0) {
        s->healthy = false;
    } else {
        return false;
    }
    return true;
}

static void command(struct sim *s, char *line, struct buf *out)
{
    char *a[5], *save = NULL;
    int argc = 0;
    for (char *w = strtok_r(line, " ", &save); w && argc < 5; w = strtok_r(NULL, " ", &save))
        a[argc++] = w;
    struct sim_node *n = argc > 1 ? node_named(s, a[0]) : NULL;
    if (!n)
        buf_puts(out, "\"no such node\"");
    else if (strcmp(a[1], "list") == 0)
        write_list(n, out);
    else if (strcmp(a[1], "stats") == 0)
        write_stats(n, out);
    else
        buf_puts(out, node_order(n, argc, a) || sandbox_order(n, argc, a) ? "\"ok\"" : "\"not understood\"");
    buf_putc(out, '\n');
}

struct session {
    struct sim *s;
    int fd;
};

static void session_fiber(void *arg)
{
    struct session *x = arg;
    char in[1024];
    size_t have = 0;
    for (;;) {
        fiber_wait_readable(x->fd, -1);
        ssize_t n = read(x->fd, in + have, sizeof in - 1 - have);
        if (n <= 0)
            break;
        have += (size_t)n;
        in[have] = 0;
        char *nl;
        while ((nl = memchr(in, '\n', have))) {
            struct buf out = {0};
            *nl = 0;
            command(x->s, in, &out);
            if (write(x->fd, out.data, out.len) < 0)
                have = 0;
            buf_free(&out);
            size_t used = (size_t)(nl + 1 - in);
            have = have > used ? have - used : 0;
            memmove(in, nl + 1, have);
        }
        if (have == sizeof in - 1)
            break;
    }
    close(x->fd);
    free(x);
}

struct listener {
    struct sim *s;
    int fd;
};

static void on_connection(void *data)
{
    struct listener *l = data;
    int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
    struct session *x = fd >= 0 ? calloc(1, sizeof *x) : NULL;
    if (!x)
        return;
    x->s = l->s;
    x->fd = fd;
    fiber_spawn(session_fiber, x);
}

int sim_control_start(struct sim *s, const char *path, struct err *e)
{
    static struct listener l;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (snprintf(a.sun_path, sizeof a.sun_path, "%s.new", path) >= (int)sizeof a.sun_path)
        return err_set(e, ERR_INVALID, "the control socket's path is too long");
    unlink(a.sun_path);
    l.s = s;
    l.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    mode_t old = umask(0177);
    int rc = l.fd < 0 ? -1 : bind(l.fd, (struct sockaddr *)&a, sizeof a);
    umask(old);
    /* Whoever sees the socket may connect at once: between bind and listen it would be refused. */
    if (rc < 0 || listen(l.fd, 16) < 0 || rename(a.sun_path, path) < 0 ||
        !loop_watch_read(s->loop, l.fd, on_connection, &l))
        return err_sys(e, ERR_INTERNAL, "listening on %s", path);
    return 0;
}
