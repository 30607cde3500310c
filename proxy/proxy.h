/* What the parts of cube-proxy share: the process, a worker thread, a sandbox as one worker sees it, an
 * exchange (one request and its answer) between a front (the client's protocol) and a back (the service's).
 * Everything but `struct proxy` belongs to one thread. */
#pragma once

#include "proxy/answer.h"
#include "proxy/chunked.h"
#include "proxy/http1.h"
#include "proxy/share.h"
#include "proxy/route.h"
#include "proxy/target.h"

#include "lib/base/buf.h"
#include "lib/base/err.h"
#include "lib/dp/io.h"
#include "lib/dp/loop.h"
#include "lib/dp/pump.h"

#include <nghttp2/nghttp2.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    SCRATCH = 65536,
    PARKED_MAX = 1024,
    LOOKUP_PARKED_MAX = 16384,
    CONNECT_TRIES = 5,
    POOL_SLOTS = 32,
    IDLE_MAX = 256 /* kept connections of one sandbox and worker */
};

struct proxy_config {
    char *listen, *tls_listen, *admin_listen, *domain, *api, *lifecycle, *redis, *redis_user,
        *redis_password_file, *run_dir, *key_dir, *state_dir, *cell, *access_log, *tls_cert, *tls_key,
        *relay_ca, *relay_cert, *relay_key, *relay_link;
    int64_t threads, max_per_sandbox, max_per_client, stream_buffer, max_buffered, body_min_rate;
    int64_t head_timeout_ms, body_timeout_ms, keepalive_timeout_ms, idle_timeout_ms, connect_timeout_ms,
        wake_timeout_ms, drain_timeout_ms;
};

struct loop;
struct proxy;
struct worker;
struct sandbox;
struct exchange;
struct back;
struct control;

/* ---- one process ---- */

struct proxy {
    struct proxy_config cfg;
    struct route_cache *routes;
    struct control *control;
    struct worker *workers;
    int worker_count;
    _Atomic(SSL_CTX *) tls; /* swapped by a reload; workers take a reference per connection */
    SSL_CTX *relay_tls;     /* NULL: plaintext, loopback only */
    struct sockaddr_storage api;
    socklen_t api_len;
    atomic_int draining;
};

/* ---- one thread ---- */

struct worker {
    struct proxy *proxy;
    struct dp_loop *loop;
    int index;
    pthread_t thread;
    struct route_reader *routes;
    struct dp_watch listen_plain, listen_tls;
    struct sandbox *sandboxes[4096];
    struct sandbox *api;      /* pseudo sandbox: the control API behind the same port */
    struct http_head request; /* of the exchange `parsed` */
    struct exchange *parsed;
    struct exchange *unused; /* ended ones, to be used again */
    int unused_count;
    struct http_head response;
    char scratch[SCRATCH]; /* what a read brings */
    char scratch2[SCRATCH /
                  4]; /* the same for HTTP/2, whose frames may be passed on while `scratch` is in use */
    char head[HTTP_HEAD_MAX * 2];        /* a request head that is being built */
    char answer_head[HTTP_HEAD_MAX * 2]; /* an answer's */
    uint32_t fronts;                     /* open client connections */
    struct front_link *front_list;
    struct relay_session *relay_sessions;
    struct link *link; /* to the relay of this host; NULL: off */
    struct dp_timer sweep;
    struct back *retired; /* connections that are still to be closed, see retire.c */
    struct dp_task retire;
    int64_t drain_ms;
    bool drained_hard;
    bool accept_paused; /* no descriptors were left; the sweep tries again */
    struct buf log;     /* access log lines that wait for their write */
    uint32_t nonce;
    uint32_t relay_source; /* 127.0.0.1 + this is where connections to relays on loopback come from */
    _Atomic size_t held;   /* as last published */
    struct dp_task shed;
};

/** Every client connection is on its worker's list, so that a drain reaches it. */
struct front_link {
    struct front_link *next, **link;
    void (*drain)(struct front_link *f);        /* close when idle, finish what runs */
    size_t (*held)(const struct front_link *f); /* bytes of this process that wait for it, see memory.c */
    void (*drop)(struct front_link *f);         /* reset */
};
void front_link_add(struct worker *w, struct front_link *f);
void front_link_remove(struct worker *w, struct front_link *f);

