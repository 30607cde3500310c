/* Ready VM processes: jailed, with TAP and sockets, waiting to be handed a guest. Their number is
 * `node.vmm_pool`. */
#pragma once

#include "node/daemon/node.h"

struct pool;
struct vm;

struct pool *pool_new(struct node *n); /* starts to fill itself when the node is ready */
struct vm *pool_take(struct node *n);  /* NULL when there is none */
unsigned pool_size(const struct pool *p);
void pool_on_vm_end(struct node *n, struct vm *vm); /* an unowned VM ended */
void pool_drain(struct node *n);                    /* in a fiber: ends all of them */
