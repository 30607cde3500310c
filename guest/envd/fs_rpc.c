/* The filesystem service: each call is a job on a worker thread. Invariant: while the job runs, only the
 * worker touches the request's arena; the connection waits (a unary call watches nothing), so it cannot die
 * underneath. */
#include "guest/envd/fs_rpc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "guest/envd/fs.h"
#include "guest/envd/fs_path.h"
#include "guest/envd/jobs.h"
#include "guest/envd/messages.h"
#include "guest/envd/oplog.h"
#include "guest/envd/state.h"

enum fs_op { OP_STAT, OP_LIST, OP_MKDIR, OP_MOVE, OP_REMOVE };

struct fs_call {
    struct job job;
    struct rpc *rpc;
    enum fs_op op;
    struct user user;
    char path[PATH_MAX], to[PATH_MAX];
    uint32_t depth;
    struct arena arena;
    struct entry entry;
    struct entries entries;
    struct buf out;
    struct err err;
    bool failed;
};

enum rpc_code fs_rpc_code(const struct err *e)
{
    if (e->sys)
        return rpc_code_of(e->sys);
    switch (e->code) {
    case ERR_INVALID:
        return RPC_INVALID_ARGUMENT;
    case ERR_NOT_FOUND:
        return RPC_NOT_FOUND;
    case ERR_TOO_LARGE:
        return RPC_RESOURCE_EXHAUSTED;
    default:
        return RPC_INTERNAL;
    }
}

static int operate(void *arg, struct err *e)
{
    struct fs_call *c = arg;
    switch (c->op) {
    case OP_STAT:
        break;
    case OP_LIST:
        c->entries = (struct entries){0};
        return fs_list(c->path, c->depth, &c->arena, &c->entries, e);
    case OP_MKDIR:
        if (fs_mkdir(c->path, &c->user, e) < 0)
            return -1;
        break;
    case OP_MOVE:
        if (fs_move(c->path, c->to, &c->user, e) < 0)
            return -1;
        break;
    case OP_REMOVE:
        return fs_remove(c->path, e);
    }
    return entry_find(c->op == OP_MOVE ? c->to : c->path, &c->arena, &c->entry, e);
}

static void encode(struct fs_call *c)
{
    struct msgw w;
    struct name_cache users = {.n = 0}, groups = {.n = 0};
    msgw_start(&w, c->rpc->codec, &c->out);
    if (c->op == OP_LIST) {
        msgw_list(&w, "entries");
        for (size_t i = 0; i < c->entries.n; i++) {
            msgw_item(&w, 1);
            entry_write(&w, &c->entries.v[i], &users, &groups);
            msgw_close(&w);
        }
        msgw_list_end(&w);
    } else if (c->op != OP_REMOVE) {
        msgw_open(&w, "entry", 1);
        entry_write(&w, &c->entry, &users, &groups);
        msgw_close(&w);
    }
    msgw_end(&w);
}

static void on_run(struct job *job)
{
    struct fs_call *c = (struct fs_call *)job;
    c->failed = fs_as_user(&c->user, operate, c, &c->err) < 0;
    if (!c->failed)
        encode(c);
}

static void on_done(struct job *job)
{
    struct fs_call *c = (struct fs_call *)job;
    if (c->failed) {
        rpc_fail(c->rpc, fs_rpc_code(&c->err), "%s", c->err.msg);
    } else {
        if (c->op == OP_MOVE)
            oplog_file("file_move", c->path, c->to, -1, c->user.name);
        else if (c->op == OP_REMOVE)
            oplog_file("file_remove", c->path, NULL, -1, c->user.name);
        rpc_reply_buf(c->rpc, &c->out);
    }
    arena_free(&c->arena);
    buf_free(&c->out);
    free(c);
}

static void submit(struct rpc *r, enum fs_op op, const char *path, const char *to, uint32_t depth)
{
    struct fs_call *c = calloc(1, sizeof(*c));
    if (!c) {
        rpc_fail(r, RPC_RESOURCE_EXHAUSTED, "out of memory");
        return;
    }
    struct err e = {0};
    *c = (struct fs_call){.job = {.run = on_run, .done = on_done}, .rpc = r, .op = op, .depth = depth};
    if (rpc_user(r, &c->user) == 0) {
        if (state_path(path, &c->user, c->path, &e) == 0 &&
            (!to || state_path(to, &c->user, c->to, &e) == 0)) {
            jobs_submit(&c->job);
            return;
        }
        rpc_fail(r, RPC_INVALID_ARGUMENT, "%s", e.msg);
    }
    free(c);
}

void fs_rpc_stat(struct rpc *r, void *request)
{
    submit(r, OP_STAT, ((struct msg_path *)request)->path, NULL, 0);
}

void fs_rpc_list(struct rpc *r, void *request)
{
    struct msg_list_dir *m = request;
    submit(r, OP_LIST, m->path, NULL, m->depth);
}

void fs_rpc_mkdir(struct rpc *r, void *request)
{
    submit(r, OP_MKDIR, ((struct msg_path *)request)->path, NULL, 0);
}

void fs_rpc_move(struct rpc *r, void *request)
{
    struct msg_move *m = request;
    submit(r, OP_MOVE, m->source, m->destination, 0);
}

void fs_rpc_remove(struct rpc *r, void *request)
{
    submit(r, OP_REMOVE, ((struct msg_path *)request)->path, NULL, 0);
}
