/* Owns the table of sandboxes and the one function that changes a state. Invariant: the record on disk is
 * written before anybody is told of a new state. */
#include "node/daemon/sandbox.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "node/daemon/eventlog.h"
#include "node/daemon/master_link.h"
#include "node/daemon/record.h"
#include "node/daemon/samples.h"

#include <string.h>

#define BUCKETS 1024

struct sandboxes {
    struct sandbox *bucket[BUCKETS];
};

struct sandboxes *sandboxes_new(void)
{
    struct sandboxes *t = calloc(1, sizeof *t);
    if (!t)
        abort();
    return t;
}

static struct sandbox **bucket_of(struct node *n, const char *id)
{
    uint32_t h = 2166136261u;
    for (const char *p = id; *p; p++)
        h = (h ^ (uint8_t)*p) * 16777619u;
    return &n->sandboxes->bucket[h % BUCKETS];
}

struct sandbox *sandbox_find(struct node *n, const char *id)
{
    for (struct sandbox *sb = *bucket_of(n, id); sb; sb = sb->next)
        if (strcmp(sb->id, id) == 0)
            return sb;
    return NULL;
}

void sandbox_each(struct node *n, void (*visit)(struct sandbox *sb, void *data), void *data)
{
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct sandbox *sb = n->sandboxes->bucket[i], *next; sb; sb = next) {
            next = sb->next;
            visit(sb, data);
        }
}

static void count_live(struct sandbox *sb, void *data)
{
    *(unsigned *)data += sandbox_is_live(sb);
}

unsigned sandbox_live_count(struct node *n)
{
    unsigned count = 0;
    sandbox_each(n, count_live, &count);
    return count;
}

static Cube__V1__SandboxSpec *spec_copy(const Cube__V1__SandboxSpec *spec)
{
    size_t n = cube__v1__sandbox_spec__get_packed_size(spec);
    uint8_t *data = malloc(n ? n : 1);
    if (!data)
        abort();
    cube__v1__sandbox_spec__pack(spec, data);
    Cube__V1__SandboxSpec *copy = cube__v1__sandbox_spec__unpack(NULL, n, data);
    free(data);
    if (!copy)
        abort();
    return copy;
}

void sandbox_set_spec(struct sandbox *sb, const Cube__V1__SandboxSpec *spec)
{
    Cube__V1__SandboxSpec *copy = spec_copy(spec);
    if (sb->spec)
        cube__v1__sandbox_spec__free_unpacked(sb->spec, NULL);
    sb->spec = copy;
}

struct sandbox *sandbox_new(struct node *n, const Cube__V1__SandboxSpec *spec)
{
    struct sandbox *sb = calloc(1, sizeof *sb);
    if (!sb)
        abort();
    sb->node = n;
    snprintf(sb->id, sizeof sb->id, "%s", spec->sandbox_id);
    sandbox_set_spec(sb, spec);
    sb->awake = "";
    sb->log = eventlog_new(n, sb->id);
    sb->samples = samples_new();
    struct sandbox **at = bucket_of(n, sb->id);
    sb->next = *at;
    *at = sb;
    return sb;
}

void sandbox_free(struct sandbox *sb)
{
    for (struct sandbox **at = bucket_of(sb->node, sb->id); *at; at = &(*at)->next)
        if (*at == sb) {
            *at = sb->next;
            break;
        }
    cube__v1__sandbox_spec__free_unpacked(sb->spec, NULL);
    eventlog_free(sb->log);
    samples_free(sb->samples);
    free(sb);
}

bool sandbox_is_live(const struct sandbox *sb)
{
    switch (sb->state) {
    case SB_STATE(CREATING):
    case SB_STATE(RUNNING):
    case SB_STATE(PAUSING):
    case SB_STATE(RESUMING):
    case SB_STATE(KILLING):
        return true;
    default:
        return false;
    }
}

bool sandbox_is_over(const struct sandbox *sb)
{
    return sb->state == SB_STATE(KILLED) || sb->state == SB_STATE(FAILED) || sb->state == SB_STATE(LOST);
}

int sandbox_save(struct sandbox *sb, bool durable, struct err *e)
{
    return record_save(sb, durable, e);
}

int sandbox_stale(const struct sandbox *sb, uint64_t gen, struct err *e)
{
    return err_set(e, ERR_STALE_GENERATION, "%s: this node knows gen=%llu, the command says gen=%llu", sb->id,
                   (unsigned long long)sb->gen, (unsigned long long)gen);
}

int sandbox_set_state(struct sandbox *sb, sandbox_state state, const char *reason, struct err *e)
{
    sandbox_state before = sb->state;
    sb->state = state;
    if (reason)
        snprintf(sb->reason, sizeof sb->reason, "%s", reason);
    if (sandbox_is_over(sb) || state == SB_STATE(PAUSED)) {
        sb->ended_ms = clock_realtime_ms();
        sb->deadline_boot_ms = 0;
    }
    if (sandbox_is_over(sb))
        samples_end(sb->samples);
    /* What must survive a crash of the host is made durable by pause.c: with it every VM is gone, and so is
     * what the other states say. */
    if (record_save(sb, false, e) < 0 && !sandbox_is_over(sb)) {
        sb->state = before;
        return -1;
    }
    log_line(LOG_INFO, &(struct log_about){.sandbox = sb->id, .gen = sb->gen}, "%s%s%s",
             protobuf_c_enum_descriptor_get_value(&cube__v1__sandbox_state__descriptor, state)->name,
             reason && *reason ? ": " : "", reason ? reason : "");
    master_link_changed(sb);
    return 0;
}

void sandbox_enter(struct sandbox *sb, sandbox_state state)
{
    sb->state = state;
}

void sandbox_set_deadline(struct sandbox *sb, int64_t remaining_ms)
{
    if (remaining_ms >= 0)
        sb->deadline_boot_ms = clock_boot_ms() + remaining_ms;
}