/** To be called whenever more waits for a peer than before: above the process' limit the client connections
 * that hold most are reset at the end of this turn. */
void memory_grown(struct worker *w);
/** Every now and then: lets the other workers know what this one holds. */
void memory_publish(struct worker *w);
void memory_init(struct worker *w);
/** What an exchange holds, with its connection to the service. */
size_t memory_of(const struct exchange *x);

int worker_start(struct worker *w, struct err *e);
/** Waits for all of them; each has said that it ended. */
void workers_join(struct proxy *p);
/** Opens (or takes over) the sockets of all workers; `*confirm` >= 0: a predecessor waits for
 * dp_handover_confirm. */
int workers_open(struct proxy *p, int *confirm, void (*taken)(void *), struct err *e);
/** From any thread: stops accepting; with `hard` also closes idle client connections. Each worker ends with
 * its last one. */
void proxy_drain(struct proxy *p, bool hard);
/** A connection arrived: decides h1 or h2 and makes the front. */
void worker_accept(struct worker *w, int fd, bool tls);

/* ---- one sandbox, as one worker sees it ---- */

enum wait_kind { WAIT_NONE, WAIT_LOOKUP, WAIT_WAKE, WAIT_RESUME };

/** Connections to one port; there as long as it has one. */
struct pool {
    struct pool *next;
    uint16_t port;
    bool h2;
    uint16_t opening;  /* spares on their way */
    uint32_t holders;  /* its connections, open or opening */
    struct back *idle; /* newest first */
};

struct sandbox {
    struct worker *worker;
    struct sandbox *next;
    struct share *share; /* requests in flight, of all workers */
    char id[SANDBOX_ID_LEN + 1];
    bool is_api;
    struct route route;                    /* copy; valid while route.serial is the cache's */
    struct pool *pools[POOL_SLOTS];        /* by port */
    struct back *backs;                    /* all connections, for closing on a new generation */
    uint32_t retired;                      /* those that wait to be closed are on the worker's list */
    uint32_t idle;                         /* kept ones among them */
    uint32_t exchanges;                    /* in flight, of this worker */
    struct exchange *parked, **parked_end; /* in order of arrival */
    uint32_t parked_count, round;
    enum wait_kind waiting; /* what the parked wait for */
    struct dp_timer timer;  /* re-reads a route that is resuming */
    int64_t wait_since_ms;
};

/** Finds or makes it; NULL when out of memory. */
struct sandbox *sandbox_get(struct worker *w, const char *id);
struct sandbox *sandbox_find(struct worker *w, const char *id);
struct sandbox *sandbox_api(struct worker *w);
/** Fills sandbox->route from the cache; false when it has to be looked up. */
bool sandbox_route(struct sandbox *s);
/** Queues the exchange behind a look-up (or wake) and starts one if none runs. */
void sandbox_park(struct sandbox *s, struct exchange *x, enum wait_kind kind);
void sandbox_unpark(struct exchange *x);
void sandbox_release(struct sandbox *s); /* frees it when nothing needs it */
/** Answers of the control thread. */
void sandbox_looked_up(struct worker *w, const struct route *r, const struct err *e);
void sandbox_woken(struct worker *w, const struct route *r, const struct err *e, int64_t took_ms);
/** A state or generation changed: connections of other generations are closed. */
void sandbox_changed(struct worker *w, const char *id, uint64_t gen, enum route_state state);

/* ---- an exchange ---- */

struct front_ops {
    void (*head)(struct exchange *x, const struct http_head *m); /* the final head; framing in x->answer_* */
    void (*interim)(struct exchange *x, const struct http_head *m);
    void (*data)(struct exchange *x, const char *p,
                 size_t n); /* payload; verbatim chunked when x->verbatim */
    void (*finish)(struct exchange *x, const struct http_head *trailers);
    void (*abort)(struct exchange *x); /* the answer cannot be completed */
    void (*flush)(struct exchange *x); /* end of this batch of answers */
    bool (*blocked)(struct exchange *x);
    void (*pull)(struct exchange *x); /* the back takes request bytes (again) */
    /** The client's stream, when body bytes may be written to it as they are; else NULL. No function: never.
     */
    struct dp_io *(*plain)(struct exchange *x);
    void (*active)(struct exchange *x); /* bytes were written to that stream */
    size_t (*room)(struct exchange *x); /* how much to read at once for it; no function: SCRATCH */
};

