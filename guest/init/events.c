/* Events. Invariant: bounded: the newest EVENTS_KEPT are kept while nobody listens; a subscriber that does
 * not read loses events, and is told how many. */
#include "guest/init/events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guest/common/notify.h"
#include "guest/init/control.h"
#include "lib/base/clock.h"
#include "proto/init.pb-c.h"

#define EVENTS_KEPT 512
#define FIELDS_MAX 16

static struct {
    uint8_t *data;
    size_t n;
} kept[EVENTS_KEPT];
static unsigned first, used;
static bool listened;

static void keep(const uint8_t *data, size_t n)
{
    uint8_t *copy = malloc(n);
    if (!copy)
        return;
    memcpy(copy, data, n);
    unsigned at = (first + used) % EVENTS_KEPT;
    if (used == EVENTS_KEPT) {
        free(kept[first].data);
        at = first;
        first = (first + 1) % EVENTS_KEPT;
    } else {
        used++;
    }
    kept[at].data = copy;
    kept[at].n = n;
}

static void publish(const char *kind, const char *level, const char *message, const char *const *kv, int n_kv)
{
    Cube__Init__V1__Pair pairs[FIELDS_MAX], *list[FIELDS_MAX];
    Cube__Init__V1__Event event = CUBE__INIT__V1__EVENT__INIT;
    Cube__Init__V1__Reply reply = CUBE__INIT__V1__REPLY__INIT;
    uint8_t data[16384];
    int n = n_kv / 2 < FIELDS_MAX ? n_kv / 2 : FIELDS_MAX;
    for (int i = 0; i < n; i++) {
        cube__init__v1__pair__init(&pairs[i]);
        pairs[i].key = (char *)kv[2 * i];
        pairs[i].value = (char *)kv[2 * i + 1];
        list[i] = &pairs[i];
    }
    event.ts_ms = clock_realtime_ms();
    event.kind = (char *)kind;
    event.level = (char *)level;
    event.message = (char *)message;
    event.n_fields = (size_t)n;
    event.fields = list;
    reply.result_case = CUBE__INIT__V1__REPLY__RESULT_EVENT;
    reply.event = &event;
    if (cube__init__v1__reply__get_packed_size(&reply) > sizeof(data))
        return; /* paths are at most 4 KiB each, commands are cut: this is no event of ours */
    size_t len = cube__init__v1__reply__pack(&reply, data);
    if (control_broadcast(data, len))
        listened = true;
    else
        keep(data, len);
}

void events_from_envd(const struct notify_msg *m)
{
    if (m->n_strings >= 3)
        publish(m->s[0], m->s[1], m->s[2], m->s + 3, m->n_strings - 3);
}

void events_emit(const char *kind, const char *level, const char *message, const char *key, const char *value)
{
    const char *kv[2] = {key, value};
    publish(kind, level, message, kv, key ? 2 : 0);
}

void events_subscribe(struct ctl *c)
{
    control_subscribe(c);
    while (used) {
        control_send_packed(c, kept[first].data, kept[first].n);
        free(kept[first].data);
        first = (first + 1) % EVENTS_KEPT;
        used--;
    }
}
