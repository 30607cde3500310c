/* The open files of an artifact that a VM can start from: a template (booted, or restored from its snapshot
 * of this class) or a snapshot of a sandbox. */
#pragma once

#include "node/daemon/vm.h"
#include "node/store/manifest.h"

#define IMAGE_CMDLINE "root=/dev/vdb rootfstype=erofs ro init=/cube-init"
#define IMAGE_DELTAS 4 /* internal.md §7: a longer chain is merged */

struct image {
    struct manifest manifest; /* of the template or the snapshot */
    char artifact[96];        /* "tpl/<id>", "tpl/<id>/snap-<class>" or "snap/<id>" */
    bool has_memory;          /* false: boot */
    int root, tools, kernel, state, memory, working_set, layer; /* -1 = none */
    int deltas[IMAGE_DELTAS];
    char delta_hash[IMAGE_DELTAS][65];
    int delta_count;
};

void image_init(struct image *img); /* nothing open */

/** Only the manifest of a template. */
int image_template_manifest(struct node *n, const char *template_id, struct manifest *out, struct err *e);

/** Opens a template: with its memory when `want_memory` and a snapshot of the node's class is there.
 * ERR_NOT_FOUND for an unknown one. */
int image_open_template(struct node *n, const char *template_id, bool want_memory, struct image *out,
                        struct err *e);

/** The same in a worker thread, from a fiber. */
int image_load_template(struct node *n, const char *template_id, bool want_memory, struct image *out,
                        struct err *e);

/** Opens a snapshot; checks class, sizes and hashes. Blocks while it reads what it does not know yet. */
int image_open_snapshot(struct node *n, const char *snapshot_id, bool want_memory, struct image *out,
                        struct err *e);

void image_close(struct image *img);
#define _cleanup_image_ __attribute__((cleanup(image_close)))

/** What the VMM gets of it; the layer is the VM's own copy. */
void image_to_vm(const struct image *img, int layer, struct vm_image *out);

/** "snap-" and 16 hex digits: names the snapshot of a template for one class of host, kernel, tools and size.
 */
void class_snapshot_name(const struct manifest *template, const struct node_class *class, char out[32]);