struct back_ops {
    void (*data)(struct exchange *x, const char *p, size_t n);
    void (*finish)(struct exchange *x, const struct http_head *trailers);
    void (*flush)(struct exchange *x);
    void (*cancel)(struct exchange *x); /* the client is gone: the exchange must not be touched after */
    bool (*blocked)(struct exchange *x);
    void (*pull)(struct exchange *x); /* the front takes answer bytes (again) */
    /** The same for the service's stream. */
    struct dp_io *(*plain)(struct exchange *x);
};

enum exchange_state { X_ROUTE, X_PARKED, X_CONNECT, X_BACKOFF, X_SENT, X_ANSWERING, X_DONE };
enum body_kind { BODY_NONE, BODY_LENGTH, BODY_CHUNKED, BODY_UNTIL_CLOSE, BODY_RAW };

struct exchange {
    struct worker *worker;
    const struct front_ops *front;
    void *front_data;
    const struct back_ops *back; /* NULL until the request was sent */
    struct back *conn;
    enum exchange_state state;
    struct sandbox *sandbox;
    struct exchange *next, **link; /* in sandbox->parked */
    struct dp_timer timer;
    struct dp_task bury;
    char *head; /* raw request head, kept until the answer starts */
    uint32_t head_len, head_cap;
    uint16_t port;
    uint32_t round; /* of the parking */
    uint8_t tries, reroutes;
    bool by_path, tls, http10, is_head, idempotent, grpc;
    bool request_body;  /* a body follows (or may follow) the head */
    bool request_done;  /* all of it was handed to the back */
    bool body_sent;     /* some of it was: no retry any more */
    bool counted;       /* in sandbox->exchanges and in its share */
    bool verbatim;      /* the front takes chunked bytes as they are */
    bool front_decodes; /* the front hands over payload: an h1 back frames it as chunks */
    bool may_upgrade;   /* the request asked for an upgrade, and it was passed on */
    bool woke;
    bool late;                  /* joined a question that was asked before it came */
    enum body_kind answer_body; /* how the answer's body ends */
    int64_t answer_length;
    struct half up, down; /* bodies that are moved in bulk */
    enum answer_form form;
    bool connect_proto; /* Connect errors echo the codec */
    int status;
    uint32_t reset_code; /* HTTP/2 error code that the service's reset carried */
    uint32_t interim;    /* what its interim answers (1xx) take, see exchange_interim */
    int64_t wake_ms;
    int64_t waited_ms; /* for bytes of its body that the service would have taken */
    int64_t start_us, routed_us, connected_us, first_us;
    uint64_t bytes_in, bytes_out;
    char id[SANDBOX_ID_LEN + 1]; /* sandbox as asked for; "" = API */
    char trace[33];
    char line[80];      /* "METHOD /path" for the access log, without the query */
    const char *client; /* printable address, owned by the front */
    bool post_mortem;   /* the connection broke: the look-up only decides how to say so */
};

/** How often a front looks at bodies that are not complete. */
int64_t exchange_body_step(const struct worker *w);
/** Whether the rest of the request's body is due: not of a stream of messages (Connect, gRPC, WebSocket), not
 * before the service has the head, nor once it answers. */
bool exchange_body_due(const struct exchange *x);
/** For one step the service would have taken bytes, and the client has sent none. After too many of these,
 * for what has come by then, the request is answered with 408. */
void exchange_body_waited(struct exchange *x);

/** How many bytes of the service to read at once. */
static inline size_t exchange_room(struct exchange *x)
{
    return x->front->room ? x->front->room(x) : SCRATCH;
}

