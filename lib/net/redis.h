/* Redis for the daemons: hiredis async on the event loop, pipelined, with connect and command timeouts,
 * reconnect with backoff, Sentinel discovery and scripts by EVALSHA with EVAL fallback. While Redis is away
 * commands fail at once with ERR_UNAVAILABLE; nothing is queued across a reconnect, so a caller always knows
 * that a failed write may or may not have happened. */
#pragma once

#include "lib/base/err.h"
#include "lib/net/loop.h"

#include <hiredis/hiredis.h>

struct redis;

struct redis_config {
    const char *address;  /* "host:port", "unix:/path", or "sentinel:NAME@h1:p1,h2:p2" */
    const char *user;     /* ACL user or NULL */
    const char *password; /* or NULL */
    int64_t timeout_ms;   /* connect and per-command; 0 = 2000 */
};

struct redis *redis_new(struct loop *l, const struct redis_config *cfg); /* copies cfg; connects by itself */
void redis_free(struct redis *r);
bool redis_connected(struct redis *r);
/** Called on each change of the connection. Several may be set. */
void redis_on_state(struct redis *r, void (*changed)(bool connected, void *data), void *data);

/** The reply (valid during the callback), or NULL and why not. A Redis error reply arrives as `e`
 * (ERR_INTERNAL, message of Redis). */
typedef void (*redis_reply_cb)(const redisReply *reply, const struct err *e, void *data);
void redis_command(struct redis *r, redis_reply_cb cb, void *data, const char *fmt, ...);
void redis_command_argv(struct redis *r, redis_reply_cb cb, void *data, int argc, const char **argv,
                        const size_t *lens);

/** A script: embedded Lua text with its SHA-1, made by proto/redis/embed. */
struct redis_script {
    const char *name;
    const char *text;
    char sha1[41]; /* filled at first use */
};
void redis_eval(struct redis *r, struct redis_script *s, redis_reply_cb cb, void *data, int nkeys,
                const char **keys, int nargs, const char **args, const size_t *arg_lens /* NULL: strlen */);

/** XREAD BLOCK on a connection of its own, from `last_id` ("$" = now); `entry` per entry, in order; `gap`
 * after a reconnect or when entries were trimmed away: the reader must treat what it knows as unverified. */
struct redis_stream;
struct redis_stream *redis_stream_follow(struct loop *l, const struct redis_config *cfg, const char *key,
                                         const char *last_id,
                                         void (*entry)(const char *id, const redisReply *fields, void *data),
                                         void (*gap)(void *data), void *data);
void redis_stream_free(struct redis_stream *s);
