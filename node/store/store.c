/* Owns the store's directory. Invariant: everything below tpl, snap, kernel and tools is complete and
 * flushed, because things get there only by rename from tmp after fsync, and leave only by rename back to tmp
 * (DESIGN.md §3.6). */
#include "node/store/store.h"

#include "lib/base/cleanup.h"
#include "lib/base/ids.h"
#include "node/store/content.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

static const char *const dirs[] = {"tpl", "snap", "kernel", "tools", "vm", "tmp"};

static int mkdir_path(const char *path, struct err *e)
{
    char part[512];
    if ((size_t)snprintf(part, sizeof part, "%s", path) >= sizeof part)
        return err_set(e, ERR_INVALID, "the path of the store is too long: %s", path);
    for (char *p = part + 1;; p++) {
        if (*p && *p != '/')
            continue;
        char was = *p;
        *p = 0;
        if (mkdir(part, 0711) < 0 && errno != EEXIST)
            return err_sys(e, ERR_INTERNAL, "making directory %s", part);
        *p = was;
        if (!was)
            return 0;
    }
}

int store_open(const char *path, struct store *out, struct err *e)
{
    *out = (struct store){.fd = -1};
    if (mkdir_path(path, e) < 0)
        return -1;
    _cleanup_close_ int fd = open(path, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(e, ERR_INTERNAL, "opening the store %s", path);
    for (unsigned i = 0; i < sizeof dirs / sizeof *dirs; i++)
        if (mkdirat(fd, dirs[i], 0700) < 0 && errno != EEXIST)
            return err_sys(e, ERR_INTERNAL, "making %s in the store %s", dirs[i], path);
    out->path = strdup(path);
    out->fd = fd_steal(&fd);
    return 0;
}

void store_close(struct store *s)
{
    if (s->fd >= 0)
        close(s->fd);
    free(s->path);
    *s = (struct store){.fd = -1};
}

int tree_remove(int dir, const char *name, struct err *e)
{
    if (unlinkat(dir, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return err_sys(e, ERR_INTERNAL, "removing %s", name);
    int fd = openat(dir, name, O_DIRECTORY | O_NOFOLLOW | O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(e, ERR_INTERNAL, "opening %s to remove it", name);
    _cleanup_closedir_ DIR *d = fdopendir(fd);
    if (!d) {
        close(fd);
        return err_sys(e, ERR_INTERNAL, "reading %s to remove it", name);
    }
    for (struct dirent *ent; (ent = readdir(d));)
        if (strcmp(ent->d_name, ".") != 0 && strcmp(ent->d_name, "..") != 0 &&
            tree_remove(fd, ent->d_name, e) < 0)
            return -1;
    if (unlinkat(dir, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        return err_sys(e, ERR_INTERNAL, "removing directory %s", name);
    return 0;
}

int file_replace(int dir, const char *name, const void *data, size_t n, bool durable, struct err *e)
{
    char temp[96], suffix[9];
    id_random(suffix, 8);
    snprintf(temp, sizeof temp, ".%s.%s", name, suffix);
    _cleanup_close_ int fd = openat(dir, temp, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_sys(e, ERR_INTERNAL, "making %s", name);
    int rc = 0;
    for (size_t at = 0; at < n && rc == 0;) {
        ssize_t w = write(fd, (const char *)data + at, n - at);
        if (w > 0)
            at += (size_t)w;
        else if (errno != EINTR)
            rc = err_sys(e, ERR_INTERNAL, "writing %s", name);
    }
    if (rc == 0 && durable && fdatasync(fd) < 0)
        rc = err_sys(e, ERR_INTERNAL, "flushing %s", name);
    if (rc == 0 && renameat(dir, temp, dir, name) < 0)
        rc = err_sys(e, ERR_INTERNAL, "publishing %s", name);
    if (rc < 0) {
        unlinkat(dir, temp, 0);
        return -1;
    }
    if (durable && fsync(dir) < 0)
        return err_sys(e, ERR_INTERNAL, "flushing the directory of %s", name);
    return 0;
}

int file_read(int dir, const char *name, size_t max, char **out, size_t *n, struct err *e)
{
    _cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_sys(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_INTERNAL, "opening %s", name);
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(e, ERR_INTERNAL, "looking at %s", name);
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size > max)
        return err_set(e, ERR_INTERNAL, "%s is no file of at most %zu bytes", name, max);
    _cleanup_free_ char *data = malloc((size_t)st.st_size + 1);
    if (!data)
        abort();
    size_t at = 0;
    while (at < (size_t)st.st_size) {
        ssize_t r = pread(fd, data + at, (size_t)st.st_size - at, (off_t)at);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return err_sys(e, ERR_INTERNAL, "reading %s", name);
        if (r == 0)
            break;
        at += (size_t)r;
    }
    data[at] = 0;
    *n = at;
    *out = ptr_steal(data);
    return 0;
}

enum presence store_presence(const struct store *s, const char *artifact)
{
    struct stat st;
    if (fstatat(s->fd, artifact, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return PRESENT;
    return errno == ENOENT || errno == ENOTDIR ? MISSING : PRESENCE_UNKNOWN;
}

int store_open_file(const struct store *s, const char *artifact, const char *file, struct err *e)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", artifact, file);
    int fd = openat(s->fd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_sys(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_INTERNAL, "opening %s of the store", path);
    return fd;
}

int store_hide(struct store *s, const char *artifact, char away[STORE_AWAY_LEN], struct err *e)
{
    char suffix[13];
    id_random(suffix, 12);
    snprintf(away, STORE_AWAY_LEN, "tmp/gone-%s", suffix);
    if (renameat(s->fd, artifact, s->fd, away) == 0)
        return 0;
    away[0] = 0;
    return errno == ENOENT ? 0 : err_sys(e, ERR_INTERNAL, "removing %s from the store", artifact);
}

int store_remove(struct store *s, const char *artifact, struct err *e)
{
    char away[STORE_AWAY_LEN];
    if (store_hide(s, artifact, away, e) < 0)
        return -1;
    return *away ? tree_remove(s->fd, away, e) : 0;
}

int store_list(const struct store *s, const char *dir, char ***names, size_t *count, struct err *e)
{
    *names = NULL;
    *count = 0;
    int fd = openat(s->fd, dir, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : err_sys(e, ERR_INTERNAL, "listing %s of the store", dir);
    _cleanup_closedir_ DIR *d = fdopendir(fd);
    if (!d) {
        close(fd);
        return err_sys(e, ERR_INTERNAL, "listing %s of the store", dir);
    }
    for (struct dirent *ent; (ent = readdir(d));) {
        if (ent->d_name[0] == '.')
            continue;
        char **more = realloc(*names, (*count + 1) * sizeof **names);
        if (!more)
            abort();
        *names = more;
        more[(*count)++] = strdup(ent->d_name);
    }
    return 0;
}

void store_names_free(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

int store_space(const struct store *s, uint64_t *free_bytes, uint64_t *total_bytes, struct err *e)
{
    struct statvfs v;
    if (fstatvfs(s->fd, &v) < 0)
        return err_sys(e, ERR_INTERNAL, "asking for the free space of %s", s->path);
    *free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
    *total_bytes = (uint64_t)v.f_blocks * v.f_frsize;
    return 0;
}

int store_sweep(struct store *s)
{
    int removed = 0;
    char **names;
    size_t n;
    if (store_list(s, "tmp", &names, &n, NULL) < 0)
        return 0;
    for (size_t i = 0; i < n; i++) {
        char path[300];
        snprintf(path, sizeof path, "tmp/%s", names[i]);
        _cleanup_close_ int fd = openat(s->fd, path, O_DIRECTORY | O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0)
            continue; /* another process is still making it */
        removed += tree_remove(s->fd, path, NULL) == 0;
    }
    store_names_free(names, n);
    return removed;
}

int draft_open(struct store *s, struct draft *out, struct err *e)
{
    *out = (struct draft){.store = s, .fd = -1};
    char suffix[17];
    id_random(suffix, 16);
    snprintf(out->name, sizeof out->name, "tmp/%s", suffix);
    if (mkdirat(s->fd, out->name, 0700) < 0)
        return err_sys(e, ERR_INTERNAL, "making a draft in the store %s", s->path);
    out->fd = openat(s->fd, out->name, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    if (out->fd < 0 || flock(out->fd, LOCK_EX | LOCK_NB) < 0)
        return err_sys(e, ERR_INTERNAL, "locking a draft in the store %s", s->path);
    return 0;
}

int draft_create(struct draft *d, const char *file, struct err *e)
{
    int fd = openat(d->fd, file, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_sys(e, ERR_INTERNAL, "making %s in a draft", file);
    return fd;
}

void draft_drop(struct draft *d)
{
    if (d->fd < 0)
        return;
    close(d->fd);
    d->fd = -1;
    tree_remove(d->store->fd, d->name, NULL);
}

/* One file of a draft on its way to being sealed. */
struct seal {
    struct draft *draft;
    struct manifest_file *file;
    pthread_t thread;
    bool threaded;
    int rc;
    struct err error;
};

/* Size and hash for the manifest, and the bytes on the disk. */
static void *seal_file(void *arg)
{
    struct seal *s = arg;
    struct manifest_file *f = s->file;
    _cleanup_close_ int fd = openat(s->draft->fd, f->name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    s->rc = -1;
    if (fd < 0 || fstat(fd, &st) < 0) {
        err_sys(&s->error, ERR_INTERNAL, "sealing %s", f->name);
        return NULL;
    }
    if (f->hash[0] && st.st_nlink > 1) { /* a link to what another artifact has sealed */
        s->rc = 0;
        return NULL;
    }
    f->size = st.st_size;
    sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE); /* the disk works while the hash is made */
    if (!f->hash[0] && content_hash(fd, f->hash, &s->error) < 0)
        return NULL;
    if (fdatasync(fd) < 0) {
        err_sys(&s->error, ERR_INTERNAL, "flushing %s", f->name);
        return NULL;
    }
    content_trust(fd, f->hash);
    s->rc = 0;
    return NULL;
}

/* All files at once: their flushes share one commit of the file system's journal instead of queueing for one
 * each. */
static int draft_seal(struct draft *d, struct manifest *m, struct err *e)
{
    struct seal seal[MANIFEST_MAX_FILES];
    int rc = 0;
    for (unsigned i = 0; i < m->file_count; i++) {
        seal[i] = (struct seal){.draft = d, .file = &m->files[i]};
        bool last = i + 1 == m->file_count;
        seal[i].threaded =
            !last && !m->files[i].hash[0] && pthread_create(&seal[i].thread, NULL, seal_file, &seal[i]) == 0;
        if (!seal[i].threaded)
            seal_file(&seal[i]);
    }
    for (unsigned i = 0; i < m->file_count; i++) {
        if (seal[i].threaded)
            pthread_join(seal[i].thread, NULL);
        if (seal[i].rc < 0 && rc == 0) {
            *e = seal[i].error;
            rc = err_wrap(e, "%s", m->id);
        }
    }
    return rc;
}

static int publish(struct draft *d, const char *artifact, struct err *e)
{
    struct store *s = d->store;
    if (renameat2(s->fd, d->name, s->fd, artifact, RENAME_NOREPLACE) < 0) {
        if (errno != EEXIST && errno != ENOTEMPTY)
            return err_sys(e, ERR_INTERNAL, "publishing %s", artifact);
        draft_drop(d);
        return 0;
    }
    close(d->fd);
    d->fd = -1;
    char parent[256];
    snprintf(parent, sizeof parent, "%s", artifact);
    *strrchr(parent, '/') = 0;
    _cleanup_close_ int fd = openat(s->fd, parent, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fsync(fd) == 0)
        return 0;
    err_sys(e, ERR_INTERNAL, "flushing %s of the store", parent);
    store_remove(s, artifact, NULL); /* whoever asked goes on and changes what it linked into the draft */
    return -1;
}

int draft_publish(struct draft *d, struct manifest *m, const char *artifact, struct err *e)
{
    if (draft_seal(d, m, e) < 0)
        return -1;
    _cleanup_buf_ struct buf text = {0};
    manifest_write(m, &text);
    if (text.failed)
        return err_set(e, ERR_INTERNAL, "out of memory for the manifest of %s", artifact);
    if (file_replace(d->fd, "manifest.json", text.data, text.len, true, e) < 0)
        return -1;
    return publish(d, artifact, e);
}
