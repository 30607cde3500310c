/* inotify with recursion. Invariant: a directory that appears below the root is watched before it is scanned,
 * and what the scan reported is not reported again, so each new file is reported once, however the two race.
 * The names that an upload has before it is there (fs_upload.c) are nobody's business: a file that is
 * replaced by one is reported as written. */
#include "guest/envd/watcher.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "guest/envd/fs.h"
#include "guest/envd/fs_path.h"
#include "guest/envd/fsid.h"
#include "lib/base/cleanup.h"

#define MASK                                                                                                 \
    (IN_CREATE | IN_DELETE | IN_MODIFY | IN_ATTRIB | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF |          \
     IN_MOVE_SELF | IN_ONLYDIR | IN_EXCL_UNLINK)

/* File systems whose changes on other machines inotify cannot see (statfs(2)). */
static bool is_network(const char *path)
{
    struct statfs fs;
    if (statfs(path, &fs) < 0)
        return false;
    switch ((unsigned long)fs.f_type) {
    case 0x6969:     /* NFS */
    case 0xff534d42: /* CIFS */
    case 0xfe534d42: /* SMB2 */
    case 0x517b:     /* SMB */
    case 0x01021997: /* 9P */
    case 0x65735546: /* FUSE */
    case 0x00c36400: /* Ceph */
        return true;
    default:
        return false;
    }
}

static struct watch_node *node_find(struct watcher *w, int wd)
{
    size_t lo = 0, hi = w->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (w->nodes[mid].wd < wd)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < w->n && w->nodes[lo].wd == wd ? &w->nodes[lo] : NULL;
}

static void seen_free(struct watch_node *node)
{
    for (size_t i = 0; i < node->n_seen; i++)
        free(node->seen[i]);
    free(node->seen);
    node->seen = NULL;
    node->n_seen = 0;
}

static void node_remove(struct watcher *w, struct watch_node *node)
{
    free(node->rel);
    seen_free(node);
    size_t at = (size_t)(node - w->nodes);
    memmove(node, node + 1, (w->n - at - 1) * sizeof(*node));
    w->n--;
}

/* Returns the node of the directory, an existing one when the inode is watched already. */
static struct watch_node *node_add(struct watcher *w, const char *full, const char *rel)
{
    if (w->n == WATCH_NODES_MAX) {
        errno = ENOSPC;
        return NULL;
    }
    int wd = inotify_add_watch(w->fd, full, MASK | (*rel ? IN_DONT_FOLLOW : 0));
    if (wd < 0)
        return NULL;
    struct watch_node *old = node_find(w, wd);
    char *copy = strdup(rel);
    if (old && copy) { /* the same directory under a new name */
        free(old->rel);
        old->rel = copy;
        return old;
    }
    if (w->n == w->cap) {
        size_t cap = w->cap ? w->cap * 2 : 8;
        struct watch_node *more = realloc(w->nodes, cap * sizeof(*more));
        if (!more) {
            free(copy);
            return NULL;
        }
        w->nodes = more;
        w->cap = cap;
    }
    if (!copy)
        return NULL;
    w->nodes[w->n] = (struct watch_node){.wd = wd, .rel = copy};
    return &w->nodes[w->n++];
}

/* a/b; a path that does not fit becomes "", which names nothing that exists. */
static void path_join(char out[PATH_MAX], const char *a, const char *b)
{
    size_t n = strlen(a), k = strlen(b), slash = n && k;
    out[0] = 0;
    if (n + slash + k >= PATH_MAX)
        return;
    memcpy(out, a, n);
    out[n] = '/';
    memcpy(out + n + slash, b, k + 1);
}

static void seen_add(struct watcher *w, int wd, const char *name)
{
    struct watch_node *node = node_find(w, wd);
    char **more = node ? realloc(node->seen, (node->n_seen + 1) * sizeof(char *)) : NULL;
    if (!more)
        return;
    node->seen = more;
    if ((node->seen[node->n_seen] = strdup(name)))
        node->n_seen++;
}

static bool seen_take(struct watch_node *node, const char *name)
{
    for (size_t i = 0; i < node->n_seen; i++)
        if (!strcmp(node->seen[i], name)) {
            free(node->seen[i]);
            node->seen[i] = node->seen[--node->n_seen];
            return true;
        }
    return false;
}

