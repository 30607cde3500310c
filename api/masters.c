/* Owns the connections to the masters. Invariants: a worker uses one master until it fails, so that calls of
 * one client stay in order and failures show at once; after a failure the list is gone through in turn; a
 * master that left the list lives until its last call is over. */
#include "api/masters.h"

#include "lib/base/ids.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct master {
    struct rpc_client *client;
    char address[MASTER_ADDRESS_MAX];
    uint64_t score; /* the higher, the more this worker prefers it */
    unsigned calls;
    bool gone; /* not in the list any more */
};

struct masters {
    struct loop *loop;
    struct rpc_creds *creds;
    struct master *list[MASTERS_MAX];
    unsigned n, current;
    bool spread;
    uint64_t salt;
};

struct masters *masters_new(struct loop *l, struct rpc_creds *creds, bool spread)
{
    struct masters *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    *m = (struct masters){.loop = l, .creds = creds, .spread = spread};
    random_bytes(&m->salt, sizeof m->salt);
    return m;
}

/* Rendezvous hashing: each worker orders the addresses by a hash of its own. */
static uint64_t score(const struct masters *m, const char *address, unsigned place)
{
    if (!m->spread)
        return MASTERS_MAX - place;
    uint64_t h = m->salt;
    for (; *address; address++)
        h = (h ^ (unsigned char)*address) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

static struct master *find(struct master *const *list, unsigned n, const char *address)
{
    for (unsigned i = 0; i < n; i++)
        if (strcmp(list[i]->address, address) == 0)
            return list[i];
    return NULL;
}

/* Names are resolved when the connection is made. */
static int address_check(const char *address, struct err *e)
{
    const char *port = strrchr(address, ':');
    if (strlen(address) >= MASTER_ADDRESS_MAX)
        return err_set(e, ERR_INVALID, "the address of a master is longer than %d bytes",
                       MASTER_ADDRESS_MAX - 1);
    if (strncmp(address, "unix:/", 6) == 0)
        return 0;
    long n =
        port && port > address && strspn(port + 1, "0123456789") == strlen(port + 1) ? atol(port + 1) : 0;
    return n >= 1 && n <= 65535 ? 0 : err_set(e, ERR_INVALID, "\"%s\" is not host:port", address);
}

static struct master *open_one(struct masters *m, const char *address, struct err *e)
{
    if (address_check(address, e) < 0)
        return NULL;
    struct master *one = calloc(1, sizeof *one);
    if (one)
        one->client = rpc_client_new(m->loop, m->creds, address, NULL);
    if (!one || !one->client) {
        free(one);
        err_set(e, ERR_INTERNAL, "connecting to master %s: out of memory", address);
        return NULL;
    }
    snprintf(one->address, sizeof one->address, "%s", address);
    return one;
}

static void close_one(struct master *one)
{
    rpc_client_free(one->client);
    free(one);
}

static void retire(struct master *one)
{
    one->gone = true;
    if (one->calls == 0)
        close_one(one);
}

static int by_score(const void *a, const void *b)
{
    const struct master *x = *(struct master *const *)a, *y = *(struct master *const *)b;
    return x->score < y->score ? 1 : x->score > y->score ? -1 : strcmp(x->address, y->address);
}

int masters_set(struct masters *m, const char *addresses, struct err *e)
{
    struct master *next[MASTERS_MAX];
    unsigned n = 0;
    char *list = strdup(addresses), *save = NULL;
    if (!list)
        return err_set(e, ERR_INTERNAL, "connecting to masters: out of memory");
    for (char *a = strtok_r(list, ", ", &save); a && n < MASTERS_MAX && e->code == ERR_OK;
         a = strtok_r(NULL, ", ", &save)) {
        if (find(next, n, a))
            continue;
        struct master *one = find(m->list, m->n, a);
        if (!one)
            one = open_one(m, a, e);
        if (!one)
            break;
        one->score = score(m, a, n);
        next[n++] = one;
    }
    free(list);
    if (e->code == ERR_OK && n == 0)
        err_set(e, ERR_INVALID, "no address of a master is given");
    if (e->code != ERR_OK) {
        for (unsigned i = 0; i < n; i++)
            if (!find(m->list, m->n, next[i]->address))
                close_one(next[i]);
        return -1;
    }
    bool same = n == m->n;
    for (unsigned i = 0; i < m->n; i++)
        if (!find(next, n, m->list[i]->address)) {
            same = false;
            retire(m->list[i]);
        }
    if (same)
        return 0; /* also keeps the place in the list, which a failure may have moved */
    qsort(next, n, sizeof next[0], by_score);
    memcpy(m->list, next, n * sizeof next[0]);
    m->n = n;
    m->current = 0;
    return 0;
}

struct master *masters_take(struct masters *m)
{
    if (m->n == 0)
        return NULL;
    struct master *one = m->list[m->current];
    one->calls++;
    return one;
}

struct rpc_client *master_client(struct master *one)
{
    return one->client;
}

void masters_leave(struct master *one)
{
    one->calls--;
    if (one->gone && one->calls == 0)
        close_one(one);
}

void masters_failed(struct masters *m, struct master *one)
{
    if (m->n && m->list[m->current] == one)
        m->current = (m->current + 1) % m->n;
}

unsigned masters_count(struct masters *m)
{
    return m->n;
}

void masters_free(struct masters *m)
{
    for (unsigned i = 0; i < m->n; i++)
        close_one(m->list[i]);
    free(m);
}
