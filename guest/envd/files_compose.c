/* POST /files/compose: several uploaded pieces become one file (contracts/e2b.md §3.5). */
#include <limits.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "guest/envd/conn.h"
#include "guest/envd/files.h"
#include "guest/envd/fs.h"
#include "guest/envd/fs_path.h"
#include "guest/envd/jobs.h"
#include "guest/envd/messages.h"
#include "guest/envd/oplog.h"
#include "guest/envd/state.h"

#define SOURCES_MAX 10000

struct compose {
    struct job job;
    struct conn *c;
    struct user user;
    const char **sources;
    size_t n;
    char destination[PATH_MAX];
    struct arena arena;
    struct buf out;
    struct entry entry;
    struct err err;
    bool failed;
};

static int compose_op(void *arg, struct err *e)
{
    struct compose *p = arg;
    if (fs_compose(p->sources, p->n, p->destination, &p->user, e) < 0)
        return -1;
    return entry_find(p->destination, &p->arena, &p->entry, e);
}

static void on_run(struct job *job)
{
    struct compose *p = (struct compose *)job;
    p->failed = fs_as_user(&p->user, compose_op, p, &p->err) < 0;
    if (p->failed)
        return;
    struct jsonw w = jsonw_start(&p->out);
    jsonw_obj(&w);
    jsonw_kstr(&w, "path", p->entry.path);
    jsonw_kstr(&w, "name", p->entry.name);
    jsonw_kstr(&w, "type", "file");
    jsonw_obj_end(&w);
}

static void on_done(struct job *job)
{
    struct compose *p = (struct compose *)job;
    if (p->failed) {
        files_error(p->c, &p->err);
    } else {
        oplog_file("file_write", p->destination, NULL, p->entry.size, p->user.name);
        conn_reply(p->c, 200, "application/json; charset=utf-8", NULL, p->out.data, p->out.len);
    }
    arena_free(&p->arena);
    buf_free(&p->out);
    free(p);
}

/* Resolves the request's paths into p. Returns false after having answered. */
static bool paths_take(struct compose *p, const struct msg_compose *m)
{
    char path[PATH_MAX];
    struct err e = {0};
    if (!m->sources.n || m->sources.n > SOURCES_MAX || !*m->destination) {
        conn_error(p->c, 400, "source_paths (1 to %d) and destination are required", SOURCES_MAX);
        return false;
    }
    if (files_user(p->c, m->username, &p->user) < 0)
        return false;
    p->sources = arena_alloc(&p->arena, m->sources.n * sizeof(char *));
    bool ok = p->sources && state_path(m->destination, &p->user, p->destination, &e) == 0;
    for (size_t i = 0; ok && i < m->sources.n; i++) {
        ok = state_path(m->sources.v[i], &p->user, path, &e) == 0;
        ok = ok && (p->sources[p->n++] = arena_strndup(&p->arena, path, strlen(path)));
    }
    if (!ok)
        conn_error(p->c, 400, "%s", e.msg);
    return ok;
}

void files_compose(struct conn *c)
{
    struct msg_compose m;
    const struct buf *body = &c->req->whole;
    const char *bad = codec_decode(CODEC_JSON, &msg_compose, body->data, body->len, &m, &c->req->arena);
    struct compose *p = bad ? NULL : calloc(1, sizeof(*p));
    if (!p) {
        conn_error(c, bad ? 400 : 503, "%s", bad ? bad : "out of memory");
        return;
    }
    *p = (struct compose){.job = {.run = on_run, .done = on_done}, .c = c};
    if (paths_take(p, &m)) {
        jobs_submit(&p->job);
        return;
    }
    arena_free(&p->arena);
    free(p);
}
