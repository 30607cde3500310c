/* The daemons of one machine: which program, as whom, on which port. */
#pragma once

#include "cli/settings.h"

#include <sys/types.h>

#define UID_MASTER 59001
#define UID_NODE 59002
#define UID_RELAY 59003
#define UID_DNS 59005
#define UID_API 59006
#define UID_PROXY 59007
#define UID_LIFECYCLE 59008
#define UID_REDIS 59009

/** One daemon. Ports are offsets to `port_base`. */
struct daemon_spec {
    const char *name;      /* "cube-api" */
    const char *binary;    /* below the build directory; NULL = not ours (redis-server) */
    uid_t uid;             /* also the gid */
    gid_t extra_groups[2]; /* 0 = none */
    bool net_caps;         /* keeps CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON */
    int admin_port;        /* offset of the admin listener; 0 = none */
};

/** In the order of starting; stopped in reverse. Ends with a NULL name. */
extern const struct daemon_spec daemon_table[];

/** Directory of the build tree, from $CUBE_BIN_DIR or from where this program lies. */
const char *daemon_build_dir(void);

/** Becomes the daemon's user, with no capability but those of the table; ends the process when it cannot. */
void daemon_drop_privileges(const struct daemon_spec *d);
