/* One client connection: reads requests, gives them to a route, writes the response. */
#pragma once

#include "guest/common/arena.h"
#include "guest/envd/http.h"
#include "guest/common/loop.h"
#include "lib/base/buf.h"

struct conn;

/** How a route wants the request's body. */
enum body_mode {
    BODY_WHOLE,  /* collected in memory up to `body_max`, then `handle` runs */
    BODY_PIECES, /* `handle` runs after the head; then `on_data` per piece and `on_end` */
    BODY_OWN,    /* `handle` runs after the head and takes the socket over (conn_detach) */
};

struct route {
    const char *method, *path;
    enum body_mode mode;
    size_t body_max; /* BODY_WHOLE */
    bool open;       /* no X-Access-Token needed (contracts/e2b.md §3) */
    bool internal;   /* only for the control connection when running in a VM (contracts/internal.md §5) */
    bool early;      /* answers before the identity is set and while frozen */
    void (*handle)(struct conn *c);
};

/** The request in flight; allocated when its head is complete, freed when its response is written. */
struct request {
    char *head;
    struct http_req http;
    struct http_body body;
    struct arena arena;
    struct buf whole; /* BODY_WHOLE */
    size_t held;      /* conn_hold */
    const struct route *route;
    char path[]; /* decoded path */
};

struct conn {
    struct ev ev;
    struct conn *next, **prev; /* list of all connections */
    struct request *req;       /* NULL between requests */
    struct buf in, out;
    size_t scanned;         /* of `in`, for the end of the head */
    size_t in_off, out_off; /* consumed bytes at the front */
    bool trusted;           /* the control connection from cube-init */
    bool local;             /* accepted on TCP, not on vsock */
    bool detached;          /* a worker or `on_ready` owns the socket */
    bool paused;            /* BODY_PIECES: the handler wants no more data now */
    bool body_done, chunked_out, streaming, response_done, close_after;
    bool may_leave;  /* the handler's answer waits for somebody: on_gone is told when the client leaves */
    bool corked;     /* chunks are collected, not sent one by one */
    bool stalled;    /* the socket was full since on_drain was last told: it is owed, whoever empties `out` */
    bool advancing;  /* conn_advance is on the stack */
    bool broken;     /* a send failed; dies at the next turn of the loop */
    int64_t last_ms; /* last byte either way; start of the head while one is being read */
    struct timer timer;
    /* Set by the handler; all cleared when the request ends. */
    void *user;
    void (*on_data)(struct conn *c, const char *p, size_t n);
    void (*on_end)(struct conn *c);
    void (*on_drain)(struct conn *c); /* `out` became empty */
    void (*on_gone)(struct conn *c);  /* the connection dies before the response was complete */
    void (*on_ready)(struct conn *c, uint32_t events); /* conn_wait */
};

/** Takes a connected, non-blocking socket. */
struct conn *conn_open(int fd, bool trusted, bool local);

/** Number of open connections, and closing the one that has been idle longest (at the limit). */
unsigned conn_count(void);
void conn_close_idlest(void);

/** A header line "Name: value\r\n" list may be given in `extra` (NULL = none). Sends a complete response. */
void conn_reply(struct conn *c, int status, const char *type, const char *extra, const void *body, size_t n);

/** {"code":status,"message":…} as every REST error of the contract. */
void conn_error(struct conn *c, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/** Begins a response whose length is not known: chunked, or close-delimited for HTTP/1.0. */
void conn_stream(struct conn *c, int status, const char *type, const char *extra);

/** Room for `n` > 0 bytes of the next chunk in the output; fill all of it, then call `conn_chunk_end`. NULL =
 * no memory. */
char *conn_chunk(struct conn *c, size_t n);
void conn_chunk_end(struct conn *c);

/** Collects the chunks from now on, and sends them all. */
void conn_cork(struct conn *c);
void conn_uncork(struct conn *c);

/** Ends a streamed response. */
void conn_stream_end(struct conn *c);

/** Bytes that the peer has not taken yet. */
size_t conn_pending(const struct conn *c);

/** Hands the socket to a worker: the loop touches neither socket nor buffers until `conn_attach`. */
void conn_detach(struct conn *c);
void conn_attach(struct conn *c);

/** On a detached connection: `ready` runs once in the loop when one of `events` happens, or with 0 after the
 * timeout. */
void conn_wait(struct conn *c, uint32_t events, int64_t timeout_ms, void (*ready)(struct conn *, uint32_t));

/** Builds the response head into `out` for workers that send the body themselves; `length` -1 = chunked. */
void conn_head(struct conn *c, struct buf *out, int status, const char *type, const char *extra,
               int64_t length);

/** The worker sent (or broke) everything itself: go on with the next request, or close. */
void conn_response_sent(struct conn *c, bool keep);

/** Says that the request in flight holds n bytes of its client's choosing, beside `whole` while that is
 * there. They count, with the bodies, against one limit for all connections (budget.h); false, and nothing
 * changed, when that is reached. */
bool conn_hold(struct conn *c, size_t n);

/** Frees `whole` before the request ends. */
void conn_whole_free(struct conn *c);

/** Between the two a response may end without the request being freed. `conn_leave` takes what `conn_enter`
 * returned, and goes on with the connection. */
bool conn_enter(struct conn *c);
void conn_leave(struct conn *c, bool outer);

/** Changes `paused` and reads on when it became false. */
void conn_pause(struct conn *c, bool paused);

/** Closes now; `on_gone` is called if a response was owed. */
void conn_abort(struct conn *c);

/** The router: the route of a request, or NULL after having answered (conn.c calls it; server.c implements
 * it). */
const struct route *conn_route(struct conn *c, const struct http_req *http, const char *path);
