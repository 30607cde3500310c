/* Owns the memory of names that opened addresses. Invariant: an address is remembered here as long as the
 * programs let it through because of a name, except for those from before a restart, which are all closed at
 * the next change of the sandbox's rules. */
#include "node/daemon/network_names.h"
#include "lib/base/clock.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS 16384
#define NAMES_MAX 1024

struct opened {
    uint32_t ip;
    int64_t
        until_ms; /* CLOCK_BOOTTIME: later than the programs' own clock after a suspend, which closes early */
    char *name;
};

static struct {
    struct opened *list;
    uint32_t n, room;
    bool unknown;
} names[SLOTS];

static void drop(uint32_t slot, uint32_t i)
{
    free(names[slot].list[i].name);
    names[slot].list[i] = names[slot].list[--names[slot].n];
}

/* The place of an address: its own, else a new one; what is over makes room first. */
static struct opened *place(uint32_t slot, uint32_t ip)
{
    int64_t now = clock_boot_ms();
    for (uint32_t i = 0; i < names[slot].n; i++)
        if (names[slot].list[i].ip == ip)
            return &names[slot].list[i];
    for (uint32_t i = names[slot].n; i-- > 0;)
        if (names[slot].list[i].until_ms <= now)
            drop(slot, i);
    if (names[slot].n == NAMES_MAX)
        return NULL;
    if (names[slot].n == names[slot].room) {
        uint32_t room = names[slot].room ? names[slot].room * 2 : 16;
        struct opened *p = realloc(names[slot].list, room * sizeof *p);
        if (!p)
            return NULL;
        names[slot].list = p;
        names[slot].room = room;
    }
    struct opened *o = &names[slot].list[names[slot].n++];
    *o = (struct opened){.ip = ip};
    return o;
}

int network_names_open(struct vs *v, uint32_t slot, const char *name, uint32_t ip, uint32_t ttl_s,
                       struct err *e)
{
    struct opened *o = place(slot, ip);
    char *copy = o ? strdup(name) : NULL;
    if (!copy)
        return err_set(e, ERR_TOO_LARGE, "a sandbox has at most %d addresses open by name; %s stays closed",
                       NAMES_MAX, name);
    free(o->name);
    o->name = copy;
    int64_t until = clock_boot_ms() + (int64_t)ttl_s * 1000;
    if (until > o->until_ms)
        o->until_ms = until;
    return vs_allow_name(v, slot, ip, ttl_s, e);
}

void network_names_review(struct vs *v, uint32_t slot, const struct vs_rules *r)
{
    if (names[slot].unknown)
        vs_forget_names(v, slot);
    names[slot].unknown = false;
    for (uint32_t i = names[slot].n; i-- > 0;) {
        struct opened *o = &names[slot].list[i];
        if (vs_rules_allows_name(r, o->name))
            continue;
        vs_forget_name(v, slot, o->ip);
        drop(slot, i);
    }
}

void network_names_unknown(uint32_t slot)
{
    names[slot].unknown = true;
}

void network_names_forget(uint32_t slot)
{
    while (names[slot].n)
        drop(slot, names[slot].n - 1);
    free(names[slot].list);
    names[slot].list = NULL;
    names[slot].room = 0;
    names[slot].unknown = false;
}

void network_names_each(uint32_t slot,
                        void (*each)(const char *name, uint32_t ip, int64_t left_s, void *data), void *data)
{
    int64_t now = clock_boot_ms();
    for (uint32_t i = 0; i < names[slot].n; i++)
        if (names[slot].list[i].until_ms > now)
            each(names[slot].list[i].name, names[slot].list[i].ip,
                 (names[slot].list[i].until_ms - now) / 1000, data);
}

uint32_t network_names_number(const struct vs_rules *r)
{
    uint32_t sum = (uint32_t)r->n_names;
    for (size_t i = 0; i < r->n_names; i++) {
        uint32_t h = 2166136261u; /* FNV-1a */
        for (const char *p = r->names[i]; *p; p++)
            h = (h ^ (uint8_t)*p) * 16777619u;
        sum += h;
    }
    return sum;
}
