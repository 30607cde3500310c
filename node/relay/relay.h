/* cube-relay: the node's end of the way in. One authenticated stream from an ingress becomes one connection
 * to the guest (contracts/internal.md §5). */
#pragma once

#include "lib/dp/io.h"
#include "lib/dp/loop.h"
#include "lib/dp/pump.h"
#include "lib/net/config.h"
#include "lib/net/preface.h"

#include <openssl/ssl.h>

struct relay_config {
    char *listen, *address, *admin_listen, *run_dir, *log_level;
    char *tls_ca, *tls_cert, *tls_key; /* required off loopback */
    int64_t handshake_timeout_ms, max_streams_per_sandbox, max_streams, stream_buffer, proxy_uid;
};

/** The keys of the section, with defaults and help; ended by an entry without a name. */
extern const struct config_key relay_keys[];

/** What the relay knows of one sandbox: its newest generation's ticket, and what the node reports as
 * activity. */
struct ticket {
    char sandbox[SANDBOX_ID_LEN + 1];
    uint64_t gen;
    uint8_t key[32];
    uint32_t open;    /* streams now */
    uint64_t bytes;   /* both ways, since the relay started */
    uint64_t streams; /* since the relay started */
    int64_t last_ms;  /* monotonic time of the last byte */
    int64_t mtime_ns; /* of <run>/sb/<id> when it was read; 0 = read again */
    uint64_t inode;
    struct ticket *next;
};

struct relay {
    struct relay_config cfg;
    struct dp_loop *loop;
    SSL_CTX *tls; /* NULL: plaintext on loopback */
    struct dp_watch listener, link_listener;
    struct link *links;             /* connections of proxies on this host, see link.c */
    uint32_t link_count, strangers; /* links, and those among them of other users than proxies' */
    struct dp_timer rest;           /* no descriptors were left: accepting goes on when it fires */
    struct ticket *tickets[1024];
    uint32_t open;
    bool draining;
    uint64_t accepted, refused[8], bytes_in, bytes_out, handed_over;
};

/** A directory's name as a generation: decimal digits, at most 19. */
bool generation_parse(const char *name, uint64_t *gen);
/** A ticket file's content: 32 raw bytes, or 64 hex digits with or without a newline. */
bool ticket_parse(const char *bytes, size_t n, uint8_t key[32]);

/** Finds the sandbox's newest generation below <run>/sb (read again when the directory changed). NULL =
 * unknown sandbox or no readable ticket. Valid until the next call. */
struct ticket *ticket_find(struct relay *r, const char *sandbox);
/** Forgets sandboxes that are gone from the disk and have no stream; called every few seconds. */
void tickets_sweep(struct relay *r);

/** Who asks for what, after every check of internal.md §5 in its order: PREFACE_OK, and `*t` and `*port` are
 * valid. Otherwise the answer, with `*gen` to go with it. */
enum preface_status relay_admit(struct relay *r, const struct preface *p, const uint8_t bytes[PREFACE_LEN],
                                struct ticket **t, uint64_t *gen, uint16_t *port);
/** The same for a stream that is open already: no limit, no port. NULL: it is not to be counted. */
struct ticket *relay_recognise(struct relay *r, const struct preface *p, const uint8_t bytes[PREFACE_LEN]);
/** Counts a stream to a sandbox, and bytes of it. */
void relay_enter(struct ticket *t);
void relay_moved(struct relay *r, struct ticket *t, uint64_t in, uint64_t out);
/** One of r->open has ended; `t` is NULL when it was never in a ticket's count. A relay that drains ends with
 * its last. */
void relay_leave(struct relay *r, struct ticket *t);

/** A connection to a port of a guest that is being made: in.sock, the port, one status byte. */
struct door {
    struct relay *relay;
    struct dp_io io;
    char sandbox[SANDBOX_ID_LEN + 1];
    uint64_t gen;
    uint16_t port;
    int64_t deadline_ms;
    struct dp_timer timer;
    /** The answer, once. When it is PREFACE_OK the owner goes on with `io`, else the door is closed. */
    void (*opened)(struct door *d, enum preface_status status);
};
/** The owner has set `opened`. */
void door_open(struct door *d, struct relay *r, const struct ticket *t, uint16_t port, int64_t deadline_ms);
void door_close(struct door *d, bool reset); /* idempotent; one that was never opened has io.watch.fd = -1 */

/** Begins to accept on r->listener.fd. */
int accept_start(struct relay *r, struct err *e);
/** accept4 has failed: where it is for want of descriptors, both listeners rest for a while. */
void accept_failed(struct relay *r);
/** Takes over an accepted connection. */
void stream_start(struct relay *r, int fd);

/** Serves <run>/relay/link.sock (lib/net/relay_link.h). */
int links_serve(struct relay *r, struct err *e);
/** Accepts no more and closes those that are there: their streams go on, and a successor will count them. */
void links_close(struct relay *r);

/** Serves <run>/relay/activity.sock: to each connection one line per sandbox, "ID GEN OPEN BYTES IDLE_MS",
 * then the end. */
int activity_serve(struct relay *r, struct err *e);
/** Loads CA, certificate and key into r->tls; NULL stays where none is configured, which only loopback and
 * Unix sockets may do. 0, or -1 with ERR_INVALID. */
int relay_tls_load(struct relay *r, struct err *e);

/** Serves /metrics, /healthz, /readyz on a loopback address. */
int relay_admin_serve(struct relay *r, struct err *e);
