/* The file systems of the guest. */
#pragma once

#include "lib/base/err.h"

/** Descriptors of the programs on the tools disk, which is no longer mounted anywhere afterwards. */
struct tools {
    int envd, gateway; /* O_PATH */
};

/** From the tools disk as "/" to the sandbox's own root: mounts, pivots, mounts what a Linux system expects.
 * Missing mount points are made when the root is writable. Returns 0; on error the guest cannot run. */
int mounts_setup(struct tools *tools, struct err *e);

/** Whether the root is read-only. */
bool mounts_read_only(void);

/** Puts `text` where programs read it as `path` (for example /etc/machine-id): written in place when it
 * differs, or on a read-only root bound over the file from /run. Returns 0 or -1 with errno. */
int file_publish(const char *path, const char *text);
