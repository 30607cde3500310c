/* One watched directory tree: an inotify descriptor and the paths of its watches. No RPC in here. */
#pragma once

#include "guest/common/users.h"
#include "guest/common/loop.h"
#include "lib/base/err.h"

#include <limits.h>
#include <stddef.h>

enum event_type { EVENT_UNSPECIFIED, EVENT_CREATE, EVENT_WRITE, EVENT_REMOVE, EVENT_RENAME, EVENT_CHMOD };

struct watch_node {
    int wd;
    char *rel;   /* path below the root, "" for the root itself */
    char **seen; /* names already reported by the scan of a new directory, until the queue has passed it */
    size_t n_seen;
};

struct watcher {
    int fd; /* inotify */
    char path[PATH_MAX];
    bool recursive, include_entry, allow_network;
    struct user user;
    struct watch_node *nodes; /* ascending wd: the kernel gives them out in that order */
    size_t n, cap;
    bool overflow;
    uint32_t published; /* cookie of the last rename that gave an upload its name */
    uint32_t moved;     /* cookie of the rename whose first half is still to be reported; 0 = none */
    char moved_rel[PATH_MAX];
    /* One event, `name` relative to the root. */
    void (*on_event)(void *owner, const char *name, enum event_type type);
    void *owner;
};

#define WATCH_NODES_MAX 65536

/** Opens inotify and adds the directory (and, when recursive, all below it). Blocking: called on a worker. */
int watcher_open(struct watcher *w, struct err *e);

/** Reads one batch of events, about `max` bytes of them; returns 1 when there may be more, 0 when the queue
 * is empty, -1 when the queue overflowed (w->overflow) or cannot be read. */
int watcher_read(struct watcher *w, size_t max);

void watcher_close(struct watcher *w);
