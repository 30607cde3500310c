/* Owns the passage between fibers and the asynchronous libraries: a fiber asks Redis or a peer and goes on
 * with the answer. Invariant: a reply is read inside the library's callback, where it is valid, before the
 * fiber goes on. */
#include "lib/net/fiber.h"
#include "master/master.h"
#include "master/stats.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct db_text {
    struct db_text *next;
    size_t used, size;
    char bytes[];
};

static void *must(void *p)
{
    if (!p)
        abort();
    return p;
}

static char *text_room(struct db_args *a, size_t n)
{
    if (!a->text || a->text->size - a->text->used < n) {
        size_t size = n > 2000 ? n : 2000;
        struct db_text *t = must(malloc(sizeof *t + size));
        *t = (struct db_text){.next = a->text, .size = size};
        a->text = t;
    }
    char *at = a->text->bytes + a->text->used;
    a->text->used += n;
    return at;
}

void db_args_start(struct db_args *a, struct master *m)
{
    *a = (struct db_args){0};
    db_arg(a, m->prefix);
}

void db_args_end(struct db_args *a)
{
    while (a->text) {
        struct db_text *t = a->text;
        a->text = t->next;
        free(t);
    }
    free(a->argv);
    free(a->len);
    *a = (struct db_args){0};
}

void db_arg_bytes(struct db_args *a, const void *p, size_t n)
{
    if (a->n == a->cap) {
        a->cap = a->cap ? a->cap * 2 : 64;
        a->argv = must(realloc(a->argv, (size_t)a->cap * sizeof *a->argv));
        a->len = must(realloc(a->len, (size_t)a->cap * sizeof *a->len));
    }
    a->argv[a->n] = p;
    a->len[a->n++] = n;
}

void db_arg(struct db_args *a, const char *s)
{
    size_t n = strlen(s);
    char *at = text_room(a, n + 1);
    memcpy(at, s, n + 1);
    db_arg_bytes(a, at, n);
}

void db_arg_int(struct db_args *a, int64_t v)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, v);
    db_arg(a, text);
}

void db_arg_printf(struct db_args *a, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    db_arg(a, text);
}

struct db_wait {
    struct fiber_event done;
    int (*parse)(const redisReply *r, void *out, struct err *e);
    void *out;
    struct err *e;
    int result;
};

static void on_redis_reply(const redisReply *reply, const struct err *e, void *data)
{
    struct db_wait *w = data;
    if (!reply) {
        if (w->e)
            *w->e = *e;
        w->result = -1;
    } else if (w->parse) {
        w->result = w->parse(reply, w->out, w->e);
    }
    fiber_event_set(&w->done);
}

int db_eval(struct master *m, struct redis_script *s, struct db_args *a,
            int (*parse)(const redisReply *r, void *out, struct err *e), void *out, struct err *e)
{
    struct db_wait w = {.parse = parse, .out = out, .e = e};
    redis_eval(m->redis, s, on_redis_reply, &w, 0, NULL, a->n, a->argv, a->len);
    fiber_event_wait(&w.done, -1);
    return w.result;
}

static int replicas_parse(const redisReply *r, void *out, struct err *e)
{
    *(int64_t *)out = r->type == REDIS_REPLY_INTEGER ? r->integer : 0;
    return 0;
}

int db_eval_durable(struct master *m, struct redis_script *s, struct db_args *a,
                    int (*parse)(const redisReply *r, void *out, struct err *e), void *out, struct err *e)
{
    if (!m->replicas || !redis_connected(m->redis_durable))
        return db_eval(m, s, a, parse, out, e);
    int64_t have = 0;
    struct err none = {0};
    struct db_wait w = {.parse = parse, .out = out, .e = e};
    struct db_wait held = {.parse = replicas_parse, .out = &have, .e = &none};
    redis_eval(m->redis_durable, s, on_redis_reply, &w, 0, NULL, a->n, a->argv, a->len);
    redis_command(m->redis_durable, on_redis_reply, &held, "WAIT 1 200");
    fiber_event_wait(&held.done, -1);
    fiber_event_wait(&w.done, -1);
    if (w.result == 0 && have < 1)
        stats_not_replicated();
    return w.result;
}

int db_command(struct master *m, int argc, const char **argv,
               int (*parse)(const redisReply *r, void *out, struct err *e), void *out, struct err *e)
{
    struct db_wait w = {.parse = parse, .out = out, .e = e};
    size_t lens[8];
    for (int i = 0; i < argc && i < 8; i++)
        lens[i] = strlen(argv[i]);
    redis_command_argv(m->redis, on_redis_reply, &w, argc, argv, lens);
    fiber_event_wait(&w.done, -1);
    return w.result;
}

ProtobufCMessage *message_dup(const ProtobufCMessage *msg)
{
    size_t n = protobuf_c_message_get_packed_size(msg);
    uint8_t *bytes = must(malloc(n + 1));
    protobuf_c_message_pack(msg, bytes);
    ProtobufCMessage *copy = protobuf_c_message_unpack(msg->descriptor, NULL, n, bytes);
    free(bytes);
    return copy;
}

struct call_state {
    struct fiber_event done;
    ProtobufCMessage *reply;
    struct err *e;
    int result;
};

static void on_call_reply(const ProtobufCMessage *reply, const struct err *e, void *data)
{
    struct call_state *s = data;
    if (!reply) {
        if (s->e)
            *s->e = *e;
        s->result = -1;
    } else if (!(s->reply = message_dup(reply))) {
        s->result = err_set(s->e, ERR_INTERNAL, "copying an answer: out of memory");
    }
    fiber_event_set(&s->done);
}

int call_wait(struct rpc_client *c, const char *path, const ProtobufCMessage *in,
              const ProtobufCMessageDescriptor *out, int64_t timeout_ms, const char *trace,
              ProtobufCMessage **reply, struct err *e)
{
    struct call_state s = {.e = e};
    rpc_unary(c, path, in, out, timeout_ms, trace, on_call_reply, &s);
    fiber_event_wait(&s.done, -1);
    if (s.result < 0)
        return -1;
    if (reply)
        *reply = s.reply;
    else
        protobuf_c_message_free_unpacked(s.reply, NULL);
    return 0;
}
