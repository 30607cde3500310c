/* Owns the catalog's journal file: text in the store, one entry a line, to which is only appended until it is
 * rewritten (journal_compact.c). Invariant: an entry counts only with its checksum, so a torn last line is as
 * if it had never been written; several masters may append to the same file. */
#include "master/journal.h"

#include "lib/base/buf.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/net/crypto.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#define NODES_MAX 4096

const char *journal_id(const struct journal *j)
{
    return j->id;
}

bool journal_fresh(const struct journal *j)
{
    return j->fresh;
}

static int make_parents(const char *path, struct err *e)
{
    char dir[512];
    if (snprintf(dir, sizeof dir, "%s", path) >= (int)sizeof dir)
        return err_set(e, ERR_INVALID, "the journal's path is too long");
    for (char *p = dir + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = 0;
        if (mkdir(dir, 0750) < 0 && errno != EEXIST)
            return err_sys(e, ERR_INTERNAL, "making %s for the catalog's journal", dir);
        *p = '/';
    }
    return 0;
}

static void checksum(const char *p, size_t n, char out[9])
{
    char hex[65];
    sha256_hex(p, n, hex);
    memcpy(out, hex, 8);
    out[8] = 0;
}

static void line_read(char *line, journal_entry_cb each, void *data)
{
    char sum[9];
    if (strlen(line) < 10 || line[8] != ' ')
        return;
    checksum(line + 9, strlen(line + 9), sum);
    if (memcmp(sum, line, 8) != 0) {
        log_warn("the catalog's journal has a damaged line, it is left out");
        return;
    }
    char *kind = line + 9, *hex = strchr(kind, ' ');
    if (!hex)
        return;
    *hex++ = 0;
    size_t n = strlen(hex) / 2;
    _cleanup_free_ uint8_t *bytes = malloc(n + 1);
    if (!bytes || !hex_decode(hex, bytes, n))
        return;
    bytes[n] = 0;
    each(kind, bytes, n, data);
}

int journal_read_stream(FILE *f, const char *name, char id[JOURNAL_ID_LEN + 1], journal_entry_cb each,
                        void *data, struct err *e)
{
    _cleanup_free_ char *line = NULL;
    size_t cap = 0;
    ssize_t n = getline(&line, &cap, f);
    if (n != (ssize_t)(strlen(JOURNAL_HEADER) + JOURNAL_ID_LEN + 1) ||
        strncmp(line, JOURNAL_HEADER, strlen(JOURNAL_HEADER)) != 0)
        return err_set(e, ERR_INVALID, "%s is not a catalog journal of this version", name);
    memcpy(id, line + strlen(JOURNAL_HEADER), JOURNAL_ID_LEN);
    id[JOURNAL_ID_LEN] = 0;
    while ((n = getline(&line, &cap, f)) > 0) {
        if (line[n - 1] != '\n')
            break; /* torn: the writer died in it */
        line[n - 1] = 0;
        line_read(line, each, data);
    }
    return 0;
}

int journal_read(const char *path, char id[JOURNAL_ID_LEN + 1], journal_entry_cb each, void *data,
                 struct err *e)
{
    _cleanup_fclose_ FILE *f = fopen(path, "re");
    if (!f)
        return err_sys(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_INTERNAL, "opening the catalog's journal %s",
                       path);
    return journal_read_stream(f, path, id, each, data, e);
}

void journal_note_node(const char *kind, const uint8_t *payload, size_t n, void *data)
{
    struct journal *j = data;
    bool gone = strcmp(kind, "unnode") == 0;
    if ((!gone && strcmp(kind, "node") != 0) || n == 0 || n > NODE_ID_MAX)
        return;
    size_t at = 0;
    while (at < j->node_count && strcmp(j->nodes[at], (const char *)payload) != 0)
        at++;
    if (gone && at < j->node_count)
        memmove(j->nodes[at], j->nodes[--j->node_count], sizeof j->nodes[0]);
    else if (!gone && at == j->node_count && at < NODES_MAX)
        snprintf(j->nodes[j->node_count++], sizeof j->nodes[0], "%s", (const char *)payload);
}

