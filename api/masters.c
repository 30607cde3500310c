/* Owns the connections to the masters. Invariant: a worker uses one master until it fails, so that calls of
 * one client stay in order and failures show at once; after a failure the list is gone through in turn. */
#include "api/masters.h"

#include <stdlib.h>
#include <string.h>

struct masters {
    struct rpc_client *clients[MASTERS_MAX];
    unsigned n, current;
};

struct masters *masters_new(struct loop *l, struct rpc_creds *creds, const char *addresses, struct err *e)
{
    struct masters *m = calloc(1, sizeof *m);
    char *list = strdup(addresses);
    if (!m || !list) {
        free(m);
        free(list);
        err_set(e, ERR_INTERNAL, "connecting to masters: out of memory");
        return NULL;
    }
    for (char *save = NULL, *a = strtok_r(list, ", ", &save); a && m->n < MASTERS_MAX;
         a = strtok_r(NULL, ", ", &save)) {
        struct sockaddr_storage addr;
        socklen_t len;
        if (loop_address_parse(a, &addr, &len, e) < 0)
            break;
        m->clients[m->n] = rpc_client_new(l, creds, a, NULL);
        if (!m->clients[m->n]) {
            err_set(e, ERR_INTERNAL, "connecting to master %s: out of memory", a);
            break;
        }
        m->n++;
    }
    free(list);
    if (e->code == ERR_OK && m->n == 0)
        err_set(e, ERR_INVALID, "api.master: no address given");
    if (e->code != ERR_OK) {
        masters_free(m);
        return NULL;
    }
    return m;
}

struct rpc_client *masters_current(struct masters *m, unsigned *number)
{
    *number = m->current;
    return m->clients[m->current % m->n];
}

void masters_failed(struct masters *m, unsigned number)
{
    if (m->current == number)
        m->current++;
}

unsigned masters_count(struct masters *m)
{
    return m->n;
}

void masters_free(struct masters *m)
{
    for (unsigned i = 0; i < m->n; i++)
        rpc_client_free(m->clients[i]);
    free(m);
}
