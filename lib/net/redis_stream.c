/* Owns the following of one stream on a connection of its own; invariant: the reader gets every entry in
 * order, or is told of a gap before the first entry after it. */
#include "lib/net/redis_impl.h"

#include "lib/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_MS 5000
#define BATCH "512"
#define BATCH_N 512

struct redis_stream {
    struct redis *redis;
    char *key;
    char last[48];
    bool seen; /* `last` is an ID: following has begun */
    bool freed;
    int busy;
    void (*entry)(const char *id, const redisReply *fields, void *data);
    void (*gap)(void *data);
    void *data;
};

static void read_more(struct redis_stream *s);

static bool leave(struct redis_stream *s)
{
    s->busy--;
    if (!s->freed)
        return true;
    if (s->busy == 0) {
        free(s->key);
        free(s);
    }
    return false;
}

static void parse_id(const char *id, uint64_t v[2])
{
    char *end;
    v[0] = strtoull(id, &end, 10);
    v[1] = *end == '-' ? strtoull(end + 1, NULL, 10) : 0;
}

static bool id_less(const char *a, const char *b)
{
    uint64_t x[2], y[2];
    parse_id(a, x);
    parse_id(b, y);
    return x[0] != y[0] ? x[0] < y[0] : x[1] < y[1];
}

static bool keep_id(struct redis_stream *s, const char *id)
{
    if (!id || strlen(id) >= sizeof s->last)
        return false;
    strcpy(s->last, id);
    return true;
}

/* "max-deleted-entry-id" of XINFO STREAM (7.0) above what we have read: entries went away unseen. */
static void on_info(const redisReply *reply, const struct err *e, void *data)
{
    struct redis_stream *s = data;
    for (size_t i = 0; !s->freed && reply && reply->type == REDIS_REPLY_ARRAY && i + 1 < reply->elements;
         i += 2) {
        const redisReply *name = reply->element[i], *value = reply->element[i + 1];
        if (name->str && strcmp(name->str, "max-deleted-entry-id") == 0 && value->str &&
            id_less(s->last, value->str))
            s->gap(s->data);
    }
    if (!s->freed && !e)
        read_more(s);
    leave(s);
}

static void on_entries(const redisReply *reply, const struct err *e, void *data)
{
    struct redis_stream *s = data;
    size_t n = 0;
    if (!s->freed && reply && reply->type == REDIS_REPLY_ARRAY && reply->elements == 1 &&
        reply->element[0]->elements == 2) {
        const redisReply *list = reply->element[0]->element[1];
        for (n = 0; n < list->elements && !s->freed; n++) {
            const redisReply *entry = list->element[n];
            if (entry->elements == 2 && keep_id(s, entry->element[0]->str))
                s->entry(entry->element[0]->str, entry->element[1], s->data);
        }
    }
    if (!s->freed && !e) {
        if (n == BATCH_N) { /* behind: perhaps so far that trimming has overtaken us */
            s->busy++;
            redis_command_within(s->redis, 0, on_info, s, 3, (const char *[]){"XINFO", "STREAM", s->key});
        } else {
            read_more(s);
        }
    } else if (e && !s->freed && e->sys == 0) {
        log_fail(e, "following the stream %s",
                 s->key); /* the wrong type, or no permission: try again at the pace of reconnects */
        redis_lost(s->redis, "the stream cannot be read");
    }
    leave(s);
}

static void read_more(struct redis_stream *s)
{
    char block[16];
    snprintf(block, sizeof block, "%d", BLOCK_MS);
    const char *argv[] = {"XREAD", "COUNT", BATCH, "BLOCK", block, "STREAMS", s->key, s->last};
    s->busy++;
    redis_command_within(s->redis, BLOCK_MS + s->redis->timeout_ms, on_entries, s, 8, argv);
}

/* The newest entry: where "$" is, and whether the stream is still the one that we knew. */
static void on_newest(const redisReply *reply, const struct err *e, void *data)
{
    struct redis_stream *s = data;
    if (!s->freed && reply && reply->type == REDIS_REPLY_ARRAY) {
        const char *newest = "0-0";
        if (reply->elements == 1 && reply->element[0]->elements == 2 && reply->element[0]->element[0]->str)
            newest = reply->element[0]->element[0]->str;
        bool first = !s->seen;
        if (first ? strcmp(s->last, "$") == 0 : id_less(newest, s->last))
            keep_id(s, newest); /* a stream that lost its data starts anew */
        s->seen = true;
        if (!first)
            s->gap(s->data);
        if (!s->freed)
            read_more(s);
    } else if (e && !s->freed && e->sys == 0) {
        log_fail(e, "following the stream %s", s->key);
        redis_lost(s->redis, "the stream cannot be read");
    }
    leave(s);
}

static void on_state(bool connected, void *data)
{
    struct redis_stream *s = data;
    if (!connected || s->freed)
        return;
    s->busy++;
    redis_command_within(s->redis, 0, on_newest, s, 6,
                         (const char *[]){"XREVRANGE", s->key, "+", "-", "COUNT", "1"});
}

struct redis_stream *redis_stream_follow(struct loop *l, const struct redis_config *cfg, const char *key,
                                         const char *last_id,
                                         void (*entry)(const char *id, const redisReply *fields, void *data),
                                         void (*gap)(void *data), void *data)
{
    struct redis_stream *s = calloc(1, sizeof *s);
    if (!s)
        abort();
    s->key = strdup(key);
    snprintf(s->last, sizeof s->last, "%s", last_id);
    s->entry = entry;
    s->gap = gap;
    s->data = data;
    s->redis = redis_new(l, cfg);
    redis_on_state(s->redis, on_state, s);
    return s;
}

void redis_stream_free(struct redis_stream *s)
{
    if (!s)
        return;
    s->freed = true;
    s->busy++;
    redis_free(s->redis);
    leave(s);
}
