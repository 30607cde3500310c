/* Putting a root file system, a kernel and a tools disk into the store as a template. Works without the
 * daemon, and beside it. */
#pragma once

#include "lib/base/err.h"
#include "node/store/store.h"

#include <stdint.h>

struct import {
    const char *root, *kernel, *tools; /* paths */
    const char *name;                  /* alias */
    uint32_t vcpus, memory_mib;
    uint32_t disk_mib; /* what the guest sees; 0 = the size of the image */
    const char *default_user, *default_workdir;
};

#define TEMPLATE_ID_LEN 20

/** Imports, or finds that the same content is there already (quick: the hash of an unchanged file is
 * remembered). The ID depends only on the root file system and the limits; another kernel or tools disk
 * replaces those of the template. */
int import_run(struct store *s, struct import *in, char id[TEMPLATE_ID_LEN + 1], struct err *e);
