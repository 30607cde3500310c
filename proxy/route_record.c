/* Reads a sandbox's route as Redis has it (internal.md §3), field by field. Invariant: nothing is taken that
 * could end a line of a head or name another relay than an address. */
#include "proxy/route.h"

#include "lib/net/loop.h"

#include <stdlib.h>
#include <string.h>

bool route_text_copy(struct str v, char *out, size_t cap)
{
    if (v.n >= cap || !http_value_valid(v.p, v.n))
        return false;
    memcpy(out, v.p, v.n);
    out[v.n] = 0;
    return true;
}

static bool digest_field(struct str v, uint8_t out[32], bool *has)
{
    *has = v.n == 64;
    char text[65];
    if (!*has)
        return v.n == 0;
    memcpy(text, v.p, 64);
    text[64] = 0;
    return hex_decode(text, out, 32);
}

enum route_state route_state_parse(struct str v)
{
    return str_is(v, "running")    ? ROUTE_RUNNING
           : str_is(v, "pausing")  ? ROUTE_PAUSING
           : str_is(v, "paused")   ? ROUTE_PAUSED
           : str_is(v, "resuming") ? ROUTE_RESUMING
                                   : ROUTE_NONE;
}

/* A host may carry a port and ${PORT}; nothing that could end the line or smuggle a header. */
static bool mask_valid(const char *s)
{
    for (; *s; s++)
        if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]${}", *s) == NULL)
            return false;
    return true;
}

bool route_record_take(struct route *r, struct str name, struct str v)
{
    char text[96];
    bool has;
    struct err e = {0};
    if (str_is(name, "node"))
        return route_text_copy(v, r->node, sizeof r->node);
    if (str_is(name, "relay"))
        return v.n == 0 || (route_text_copy(v, text, sizeof text) &&
                            loop_address_parse(text, &r->relay, &r->relay_len, &e) == 0);
    if (str_is(name, "gen")) {
        if (!route_text_copy(v, text, sizeof text))
            return false;
        r->gen = strtoull(text, NULL, 10);
        return v.n && v.n < 20 && strspn(text, "0123456789") == v.n;
    }
    if (str_is(name, "state"))
        r->state = route_state_parse(v);
    else if (str_is(name, "ticket"))
        return digest_field(v, r->ticket, &has);
    else if (str_is(name, "envd_sha256"))
        return digest_field(v, r->envd_sha256, &r->has_envd_token);
    else if (str_is(name, "traffic_sha256"))
        return digest_field(v, r->traffic_sha256, &r->has_traffic_token);
    else if (str_is(name, "auto_resume"))
        r->auto_resume = str_is(v, "1");
    else if (str_is(name, "private"))
        r->private = str_is(v, "1");
    else if (str_is(name, "mask_host"))
        return route_text_copy(v, r->mask_host, sizeof r->mask_host) && mask_valid(r->mask_host);
    return true;
}
