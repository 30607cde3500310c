/* Routes of sandboxes: where one runs, which generation, who may ask. One table per process, read by all
 * workers without a lock, written by the control thread alone (ck_ht + ck_epoch; mutexes under
 * -Dtsan_shims=true). */
#pragma once

#include "proxy/http1.h"

#include "lib/base/err.h"
#include "lib/base/ids.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum route_state { ROUTE_NONE, ROUTE_RUNNING, ROUTE_PAUSING, ROUTE_PAUSED, ROUTE_RESUMING };

struct route {
    char sandbox[SANDBOX_ID_LEN + 1];
    enum route_state state; /* ROUTE_NONE: no such sandbox */
    uint64_t gen;
    char node[64];
    struct sockaddr_storage relay;
    socklen_t relay_len;
    uint8_t ticket[32];
    uint8_t envd_sha256[32], traffic_sha256[32];
    bool has_envd_token, has_traffic_token, auto_resume, private;
    char mask_host[256];
    uint64_t serial; /* grows with each installation; tells two versions apart */
    uint32_t epoch;  /* of the event stream when it was read; older than the cache's = unverified */
};

/** Takes one field of a record; unknown ones are passed over. false: malformed, the record is not to be used.
 */
bool route_record_take(struct route *r, struct str name, struct str value);
/** Copies a value that may stand in a line of a head; false when it may not, or is too long. */
bool route_text_copy(struct str v, char *out, size_t cap);
enum route_state route_state_parse(struct str v);

struct route_cache;
struct route_cache *route_cache_new(void);

/* ---- control thread ---- */

/** Installs a copy; sets `serial` and `epoch` of `r` too. Only ROUTE_RUNNING is kept: everything else is
 * looked up each time. */
void route_cache_put(struct route_cache *c, struct route *r);
void route_cache_drop(struct route_cache *c, const char *sandbox);
bool route_cache_has(struct route_cache *c, const char *sandbox);
/** Copies the route that was last known, verified or not. */
bool route_cache_last(struct route_cache *c, const char *sandbox, struct route *out);
/** Events may have been missed: every route is looked up again before its next use, but while `offline` is
 * set. */
void route_cache_unverify(struct route_cache *c);
void route_cache_offline(struct route_cache *c, bool offline);

/* ---- workers ---- */

struct route_reader;
struct route_reader *route_reader_new(struct route_cache *c); /* one per thread */
/** The serial of the cached and trusted route, or 0. Copies the route to `*out` when its serial is not
 * `known`. */
uint64_t route_cache_get(struct route_reader *r, const char *sandbox, uint64_t known, struct route *out);
