/* What the files of cube-lifecycle share: configuration, the process's one context, and calls to a master. */
#pragma once

#include "lib/net/config.h"
#include "lib/net/fiber.h"
#include "lib/net/metrics.h"
#include "lib/net/redis.h"
#include "lib/net/rpc.h"
#include "proto/redis_scripts.h"

struct lifecycle_config {
    char *listen, *admin_listen, *advertise;
    char *redis, *redis_user, *redis_password_file;
    char *state_dir, *key_dir, *master;
    char *ca, *cert, *key;
    char *cell;
    int64_t tick_ms, due_batch, pauses_at_once, wakes_at_once, claim_ttl_ms;
};

#define SHARDS 36
#define MASTERS_MAX 16

struct lifecycle {
    struct loop *loop;
    struct lifecycle_config cfg;
    struct redis *redis;
    struct rpc_creds *creds;
    struct rpc_server *server;
    char prefix[8], instance[12];
    char shards[SHARDS + 1]; /* those this instance holds */
    struct rpc_client *masters[MASTERS_MAX];
    size_t master_count, master_next;
    unsigned wakes, pauses; /* in flight */
};

extern const struct config_key lifecycle_config_keys[];
int lifecycle_config_check(const struct lifecycle_config *c, struct err *e);

/** Runs a script in a fiber; `args` excludes the prefix, which is put first. */
int script_run(struct lifecycle *l, struct redis_script *s, int n, const char *const *args,
               int (*parse)(const redisReply *r, void *out, struct err *e), void *out, struct err *e);

/** Finds the masters and keeps them: from the configured list, or by discovery in Redis. */
int masters_start(struct lifecycle *l, struct err *e);
/** One call to any master, in a fiber; another is tried when one was never reached. `*reply` is owned by the
 * caller. */
int master_call(struct lifecycle *l, const char *path, const ProtobufCMessage *in,
                const ProtobufCMessageDescriptor *out, int64_t timeout_ms, const char *trace,
                ProtobufCMessage **reply, struct err *e);

/** Claims shards, announces this instance. */
void shards_start(struct lifecycle *l);
/** Looks for deadlines that passed and proposes what the sandbox asked for. */
void due_start(struct lifecycle *l);

extern const struct rpc_method wake_methods[];
extern struct metric metric_due_late, metric_due_done, metric_due_failed, metric_wakes, metric_wake_failed,
    metric_wake_shared;
void lifecycle_metrics_register(void);
