/* Owns the table of sandboxes seen by this relay. The disk is the truth: <run>/sb/<id>/<gen>/ticket, written
 * by cube-node. An entry is believed only while the directory's mtime is the one that was seen, and older
 * than the clock's granularity. */
#include "node/relay/relay.h"

#include "lib/base/cleanup.h"
#include "lib/base/ids.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static struct ticket **slot_of(struct relay *r, const char *sandbox)
{
    uint32_t h = 2166136261u;
    for (const char *p = sandbox; *p; p++)
        h = (h ^ (uint8_t)*p) * 16777619u;
    return &r->tickets[h % (sizeof r->tickets / sizeof r->tickets[0])];
}

static bool key_read(int dir, uint64_t gen, uint8_t key[32])
{
    char path[40], text[80];
    snprintf(path, sizeof path, "%llu/ticket", (unsigned long long)gen);
    _cleanup_close_ int fd = openat(dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof text);
    bool ok = n > 0 && ticket_parse(text, (size_t)n, key);
    OPENSSL_cleanse(text, sizeof text);
    return ok;
}

static bool newest_generation(int dir, uint64_t *newest)
{
    int fd = dup(dir);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (d == NULL) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    rewinddir(d);
    bool found = false;
    for (struct dirent *ent; (ent = readdir(d));) {
        uint64_t gen;
        if (generation_parse(ent->d_name, &gen) && (!found || gen > *newest)) {
            *newest = gen;
            found = true;
        }
    }
    closedir(d);
    return found;
}

struct ticket *ticket_find(struct relay *r, const char *sandbox)
{
    char path[256];
    if ((size_t)snprintf(path, sizeof path, "%s/sb/%s", r->cfg.run_dir, sandbox) >= sizeof path)
        return NULL;
    struct ticket **slot = slot_of(r, sandbox), *t = *slot;
    while (t && strcmp(t->sandbox, sandbox) != 0)
        t = t->next;

    struct stat st;
    if (t && t->mtime_ns && stat(path, &st) == 0 && st.st_ino == t->inode &&
        st.st_mtim.tv_sec * 1000000000LL + st.st_mtim.tv_nsec == t->mtime_ns)
        return t;

    _cleanup_close_ int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    uint64_t gen = 0;
    uint8_t key[32];
    if (dir < 0 || fstat(dir, &st) != 0 || !newest_generation(dir, &gen) || !key_read(dir, gen, key)) {
        if (t)
            t->mtime_ns = 0;
        return NULL;
    }
    if (t == NULL) {
        t = calloc(1, sizeof *t);
        if (t == NULL)
            return NULL;
        snprintf(t->sandbox, sizeof t->sandbox, "%s", sandbox);
        t->next = *slot;
        *slot = t;
    }
    t->gen = gen;
    memcpy(t->key, key, sizeof key);
    t->inode = st.st_ino;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t mtime = st.st_mtim.tv_sec * 1000000000LL + st.st_mtim.tv_nsec;
    /* A directory that changed just now may change again within the same tick of the file system's clock. */
    t->mtime_ns = now.tv_sec * 1000000000LL + now.tv_nsec - mtime > 50000000 ? mtime : 0;
    return t;
}

void tickets_sweep(struct relay *r)
{
    for (size_t i = 0; i < sizeof r->tickets / sizeof r->tickets[0]; i++) {
        for (struct ticket **at = &r->tickets[i], *t; (t = *at);) {
            char path[256];
            snprintf(path, sizeof path, "%s/sb/%s", r->cfg.run_dir, t->sandbox);
            if (t->open == 0 && access(path, F_OK) != 0 && errno == ENOENT) {
                *at = t->next;
                OPENSSL_cleanse(t->key, sizeof t->key);
                free(t);
            } else {
                at = &t->next;
            }
        }
    }
}
