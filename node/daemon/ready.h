/* Ready sandboxes: restored from a template, greeted, their user processes frozen, waiting for an identity.
 * Optional (`node.ready_pool`, the most per template); the number kept follows the demand, and a template
 * that nobody asked for within `node.ready_ttl_ms` keeps none. */
#pragma once

#include "node/daemon/vm.h"
#include "node/store/manifest.h"

struct ready_pool;

struct ready_pool *ready_new(struct node *n);

/** One of this template, or NULL; counts as demand either way. Fills what the image would say. */
struct vm *ready_take(struct node *n, const char *template_id, struct manifest *manifest, char artifact[96]);
unsigned ready_size(const struct ready_pool *p);
bool ready_on_vm_end(struct node *n, struct vm *vm); /* true when it was one of these */
void ready_drain(struct node *n);                    /* in a fiber */