/* Directories still to be watched: a list, not recursion, because a tree may be deeper than a worker's stack.
 */
struct todo {
    char **v;
    size_t n, cap;
};

static bool todo_add(struct todo *t, const char *rel)
{
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 64;
        char **more = cap > WATCH_NODES_MAX ? NULL : realloc(t->v, cap * sizeof(*more));
        if (!more) {
            errno = ENOSPC;
            return false;
        }
        t->v = more;
        t->cap = cap;
    }
    return (t->v[t->n] = strdup(rel)) != NULL && ++t->n;
}

/* Watches one directory and lists those in it. With `report`, what is found there is new and is reported. */
static int directory_add(struct watcher *w, const char *rel, bool report, struct todo *todo)
{
    char full[PATH_MAX], sub[PATH_MAX];
    path_join(full, w->path, rel);
    struct watch_node *node = node_add(w, full, rel);
    if (!node)
        return -1;
    int wd = node->wd; /* the array may move */
    if (!w->recursive)
        return 0;
    _cleanup_closedir_ DIR *d = opendir(full);
    struct dirent *de;
    while (d && (de = readdir(d))) {
        if (!strcmp(de->d_name, ".") || !strcmp(de->d_name, ".."))
            continue;
        path_join(sub, rel, de->d_name);
        struct stat st = {0};
        bool dir = de->d_type == DT_DIR;
        if ((report && !dir) || de->d_type == DT_UNKNOWN)
            dir = fstatat(dirfd(d), de->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
        if (report && !fs_upload_name(de->d_name)) {
            w->on_event(w->owner, sub, EVENT_CREATE);
            if (S_ISREG(st.st_mode) && st.st_size)
                w->on_event(w->owner, sub, EVENT_WRITE); /* before it was watched */
            seen_add(w, wd, de->d_name);
        }
        if (dir && *sub && !todo_add(todo, sub))
            return -1;
    }
    return 0;
}

/* Watches `rel` and everything below it. Only what is wrong with `rel` itself, or a limit, is an error: the
 * rest was removed meanwhile or is not the user's to read. */
static int tree_add(struct watcher *w, const char *rel, bool report)
{
    struct todo todo = {0};
    int rc = directory_add(w, rel, report, &todo), sys = errno;
    while (todo.n) {
        char *next = todo.v[--todo.n];
        if (rc == 0 && directory_add(w, next, report, &todo) < 0 && (errno == ENOSPC || errno == ENOMEM)) {
            rc = -1;
            sys = errno;
        }
        free(next);
    }
    free(todo.v);
    errno = sys;
    return rc;
}

static int open_op(void *arg, struct err *e)
{
    struct watcher *w = arg;
    struct stat st;
    _cleanup_close_ int fd = fs_open(w->path, O_PATH);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, ERR_NOT_FOUND, "path '%s'", w->path);
    if (!S_ISDIR(st.st_mode)) {
        errno = ENOTDIR;
        return err_sys(e, ERR_INVALID, "path '%s' is not a directory", w->path);
    }
    if (!w->allow_network && is_network(w->path))
        return err_set(e, ERR_INVALID, "cannot watch path on network filesystem: '%s'", w->path);
    if (tree_add(w, "", false) < 0)
        return err_sys(e, ERR_INTERNAL, "watching '%s'", w->path);
    return 0;
}

int watcher_open(struct watcher *w, struct err *e)
{
    w->fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (w->fd < 0)
        return err_sys(e, ERR_INTERNAL, "creating a watcher");
    return fs_as_user(&w->user, open_op, w, e);
}

void watcher_close(struct watcher *w)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
    while (w->n)
        node_remove(w, &w->nodes[w->n - 1]);
    free(w->nodes);
    w->nodes = NULL;
    w->cap = 0;
}

/* A directory was moved away: it and everything below is no longer ours. */
static void subtree_drop(struct watcher *w, const char *rel)
{
    size_t n = strlen(rel);
    for (size_t i = w->n; i-- > 0;) {
        struct watch_node *node = &w->nodes[i];
        if (!strncmp(node->rel, rel, n) && (!node->rel[n] || node->rel[n] == '/')) {
            inotify_rm_watch(w->fd, node->wd);
            node_remove(w, node);
        }
    }
}

