/* The common start and end of every daemon, so that its main.c says only what it is made of. */
#pragma once

#include "lib/base/err.h"
#include "lib/net/config.h"
#include "lib/net/loop.h"

struct daemon_spec {
    const char *name;        /* "cube-api" */
    const char *section;     /* of cube.yaml */
    const char *summary;     /* one line for --help */
    const char *description; /* a paragraph for --help, or NULL */
    const struct config_key
        *keys;    /* the log level is handled here: key log_level of the section or of "common" */
    void *config; /* the keys' struct, filled before `start` */

    /** Builds everything on the loop. On an error the process ends with status 1 and the error on stderr. */
    int (*start)(struct loop *l, struct err *e);
    /** SIGTERM or SIGINT: take no new work, finish what is open, then call `daemon_done`. NULL: end at once.
     */
    void (*drain)(void);
    /** After the loop has ended: release. May be NULL. */
    void (*stop)(void);
    /** Instead of `stop` when draining was cut short, before _exit(): end other threads, within a moment. May
     * be NULL. */
    void (*cut)(void);
    int64_t drain_ms; /* how long draining may take; 0 = 10 s. A second signal ends it at once. */
};

/**
 * Options --config FILE, --user UID[:GID[,GID…]] (numeric; dropped to after `start`, further GIDs are
 * supplementary groups),
 * --help, --version. Sets up the log, ignores SIGPIPE, raises the limit of descriptors, loads the
 * configuration, runs the loop, tells systemd READY and STOPPING. Returns the exit status: 0, 1 (failed), 2
 * (usage or configuration).
 */
int daemon_main(const struct daemon_spec *spec, int argc, char **argv);

/** Raises the soft limit of descriptors to the hard one, within reason. `daemon_main` does it. */
void daemon_raise_descriptors(void);

/** Draining is finished; ends the loop. */
void daemon_done(void);

/** Sends a state to the service manager named by NOTIFY_SOCKET, if any (sd_notify(3)). */
void daemon_notify(const char *state);
