/* manifest.json of an artifact: what it is made of and where it can run (internal.md §7). Format 2, which
 * ends with a checksum of itself; format 1, without, is read. */
#pragma once

#include "lib/base/buf.h"
#include "lib/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define MANIFEST_FORMAT 2
#define MANIFEST_MAX_FILES 16
#define MANIFEST_MAX_BYTES (64u << 10)
#define GUEST_PROTOCOL 1 /* proto/init.proto; a node restores its own version and the one before */

struct manifest_file {
    char name[32];
    int64_t size;
    char hash[65]; /* "" until known */
};

/** Where a memory snapshot can be restored: only on a host of the same class (internal.md §7). */
struct node_class {
    char kvm_kind[16];     /* "pvm" or "hardware" */
    char cpu_features[33]; /* digest of the features that guests see, as the VMM says */
    uint32_t device_layout;
};

enum manifest_kind {
    MANIFEST_TEMPLATE,
    MANIFEST_CLASS_SNAPSHOT,
    MANIFEST_SNAPSHOT,
    MANIFEST_OBJECT /* a kernel, a tools disk */
};

struct manifest {
    uint32_t format;
    enum manifest_kind kind;
    char id[72];
    char parent[64];  /* the template (class snapshot, snapshot), or "" */
    char name[64];    /* alias of a template, or "" */
    char sandbox[32]; /* of a snapshot: whose */
    int64_t created_ms;
    uint32_t vcpus, memory_mib, disk_mib;
    char kernel[65], tools[65]; /* hashes of store objects */
    char envd_version[16];
    char default_user[33], default_workdir[256];
    uint32_t guest_protocol;
    bool has_memory; /* false: a disk that has to be booted */
    struct node_class class;
    struct manifest_file files[MANIFEST_MAX_FILES];
    unsigned file_count;
};

/** Adds a file; hash NULL when not known yet. Fails when there are too many or the name is not [a-z0-9.-]. */
int manifest_add(struct manifest *m, const char *name, int64_t size, const char *hash, struct err *e);
const struct manifest_file *manifest_find(const struct manifest *m, const char *name);

void manifest_write(const struct manifest *m, struct buf *out);

/** Parses and checks, the sum first. ERR_UNSUPPORTED for a format that this program does not know,
 * ERR_INTERNAL for anything broken. `what` names the artifact in the message. */
int manifest_parse(const char *json, size_t n, const char *what, struct manifest *out, struct err *e);

/** Whether a memory snapshot of class `have` restores on `host`; explains in `e` (ERR_NO_COMPATIBLE_NODE)
 * when not. */
int manifest_check_class(const struct manifest *m, const struct node_class *host, struct err *e);