/* A rename is two events, one after the other. The first is held back until it is known that the second is
 * not that of a replaced file, which leaves under an upload's name. */
static void moved_report(struct watcher *w, const struct inotify_event *next)
{
    if (!w->moved)
        return;
    bool replaced =
        next && next->mask & IN_MOVED_TO && next->cookie == w->moved && fs_upload_name(next->name);
    w->moved = 0;
    if (!replaced)
        w->on_event(w->owner, w->moved_rel, EVENT_RENAME);
}

/* A file of O_TMPFILE is "#<inode>" in its directory, where nothing has that name. */
static bool nameless(const struct watcher *w, const char *rel, const char *name)
{
    char full[PATH_MAX];
    struct stat st;
    if (name[0] != '#' || !name[1] || strspn(name + 1, "0123456789") != strlen(name + 1))
        return false;
    path_join(full, w->path, rel);
    return lstat(full, &st) < 0;
}

static void event_take(struct watcher *w, const struct inotify_event *ev)
{
    char rel[PATH_MAX];
    moved_report(w, ev->len ? ev : NULL);
    struct watch_node *node = node_find(w, ev->wd);
    if (!node)
        return;
    if (ev->mask & IN_IGNORED) {
        node_remove(w, node);
        return;
    }
    if (!ev->len) { /* about the directory itself: its parent reports it, except for the root */
        if (!*node->rel && ev->mask & (IN_DELETE_SELF | IN_MOVE_SELF))
            w->on_event(w->owner, ".", ev->mask & IN_DELETE_SELF ? EVENT_REMOVE : EVENT_RENAME);
        return;
    }
    if (fs_upload_name(ev->name)) {
        if (ev->mask & IN_MOVED_FROM)
            w->published = ev->cookie;
        return;
    }
    path_join(rel, node->rel, ev->name);
    if (nameless(w, rel, ev->name))
        return;
    if (ev->mask & IN_MOVED_TO && ev->cookie == w->published) {
        w->on_event(w->owner, rel, EVENT_WRITE);
        return;
    }
    bool known = node->n_seen && ev->mask & IN_CREATE && seen_take(node, ev->name);
    if (ev->mask & (IN_CREATE | IN_MOVED_TO) && !known)
        w->on_event(w->owner, rel, EVENT_CREATE);
    if (ev->mask & IN_MOVED_FROM) {
        w->moved = ev->cookie;
        memcpy(w->moved_rel, rel, strlen(rel) + 1);
    }
    if (ev->mask & IN_ATTRIB)
        w->on_event(w->owner, rel, EVENT_CHMOD);
    if (ev->mask & IN_MODIFY)
        w->on_event(w->owner, rel, EVENT_WRITE);
    if (ev->mask & IN_DELETE)
        w->on_event(w->owner, rel, EVENT_REMOVE);
    if (!w->recursive || !(ev->mask & IN_ISDIR))
        return;
    if (ev->mask & IN_MOVED_FROM)
        subtree_drop(w, rel);
    if (ev->mask & (IN_CREATE | IN_MOVED_TO)) {
        bool other = fsid_enter(&w->user);
        tree_add(w, rel,
                 ev->mask & IN_CREATE); /* gone again, or not readable for the user: nothing to watch */
        if (other)
            fsid_leave();
    }
}

int watcher_read(struct watcher *w, size_t max)
{
    char batch[16 * 1024] __attribute__((aligned(8)));
    size_t least = sizeof(struct inotify_event) + NAME_MAX + 1; /* less does not fit the longest event */
    max = max < least ? least : max > sizeof(batch) ? sizeof(batch) : max;
    ssize_t n = read(w->fd, batch, max);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        for (size_t i = 0; i < w->n; i++)
            seen_free(&w->nodes[i]);
        moved_report(w, NULL);
        return 0;
    }
    if (n <= 0)
        return -1;
    for (char *p = batch; p < batch + n;) {
        const struct inotify_event *ev = (const struct inotify_event *)p;
        if (ev->mask & IN_Q_OVERFLOW) {
            w->overflow = true;
            return -1;
        }
        event_take(w, ev);
        p += sizeof(*ev) + ev->len;
    }
    return 1;
}