/** Makes one with room for a head of `n` bytes in x->head; NULL when out of memory. */
struct exchange *exchange_new(struct worker *w, const struct front_ops *front, void *front_data, size_t n);
/** x->head is filled: parses it into worker->request. 0, HTTP_BAD or HTTP_TOO_LARGE. */
int exchange_parse(struct exchange *x);
/** Frees one that was never started. */
void exchange_discard(struct exchange *x);
/** Parsed; the front has set request_body, tls, client. Routes and sends it, or answers. */
void exchange_start(struct exchange *x);
/** worker->request is this exchange's head (parses again if another came between). */
const struct http_head *exchange_request(struct exchange *x);
/** Answers with an error of the proxy and ends the request side. */
void exchange_fail(struct exchange *x, enum answer_kind kind, const char *detail);
/** A connection to the service is ready (or not): the pool's answers. */
void exchange_connected(struct exchange *x, struct back *b);
enum connect_result {
    CONNECT_UNREACHABLE,
    CONNECT_STALE,
    CONNECT_UNKNOWN,
    CONNECT_PORT_CLOSED,
    CONNECT_NOT_READY,
    CONNECT_DENIED,
    CONNECT_LIMIT
};
void exchange_not_connected(struct exchange *x, enum connect_result why);
/** The connection broke before an answer; `reused` = it came from the pool. */
void exchange_broken(struct exchange *x, bool reused);
/** The front is gone: cancels the back and frees the exchange. */
void exchange_cancel(struct exchange *x);
/** The answer was passed on completely: logs, counts, frees. */
void exchange_done(struct exchange *x);
/** The answer's final head arrived: sets the phase times; the kept request head is released. */
void exchange_answered(struct exchange *x, int status);
/** An interim answer (1xx) whose head has `n` bytes is to be passed on. false: the service has sent more of
 * them than an exchange may hold for a client that does not read; its connection is to be given up. */
bool exchange_interim(struct exchange *x, size_t n);
/** The parked exchange goes on with sandbox->route. */
void exchange_routed(struct exchange *x);

/* ---- backs ---- */

enum back_state {
    BACK_CONNECTING,
    BACK_IDLE,
    BACK_BUSY,
    BACK_RETIRED, /* its generation is over: takes and says nothing more, and is closed soon */
    BACK_CLOSED
};

/** One stream to a service or to the API: through a relay, or on the guest's own descriptor, which the relay
 * of this host has handed over (link.h; until then `io` is closed). The h1 codec is in back1.c, h2c in
 * back2.c. */
struct back {
    struct dp_io io; /* first */
    struct worker *worker;
    struct sandbox *sandbox;
    struct back *next, **link;           /* sandbox->backs, or worker->retired */
    struct back *idle_next, **idle_link; /* pool->idle */
    struct pool *pool;
    enum back_state state;
    uint64_t gen;
    struct exchange *x; /* NULL: a spare, or idle */
    struct dp_timer timer;
    struct dp_task again, bury;
    bool reused, got_bytes;
    struct link_stream *link_stream; /* NULL: over TCP */
    uint8_t answer[16];
    uint8_t answer_len;
    /* h1 */
    char *in; /* bytes of an unfinished head */
    uint32_t in_len, in_cap;
    struct http_scan scan;
    enum body_kind body;
    uint64_t left;
    struct chunked chunked;
    struct buf trailers;
    uint16_t corked; /* bytes of the request head that wait in worker->head for company */
    bool keep_alive, request_chunked, raw_in_done, raw_out_done, in_read;
    /* h2c */
    struct back2 *h2;
};

/** Takes an idle connection or opens one; ends in exchange_connected or exchange_not_connected (maybe at
 * once). */
void pool_connect(struct exchange *x);
/** The exchange no longer waits for its connection. */
void pool_forget(struct exchange *x);
void pool_idle_remove(struct back *b); /* nothing for one that is not idle */
/** The service is ready for another request. */
void back_release(struct back *b);
void back_close(struct back *b, bool reset);
/** The connection and its exchange go separate ways; returns the exchange (NULL: it had none). */
struct exchange *back_part(struct back *b);
/** The connection ended, or what came is malformed: closes it, and its exchange is tried again or fails. */
void back_lost(struct back *b);
/** Takes a connection out of its pool and off its exchange's hands: from now on no byte passes. It is closed
 * (and its exchange tried again, or failed) from the loop. */
void back_retire(struct back *b);
/** The same for every connection of a generation before `gen`. */
void pool_retire_older(struct sandbox *s, uint64_t gen);
void retire_init(struct worker *w);

/** Sends the request head of a connected exchange and starts to pull its body. */
void back1_send(struct exchange *x, struct back *b);
void back1_read(struct back *b);
void back1_drained(struct back *b);
/** The same as in front1.h, for the answer. Nothing more can be done now unless it says PUMP_COPY or
 * PUMP_DONE. */
