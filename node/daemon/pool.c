/* Owns the VM processes that wait for a guest. Invariant: a VM is in at most one slot, and only while it has
 * not ended; refilling is one fiber, so it never takes more than one core's share from creates. */
#include "node/daemon/pool.h"

#include "lib/base/log.h"
#include "lib/net/fiber.h"
#include "node/daemon/jailer.h"
#include "node/daemon/ready.h"
#include "node/daemon/vm.h"

#define POOL_MAX 256
#define RETRY_MS 1000
#define BEHIND_MS 1000 /* how long the pool is filled behind starts that need the same cores */
#define STEP_MS 5

struct pool {
    struct node *node;
    struct vm *ready[POOL_MAX];
    unsigned count, wanted;
    bool refilling;
};

static void refill(void *arg)
{
    struct pool *p = arg;
    while (p->count < p->wanted && !p->node->stopping) {
        struct err e = {0};
        /* Also when it is empty: a start that finds nothing makes its own, and this is only in its way. */
        for (int waited = 0; p->node->starting > 0 && waited < BEHIND_MS; waited += STEP_MS)
            fiber_sleep(STEP_MS);
        struct vm *vm = jailer_connected(p->node->jailer) && p->node->ready ? vm_make(p->node, &e) : NULL;
        if (vm && p->count < POOL_MAX && !p->node->stopping) {
            p->ready[p->count++] = vm;
            continue;
        }
        if (vm)
            vm_destroy(vm);
        else if (e.code)
            log_fail(&e, "filling the pool of VM processes");
        fiber_sleep(RETRY_MS);
    }
    p->refilling = false;
}

static void pool_refill(struct pool *p)
{
    if (p->refilling || p->count >= p->wanted)
        return;
    p->refilling = true;
    fiber_spawn(refill, p);
}

struct pool *pool_new(struct node *n)
{
    struct pool *p = calloc(1, sizeof *p);
    if (!p)
        abort();
    p->node = n;
    p->wanted = n->cfg.vmm_pool > POOL_MAX ? POOL_MAX : (unsigned)n->cfg.vmm_pool;
    n->pool = p;
    pool_refill(p);
    return p;
}

struct vm *pool_take(struct node *n)
{
    struct pool *p = n->pool;
    struct vm *vm = p->count ? p->ready[--p->count] : NULL;
    pool_refill(p);
    return vm;
}

unsigned pool_size(const struct pool *p)
{
    return p->count;
}

static void destroy(void *arg)
{
    vm_destroy(arg);
}

void pool_on_vm_end(struct node *n, struct vm *vm)
{
    struct pool *p = n->pool;
    if (ready_on_vm_end(n, vm))
        return;
    for (unsigned i = 0; p && i < p->count; i++)
        if (p->ready[i] == vm) {
            log_warn("%s of the pool ended: %s", vm->name, vm->end_reason);
            p->ready[i] = p->ready[--p->count];
            fiber_spawn(destroy, vm);
            pool_refill(p);
            return;
        }
}

void pool_drain(struct node *n)
{
    struct pool *p = n->pool; /* NULL when the end comes before all is taken over */
    if (p)
        p->wanted = 0;
    while (p && p->count)
        vm_destroy(p->ready[--p->count]);
}
