/* Reading, writing and merging of delta files and working sets. Invariant: a table that was read is sorted
 * and without overlaps, so those who use it need check nothing. */
#include "node/vmm/memfile.h"

#include "lib/base/cleanup.h"
#include "node/vmm/crc.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

static const char *magic_of(bool working_set)
{
    return working_set ? "CUBEWST1" : "CUBEMDL1";
}

void mem_extents_free(struct mem_extents *x)
{
    free(x->v);
    *x = (struct mem_extents){0};
}

int mem_extents_add(struct mem_extents *x, uint64_t offset, uint64_t length)
{
    if (x->n) {
        struct mem_extent *last = &x->v[x->n - 1];
        if (last->offset + (last->length & ~1ull) == offset && (last->length & 1) == (length & 1)) {
            last->length += length & ~1ull;
            return 0;
        }
    }
    if (x->n == x->cap) {
        uint64_t cap = x->cap ? x->cap * 2 : 512;
        struct mem_extent *v = realloc(x->v, cap * sizeof *v);
        if (!v)
            return -1;
        x->v = v;
        x->cap = cap;
    }
    x->v[x->n++] = (struct mem_extent){offset, length};
    return 0;
}

uint64_t mem_extents_bytes(const struct mem_extents *x)
{
    uint64_t sum = 0;

    for (uint64_t i = 0; i < x->n; i++)
        sum += x->v[i].length & ~1ull;
    return sum;
}

static int write_at(int fd, const void *p, uint64_t n, uint64_t off)
{
    for (uint64_t done = 0; done < n;) {
        ssize_t w = pwrite(fd, (const uint8_t *)p + done, n - done, (off_t)(off + done));
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return -1;
        done += (uint64_t)w;
    }
    return 0;
}

static int read_at(int fd, void *p, uint64_t n, uint64_t off)
{
    for (uint64_t done = 0; done < n;) {
        ssize_t r = pread(fd, (uint8_t *)p + done, n - done, (off_t)(off + done));
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return -1;
        done += (uint64_t)r;
    }
    return 0;
}

int64_t memfile_write_table(int fd, bool working_set, uint64_t memory_bytes, const struct mem_extents *x,
                            struct err *e)
{
    uint64_t table = x->n * sizeof x->v[0];
    struct memfile_header h = {
        .version = MEMFILE_VERSION, .page = MEMFILE_PAGE, .memory_bytes = memory_bytes, .nextents = x->n};

    memcpy(h.magic, magic_of(working_set), 8);
    if (!working_set)
        h.data_off = (sizeof h + table + MEMFILE_PAGE - 1) & ~(MEMFILE_PAGE - 1);
    h.table_crc = crc32c(0, x->v, table);
    h.crc = crc32c(0, &h, offsetof(struct memfile_header, crc));
    if (write_at(fd, &h, sizeof h, 0) < 0 || write_at(fd, x->v, table, sizeof h) < 0)
        return err_sys(e, ERR_INTERNAL, "write the table of a memory file");
    return (int64_t)h.data_off;
}

static int table_check(const struct memfile_header *h, const struct mem_extents *x, bool working_set,
                       uint64_t file_bytes, struct err *e)
{
    uint64_t end = 0, pages = 0;

    for (uint64_t i = 0; i < x->n; i++) {
        uint64_t off = x->v[i].offset, len = x->v[i].length & ~1ull;

        if (off < end || off % MEMFILE_PAGE || len == 0 || len % MEMFILE_PAGE || off >= h->memory_bytes ||
            len > h->memory_bytes - off || (!working_set && (x->v[i].length & 1)))
            return err_set(e, ERR_INVALID, "memory file: extent %llu is damaged", (unsigned long long)i);
        end = off + len;
        pages += len;
    }
    uint64_t table_end = sizeof *h + x->n * sizeof x->v[0];
    if (!working_set && (h->data_off < table_end || h->data_off % MEMFILE_PAGE || file_bytes < h->data_off ||
                         file_bytes - h->data_off < pages))
        return err_set(e, ERR_INVALID, "memory file: truncated");
    return 0;
}