void bulk_down_consider(struct exchange *x, struct back *b, size_t n);
enum pump_result bulk_down(struct exchange *x, struct back *b);
void bulk_stop(struct exchange *x);
void back2_send(struct exchange *x, struct back *b);
void back2_read(struct back *b);
void back2_drained(struct back *b);
void back2_free(struct back *b);

/* ---- fronts ---- */

/** A new client connection; turns into an h2 front when ALPN or the first bytes say so. `ssl` may be NULL. */
void front1_start(struct worker *w, int fd, SSL *ssl, struct share *client, const char *address);
void front2_adopt(struct worker *w, struct dp_io *io, struct share *client, const char *address, bool tls,
                  const char *first, size_t n);

/* ---- heads ---- */

enum { HOST_MASKED_MAX = 264 };
/** The Host that the service is to see: the masked one (written to `out`), or what the client asked for. */
struct str request_host(const struct exchange *x, const struct http_head *m, char out[HOST_MASKED_MAX]);
bool request_masked(const struct exchange *x);
/** Whether a request's header goes to the service as it is. Host and X-Forwarded-For never do. */
bool request_passes(const struct exchange *x, const struct http_head *m, const struct http_header *h);
bool response_passes(const struct http_head *m, const struct http_header *h);

/** Writes the request head for an h1 service into worker->head. Returns its length, or 0 when it is too long.
 */
size_t request_build(struct exchange *x, bool *chunked);
/** Writes an answer head for an h1 client. `close`: say so. */
size_t response_build(struct exchange *x, const struct http_head *m, bool close, char *out, size_t cap);

/* ---- the process ---- */

int proxy_start(struct proxy *p, struct loop *l, struct err *e);
void proxy_stop(struct proxy *p); /* drains */

/* ---- control thread ---- */

int control_start(struct proxy *p, struct loop *l, struct err *e);
void control_worker_ended(struct proxy *p); /* from a worker thread; the last one ends the program */
struct loop *control_loop(struct proxy *p);
void control_accepting(struct proxy *p); /* announces the proxy in discovery */
struct redis;
void announce_start(struct proxy *p, struct redis *r, const char *key_prefix);
bool control_ready(struct proxy *p);
/** From a worker: look the route up in Redis, or wake the sandbox; the answer comes as sandbox_looked_up or
 * sandbox_woken. */
void control_lookup(struct worker *w, const char *sandbox);
void control_wake(struct worker *w, const char *sandbox, uint64_t gen_seen, const char *trace);

/* ---- TLS of the front ---- */

/** Loads or makes certificates (a local CA when none is configured); watches them for changes. */
int tls_load(struct proxy *p, struct err *e);
void tls_reload(struct proxy *p); /* called now and then by the control thread */
/** Makes `dir`/ca.pem, ca.key, ingress.pem, ingress.key for localhost, `domain` and *.`domain`, unless they
 * are there. */
int tls_make_local(const char *dir, const char *domain, struct err *e);
SSL *tls_accept(struct proxy *p); /* NULL when TLS is off */
bool tls_is_h2(SSL *ssl);

/* ---- towards relays ---- */

/** Begins to connect over TCP or TLS (the API: always TCP) and sends the preface. false: nothing was begun.
 */
bool relay_connect(struct back *b);
/** The preface of a connection, with a new nonce and expiry. */
void back_preface(struct back *b, uint8_t out[64]);

int relay_tls_load(struct proxy *p, struct err *e); /* nothing without a configured CA */
SSL *relay_tls_connect(struct back *b);             /* NULL when out of memory */

/* ---- what is counted ---- */

enum phase { PHASE_ROUTE, PHASE_CONNECT, PHASE_FIRST_BYTE, PHASE_TOTAL, PHASES };
void stats_init(void);
void stats_exchange(const struct exchange *x);
void stats_link(int more);        /* links to the relay of this host: 1 or -1 */
void stats_stream(bool by_link);  /* one was opened */
void stats_add(const char *what); /* "reset_flood" … */
void access_log(struct exchange *x);
/** A request that got no exchange: its head is `n` bytes at `head`, as far as it is known, or "METHOD path".
 * `began_ms` 0: not known. */
void access_log_refused(struct worker *w, const char *client, const char *head, size_t n, int status,
                        int64_t began_ms);
bool access_log_on(void);
void access_log_flush(struct worker *w);
int access_log_open(const char *path, struct err *e); /* "" = none, "-" = stderr */
