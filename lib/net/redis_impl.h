/* What the files of lib/net/redis share; nobody else includes this. */
#pragma once

#include "lib/base/buf.h"
#include "lib/net/redis.h"
#include "lib/net/resolve.h"

#include <hiredis/async.h>

#define REDIS_SENTINELS 8

enum redis_state {
    REDIS_WAITING,    /* between two attempts */
    REDIS_FINDING,    /* asking a Sentinel for the master's address */
    REDIS_CONNECTING, /* TCP, AUTH, then the check that it is a loaded master */
    REDIS_READY,
};

/** One command under way. */
struct redis_request {
    struct redis *redis;
    redis_reply_cb cb;
    void *data;
    int64_t deadline_ms; /* loop time */
    struct redis_request *next;
    struct loop_task task;       /* when it fails without having been sent */
    struct redis_script *script; /* EVALSHA that may have to be repeated as EVAL */
    struct buf tail;             /* its keys and arguments, in the protocol's form */
    int tail_items;
};

struct redis_watcher {
    void (*changed)(bool connected, void *data);
    void *data;
    struct redis_watcher *next;
};

struct redis {
    struct loop *loop;
    char *address, *user, *password;
    int64_t timeout_ms;
    char *sentinel_name; /* NULL: no Sentinel */
    char *sentinels[REDIS_SENTINELS];
    int sentinel_count, sentinel_next;

    enum redis_state state;
    redisAsyncContext *ctx; /* NULL while waiting or resolving */
    struct resolve *resolving;
    struct loop_timer timer; /* the next attempt, or the end of this one */
    int64_t backoff_ms;

    struct redis_request *sent, **sent_tail; /* in the order of the replies */
    struct loop_timer oldest;                /* when the first of them times out */
    struct redis_watcher *watchers;
    int busy; /* callbacks run, or requests are still to be answered: the object must stay */
    bool freed;
};

/** hiredis on the loop: hooks the context to it. -1 when out of descriptors. */
int redis_attach(struct loop *l, redisAsyncContext *ctx);

/* redis_connect.c */
void redis_connect(struct redis *r);
void redis_lost(struct redis *r,
                const char *why); /* drops the connection, fails what was sent, plans the next attempt */

/* redis.c */
void redis_became(struct redis *r, bool connected);
void redis_enter(struct redis *r);
void redis_leave(struct redis *r);
/** Sends bytes in the protocol's form, also while not READY. */
void redis_send(struct redis *r, struct redis_request *q, const char *bytes, size_t n);
struct redis_request *redis_request_new(struct redis *r, redis_reply_cb cb, void *data, int64_t timeout_ms);
void redis_request_fail_soon(struct redis_request *q);
void redis_command_within(struct redis *r, int64_t timeout_ms, redis_reply_cb cb, void *data, int argc,
                          const char **argv);
void redis_put_bulk(struct buf *b, const char *s, size_t n);

/* redis_script.c: true when the request was sent again as EVAL */
bool redis_script_retry(struct redis_request *q, const redisReply *reply);