int memfile_read_table(int fd, bool working_set, uint64_t memory_bytes, struct mem_extents *x,
                       uint64_t *data_off, struct err *e)
{
    struct memfile_header h;
    struct stat st;

    if (fstat(fd, &st) < 0 || read_at(fd, &h, sizeof h, 0) < 0)
        return err_set(e, ERR_INVALID, "memory file: cannot be read, or is truncated");
    if (memcmp(h.magic, magic_of(working_set), 8) ||
        h.crc != crc32c(0, &h, offsetof(struct memfile_header, crc)))
        return err_set(e, ERR_INVALID, "memory file: the header is damaged");
    if (h.version != MEMFILE_VERSION || h.page != MEMFILE_PAGE)
        return err_set(e, ERR_INVALID, "memory file: version %u is not supported", h.version);
    if (h.memory_bytes != memory_bytes)
        return err_set(e, ERR_INVALID, "memory file: of a guest with %llu bytes",
                       (unsigned long long)h.memory_bytes);
    if (h.nextents > MEMFILE_EXTENTS_MAX)
        return err_set(e, ERR_INVALID, "memory file: %llu extents", (unsigned long long)h.nextents);
    uint64_t table = h.nextents * sizeof x->v[0];
    *x = (struct mem_extents){.v = malloc(table + 1), .n = h.nextents, .cap = h.nextents};
    if (!x->v)
        return err_set(e, ERR_INTERNAL, "out of memory");
    if (read_at(fd, x->v, table, sizeof h) < 0 || crc32c(0, x->v, table) != h.table_crc) {
        mem_extents_free(x);
        return err_set(e, ERR_INVALID, "memory file: the table is damaged");
    }
    if (table_check(&h, x, working_set, (uint64_t)st.st_size, e) < 0) {
        mem_extents_free(x);
        return -1;
    }
    *data_off = h.data_off;
    return 0;
}

struct layer_view {
    struct mem_extents x;
    uint64_t data_off;
    uint64_t at;   /* extent that covers or follows the page looked at */
    uint64_t seen; /* bytes of pages in the extents before `at` */
};

/* Whether the delta has the page at `off` (asked in rising order), and where in its file. */
static bool view_find(struct layer_view *v, uint64_t off, uint64_t *file_off, uint64_t *next)
{
    while (v->at < v->x.n && v->x.v[v->at].offset + v->x.v[v->at].length <= off)
        v->seen += v->x.v[v->at++].length;
    if (v->at == v->x.n) {
        *next = UINT64_MAX;
        return false;
    }
    const struct mem_extent *m = &v->x.v[v->at];
    if (off < m->offset) {
        *next = m->offset;
        return false;
    }
    *file_off = v->data_off + v->seen + (off - m->offset);
    *next = m->offset + m->length;
    return true;
}

/* Calls `visit` for each run of pages, with the newest delta that has it. */
static int runs_visit(struct layer_view *v, unsigned n, uint64_t bytes,
                      int (*visit)(void *data, unsigned which, uint64_t file_off, uint64_t off, uint64_t len),
                      void *data)
{
    for (unsigned i = 0; i < n; i++)
        v[i].at = v[i].seen = 0;
    for (uint64_t off = 0; off < bytes;) {
        uint64_t end = bytes, file_off = 0, where = 0;
        unsigned which = n;

        for (unsigned i = n; i-- > 0;) {
            uint64_t next;
            bool has = view_find(&v[i], off, &where, &next);
            if (next < end)
                end = next;
            if (has && which == n) {
                which = i;
                file_off = where;
            }
            if (has)
                break; /* older ones lie below and are hidden up to `end` */
        }
        if (which < n && visit(data, which, file_off, off, end - off) < 0)
            return -1;
        off = end;
    }
    return 0;
}

struct merge {
    struct mem_extents x;
    const int *fds;
    int out;
    uint64_t pos;
    uint8_t *copy;
};
#define MERGE_COPY (1u << 20)

static int merge_list(void *data, unsigned which, uint64_t file_off, uint64_t off, uint64_t len)
{
    return mem_extents_add(&((struct merge *)data)->x, off, len);
}

static int merge_copy(void *data, unsigned which, uint64_t file_off, uint64_t off, uint64_t len)
{
    struct merge *m = data;

    while (len) {
        uint64_t part = len < MERGE_COPY ? len : MERGE_COPY;
        if (read_at(m->fds[which], m->copy, part, file_off) < 0 ||
            write_at(m->out, m->copy, part, m->pos) < 0)
            return -1;
        m->pos += part;
        file_off += part;
        len -= part;
    }
    return 0;
}

int memfile_merge(const int *fds, unsigned n, uint64_t memory_bytes, int out_fd, struct err *e)
{
    struct merge m = {.fds = fds, .out = out_fd};
    struct layer_view v[16] = {0};
    int rc = -1;

    if (n == 0 || n > sizeof v / sizeof v[0])
        return err_set(e, ERR_INVALID, "merge of %u memory files", n);
    unsigned opened = 0;
    while (opened < n &&
           memfile_read_table(fds[opened], false, memory_bytes, &v[opened].x, &v[opened].data_off, e) == 0)
        opened++;
    m.copy = malloc(MERGE_COPY);
    if (opened == n && m.copy) {
        rc = runs_visit(v, n, memory_bytes, merge_list, &m);
        int64_t off = rc < 0 ? -1 : memfile_write_table(out_fd, false, memory_bytes, &m.x, e);
        m.pos = (uint64_t)off;
        rc = off < 0 ? -1 : runs_visit(v, n, memory_bytes, merge_copy, &m);
        if (rc < 0 && !(e && e->code))
            err_sys(e, ERR_INTERNAL, "merge memory files");
    }
    for (unsigned i = 0; i < opened; i++)
        mem_extents_free(&v[i].x);
    mem_extents_free(&m.x);
    free(m.copy);
    return rc;
}
