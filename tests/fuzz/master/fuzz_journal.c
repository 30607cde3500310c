/* The catalog's journal from any bytes, once as they are and once with right checksums, so that the entries
 * themselves are reached. */
#include "lib/base/buf.h"
#include "lib/base/log.h"
#include "lib/net/crypto.h"
#include "master/journal.h"
#include "master/journal_state.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct read {
    struct journal journal;
    struct journal_state state;
};

static void on_entry(const char *kind, const uint8_t *payload, size_t n, void *data)
{
    struct read *r = data;
    if (payload[n] != 0 || strchr(kind, ' '))
        abort();
    journal_note_node(kind, payload, n, &r->journal);
    journal_state_add(kind, payload, n, &r->state);
}

/* What is written again from the end state has that end state, and nothing dead. */
static void check(const struct journal_state *s)
{
    struct journal_state again;
    size_t alive = 0;
    journal_state_start(&again);
    for (size_t i = 0; i < s->n; i++)
        if (!s->v[i].dead)
            journal_state_add(s->v[i].kind, s->v[i].payload, s->v[i].n, &again);
    for (size_t i = 0; i < s->n; i++) {
        if (s->v[i].dead)
            continue;
        const struct journal_entry *a = &s->v[i], *b = &again.v[alive++];
        if (alive > again.n || b->dead || a->n != b->n || memcmp(a->payload, b->payload, a->n) != 0)
            abort();
    }
    if (alive != again.n)
        abort();
    journal_state_free(&again);
}

static void read_text(const char *text, size_t n)
{
    static char nodes[4096][NODE_ID_MAX + 1];
    struct read r = {.journal = {.nodes = nodes}};
    struct err e = {0};
    char id[JOURNAL_ID_LEN + 1];
    FILE *f = n ? fmemopen((void *)text, n, "r") : NULL;
    if (!f)
        return;
    journal_state_start(&r.state);
    journal_read_stream(f, "fuzz", id, on_entry, &r, &e);
    check(&r.state);
    journal_state_free(&r.state);
    fclose(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    log_init("fuzz", LOG_ERROR);
    read_text((const char *)data, size);
    struct buf b = {0};
    buf_puts(&b, "cube-journal 1 abcdefghijklmnopqrst\n");
    for (size_t at = 0; at < size;) {
        const uint8_t *nl = memchr(data + at, '\n', size - at);
        size_t len = nl ? (size_t)(nl - data) - at : size - at;
        size_t shown = strnlen((const char *)data + at, len);
        char sum[65];
        sha256_hex(data + at, shown, sum);
        buf_append(&b, sum, 8);
        buf_putc(&b, ' ');
        buf_append(&b, data + at, shown);
        buf_putc(&b, '\n');
        at += len + 1;
    }
    read_text(b.data, b.len);
    buf_free(&b);
    return 0;
}
