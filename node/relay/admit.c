/* Who may come in, and what is counted of it, for streams over TCP and over links alike. Invariant: a stream
 * is in its ticket's count from relay_enter to relay_leave. */
#include "node/relay/relay.h"

#include "lib/base/ids.h"

#include <string.h>
#include <time.h>

static struct ticket *ticket_of(struct relay *r, const struct preface *p)
{
    char id[sizeof p->sandbox + 1] = {0};
    memcpy(id, p->sandbox, sizeof p->sandbox);
    return id_sandbox_valid(id, strlen(id)) ? ticket_find(r, id) : NULL;
}

enum preface_status relay_admit(struct relay *r, const struct preface *p, const uint8_t bytes[PREFACE_LEN],
                                struct ticket **t, uint64_t *gen, uint16_t *port)
{
    *t = ticket_of(r, p);
    *gen = *t ? (*t)->gen : 0;
    *port = p->port;
    if (*t == NULL)
        return PREFACE_UNKNOWN;
    if (p->gen != (*t)->gen)
        return PREFACE_STALE;
    enum preface_status status = preface_check(bytes, (*t)->key, (uint32_t)time(NULL));
    if (status == PREFACE_OK && p->port == 0)
        status = PREFACE_PORT_CLOSED;
    if (status == PREFACE_OK && (*t)->open >= r->cfg.max_streams_per_sandbox)
        status = PREFACE_LIMIT;
    return status;
}

struct ticket *relay_recognise(struct relay *r, const struct preface *p, const uint8_t bytes[PREFACE_LEN])
{
    struct ticket *t = ticket_of(r, p);
    return t && p->gen == t->gen && preface_check(bytes, t->key, (uint32_t)time(NULL)) == PREFACE_OK ? t
                                                                                                     : NULL;
}

void relay_enter(struct ticket *t)
{
    t->open++;
    t->streams++;
}

void relay_leave(struct relay *r, struct ticket *t)
{
    if (t)
        t->open--;
    r->open--;
    if (r->draining && r->open == 0)
        dp_loop_stop(r->loop);
}

void relay_moved(struct relay *r, struct ticket *t, uint64_t in, uint64_t out)
{
    if (in + out == 0)
        return;
    t->bytes += in + out;
    t->last_ms = dp_now_ms(r->loop);
    r->bytes_in += in;
    r->bytes_out += out;
}
