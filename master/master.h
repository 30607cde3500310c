/* What the files of cube-master share: configuration, the process's one context, and calls that wait inside a
 * fiber. */
#pragma once

#include "lib/net/config.h"
#include "lib/net/crypto.h"
#include "lib/net/redis.h"
#include "lib/net/rpc.h"
#include "master/scheduler.h"
#include "proto/redis_scripts.h"

struct master_config {
    char *listen, *admin_listen, *advertise;
    char *redis, *redis_user, *redis_password_file;
    char *state_dir, *key_dir, *seed_file, *journal;
    char *ca, *cert, *key;
    char *cell;
    int64_t report_ms, node_stale_ms, node_lost_ms, recover_ms, node_timeout_ms, adopt_grace_ms;
    int64_t journal_growth_kib;
    int64_t overcommit_memory, overcommit_cpu, initial_memory_pct; /* percent */
    struct sched_weights weights;
};

enum cell_state {
    CELL_REDIS_AWAY, /* nothing can be committed */
    CELL_RECOVERING, /* Redis is new or lost its data: creates answer 503 */
    CELL_READY
};

struct fleet;
struct journal;

struct master {
    struct loop *loop;
    struct master_config cfg;
    struct redis *redis;
    struct redis *redis_durable; /* commits that wait for a replica: WAIT holds up a whole connection */
    struct redis_stream *events; /* changes of routes, also by other masters */
    unsigned replicas;           /* of Redis, as of the last look */
    struct rpc_creds *creds;
    struct rpc_server *server;
    struct seed seed;
    char prefix[8];    /* "{c0}" */
    char instance[12]; /* this process, as it is named in owners and discovery */
    struct fleet *fleet;
    struct journal *journal;
    enum cell_state cell;
    int64_t epoch_ms; /* birth of the data in Redis */
    int64_t recovering_until_ms;
    unsigned masters_alive;
    struct inflight *inflight[256];
    struct waiter *waiters[256];
    int64_t (*now_ms)(void);
};

/* ---- calls that wait; only inside a fiber ---- */

/** Arguments of a script, growing; aborts when out of memory, like the fibers they are used in. */
struct db_args {
    const char **argv;
    size_t *len;
    int n, cap;
    struct db_text *text; /* blocks of copied text */
};
void db_args_start(struct db_args *a, struct master *m); /* argv[0] = prefix */
void db_args_end(struct db_args *a);
void db_arg(struct db_args *a, const char *s);                 /* copied */
void db_arg_bytes(struct db_args *a, const void *p, size_t n); /* not copied */
void db_arg_int(struct db_args *a, int64_t v);
void db_arg_printf(struct db_args *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define _cleanup_db_args_ __attribute__((cleanup(db_args_end)))

/** Runs a script and hands its reply to `parse` (NULL: ignored), whose result is returned. -1 with
 * ERR_UNAVAILABLE when Redis is away. */
int db_eval(struct master *m, struct redis_script *s, struct db_args *a,
            int (*parse)(const redisReply *r, void *out, struct err *e), void *out, struct err *e);
/** The same, answered only when a replica has it too (WAIT 1), where there is one; 200 ms at most. */
int db_eval_durable(struct master *m, struct redis_script *s, struct db_args *a,
                    int (*parse)(const redisReply *r, void *out, struct err *e), void *out, struct err *e);
/** The same for a plain command of up to 8 words. */
int db_command(struct master *m, int argc, const char **argv,
               int (*parse)(const redisReply *r, void *out, struct err *e), void *out, struct err *e);

/** A unary call. `*reply` is owned by the caller (protobuf_c_message_free_unpacked). */
int call_wait(struct rpc_client *c, const char *path, const ProtobufCMessage *in,
              const ProtobufCMessageDescriptor *out, int64_t timeout_ms, const char *trace,
              ProtobufCMessage **reply, struct err *e);

/** A copy of a message, owned by the caller. NULL when out of memory. */
ProtobufCMessage *message_dup(const ProtobufCMessage *msg);

/* ---- requests of a service, each served by a fiber ---- */

struct request {
    struct master *m;
    struct rpc_call *call; /* NULL once the caller went away */
    ProtobufCMessage *in;
    void (*run)(struct request *r);
    char trace[64];
    bool answered;
};
void request_spawn(struct master *m, struct rpc_call *c, const ProtobufCMessage *in,
                   void (*run)(struct request *r));
void request_reply(struct request *r, const ProtobufCMessage *out);
void request_fail(struct request *r, const struct err *e);

/** Declares the `start` function of a method that is served by `fn(struct request *)`. */
#define REQUEST_START(fn)                                                                                    \
    static void start_##fn(struct rpc_call *c, const ProtobufCMessage *in, void *service)                    \
    {                                                                                                        \
        request_spawn(service, c, in, fn);                                                                   \
    }

/* ---- sandboxes under operation by this process ---- */

/** While it exists the sweeper leaves the sandbox to this fiber. Lives on the fiber's stack. */
struct inflight {
    const char *id;
    struct inflight *next;
    struct master *m;
};
bool inflight_has(struct master *m, const char *id);
void inflight_begin(struct inflight *f, struct master *m, const char *id);
void inflight_end(struct inflight *f);
#define _cleanup_inflight_ __attribute__((cleanup(inflight_end)))

/** Waits until a route event of this sandbox arrives or `timeout_ms` passed. */
void route_event_wait(struct master *m, const char *id, int64_t timeout_ms);
void route_event_seen(struct master *m, const char *id); /* from the follower of the stream */

/* ---- services ---- */
extern const struct rpc_method sandboxes_methods[], snapshots_methods[], catalog_methods[],
    templates_methods[], team_methods[], nodes_methods[], link_methods[];

extern const struct config_key master_config_keys[];
int master_config_check(const struct master_config *c, struct err *e);
