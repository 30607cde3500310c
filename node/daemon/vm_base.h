/* What a running VM stands on: links to the immutable files of the artifact that it was started from, so that
 * it can be paused and snapshotted later whatever happens to the artifact. <store>/vm/<name>/base/. */
#pragma once

#include "node/daemon/vm.h"
#include "node/store/store.h"
#include "node/template/image.h"

/** Links manifest, root and memory files of the image. */
int vm_base_link(struct vm *vm, const struct image *img, struct err *e);

/** The manifest of the base. */
int vm_base_manifest(struct vm *vm, struct manifest *out, struct err *e);

/** Links a file of the base into a draft under the same name and lists it in `m`. */
int vm_base_to_draft(struct vm *vm, const struct manifest *base, const char *name, struct draft *d,
                     struct manifest *m, struct err *e);
