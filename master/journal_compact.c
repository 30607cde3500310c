/* Rewrites the journal without what was replaced or deleted. Invariant: whoever opens the file, at any moment
 * and after any crash, finds the old one or the new one, both whole and with the same end state and ID. */
#include "master/journal.h"

#include "lib/base/buf.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "master/journal_state.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int directory_sync(const char *path, struct err *e)
{
    char dir[512];
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash)
        *(slash == dir ? slash + 1 : slash) = 0;
    _cleanup_close_ int fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 || fsync(fd) < 0 ? err_sys(e, ERR_INTERNAL, "making the directory %s durable", dir) : 0;
}

static int write_all(int fd, const struct buf *b)
{
    for (size_t at = 0; at < b->len;) {
        ssize_t n = write(fd, b->data + at, b->len - at);
        if (n < 0)
            return -1;
        at += (size_t)n;
    }
    return 0;
}

static int64_t rewrite(const struct journal *j, const char *tmp, struct err *e)
{
    _cleanup_journal_state_ struct journal_state s;
    _cleanup_buf_ struct buf b = {0};
    char id[JOURNAL_ID_LEN + 1];
    journal_state_start(&s);
    if (journal_read(j->path, id, journal_state_add, &s, e) < 0)
        return -1;
    buf_printf(&b, JOURNAL_HEADER "%s\n", id);
    for (size_t i = 0; i < s.n; i++)
        if (!s.v[i].dead)
            journal_line(&b, s.v[i].kind, s.v[i].payload, s.v[i].n);
    if (b.failed)
        return err_set(e, ERR_UNAVAILABLE, "rewriting the catalog's journal: out of memory");
    _cleanup_close_ int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct stat st;
    if (fd < 0 || stat(j->path, &st) < 0 || fchmod(fd, st.st_mode & 07777) < 0 || write_all(fd, &b) < 0 ||
        fsync(fd) < 0 || rename(tmp, j->path) < 0) {
        err_sys(e, ERR_INTERNAL, "rewriting the catalog's journal %s", j->path);
        unlink(tmp);
        return -1;
    }
    return directory_sync(j->path, e) < 0 ? -1 : (int64_t)b.len;
}

void journal_compact(struct journal *j, int64_t size)
{
    struct err e = {0};
    char tmp[560];
    snprintf(tmp, sizeof tmp, "%s.new", j->path); /* whoever holds the lock may write it */
    int64_t now = rewrite(j, tmp, &e);
    if (now < 0) {
        log_fail(&e,
                 "the catalog's journal stays as it is"); /* nothing is lost; another try when it has grown */
        now = size;
    } else {
        log_info("the catalog's journal was rewritten: %lld bytes of %lld", (long long)now, (long long)size);
    }
    j->compact_at = now + (now > j->growth ? now : j->growth);
}