static int journal_make(const char *path, struct err *e)
{
    char id[JOURNAL_ID_LEN + 1], text[64], tmp[560];
    id_random(id, JOURNAL_ID_LEN);
    int n = snprintf(text, sizeof text, JOURNAL_HEADER "%s\n", id);
    snprintf(tmp, sizeof tmp, "%s.%s", path, id);
    _cleanup_close_ int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, text, (size_t)n) != n || fsync(fd) < 0)
        return err_sys(e, ERR_INTERNAL, "making the catalog's journal %s", path);
    /* link, not rename: of two masters that start together one must win. */
    int rc = link(tmp, path);
    int saved = errno;
    unlink(tmp);
    if (rc < 0 && saved != EEXIST) {
        errno = saved;
        return err_sys(e, ERR_INTERNAL, "making the catalog's journal %s", path);
    }
    return rc == 0;
}

struct journal *journal_open(const char *path, struct err *e)
{
    struct journal *j = calloc(1, sizeof *j);
    if (!j || !(j->path = strdup(path)) || !(j->nodes = calloc(NODES_MAX, sizeof *j->nodes)))
        abort();
    int rc = make_parents(path, e);
    if (rc == 0 && journal_read(path, j->id, journal_note_node, j, e) < 0) {
        rc = -1;
        if (e->code == ERR_NOT_FOUND) {
            rc = journal_make(path, e);
            j->fresh = rc == 1;
            if (rc >= 0)
                rc = journal_read(path, j->id, journal_note_node, j, e);
        }
    }
    char *real = rc == 0 ? realpath(path, NULL) : NULL; /* a rewritten file takes this name, not a link's */
    if (real) {
        free(j->path);
        j->path = real;
        return j;
    }
    if (rc == 0)
        err_sys(e, ERR_INTERNAL, "opening the catalog's journal %s", path);
    free(j->nodes);
    free(j->path);
    free(j);
    return NULL;
}

void journal_line(struct buf *b, const char *kind, const void *payload, size_t n)
{
    struct buf line = {0};
    char sum[9];
    char *hex = malloc(2 * n + 1);
    if (!hex)
        abort();
    hex_encode(payload, n, hex);
    buf_printf(&line, "%s ", kind);
    buf_append(&line, hex, 2 * n);
    checksum(buf_cstr(&line), line.len, sum);
    buf_printf(b, "%s %s\n", sum, buf_cstr(&line));
    buf_free(&line);
    free(hex);
}

/* The file that has the name now: a master that rewrote it may have done so while this one waited. */
static int open_locked(const struct journal *j, struct err *e)
{
    for (;;) {
        struct stat mine, there;
        int fd = open(j->path, O_RDWR | O_APPEND | O_CLOEXEC);
        if (fd < 0 || flock(fd, LOCK_EX) < 0 || fstat(fd, &mine) < 0) {
            err_sys(e, ERR_INTERNAL, "opening the catalog's journal %s", j->path);
            if (fd >= 0)
                close(fd);
            return -1;
        }
        if (stat(j->path, &there) == 0 && there.st_ino == mine.st_ino && there.st_dev == mine.st_dev)
            return fd;
        close(fd);
    }
}

/* Whole or not at all: half a line that a full disk took would stand in the way of the next one, a whole one
 * that was refused would come back with a replay. */
static int line_write(int fd, const struct buf *b, int64_t end)
{
    for (size_t at = 0; at < b->len;) {
        ssize_t n = write(fd, b->data + at, b->len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break;
        at += (size_t)n;
        if (at == b->len && fdatasync(fd) == 0)
            return 0;
    }
    int saved = errno;
    if (ftruncate(fd, end) < 0)
        log_warn("the catalog's journal keeps a line that was refused: %s", strerror(errno));
    errno = saved;
    return -1;
}

int journal_append(struct journal *j, const char *kind, const void *payload, size_t n, struct err *e)
{
    _cleanup_buf_ struct buf whole = {0};
    struct stat st;
    char last = '\n';
    _cleanup_close_ int fd = open_locked(j, e);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) < 0)
        return err_sys(e, ERR_INTERNAL, "looking at the catalog's journal %s", j->path);
    /* A writer that died in its line must not spoil this one. */
    if (st.st_size > 0 && pread(fd, &last, 1, st.st_size - 1) == 1 && last != '\n')
        buf_append(&whole, "\n", 1);
    journal_line(&whole, kind, payload, n);
    if (whole.failed)
        return err_set(e, ERR_UNAVAILABLE, "writing the catalog's journal %s: out of memory", j->path);
    if (line_write(fd, &whole, st.st_size) < 0)
        return err_sys(e, ERR_INTERNAL, "writing the catalog's journal %s", j->path);
    int64_t size = st.st_size + (int64_t)whole.len;
    if (j->growth && size > (j->compact_at ? j->compact_at : j->growth))
        journal_compact(j, size);
    return 0;
}
