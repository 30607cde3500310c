/* cube-node's side of the infrastructure plane of a guest: ctl.sock → vsock port 1 → cube-init
 * (proto/init.proto). The guest is hostile: answers are bounded by peer.c and believed only as far as they
 * concern the guest itself. */
#pragma once

#include "node/daemon/vm.h"
#include "proto/init.pb-c.h"
#include "proto/node.pb-c.h"

/** Connects and greets, again and again until the guest answers or `timeout_ms` passed. */
int guest_open(struct vm *vm, int64_t timeout_ms, struct err *e);

/** Its two steps. A connection may be made, and the greeting sent, while the VMM still restores: it waits in
 * the listener, and the guest finds it as soon as it runs. */
int guest_connect(struct vm *vm, struct err *e);
int guest_hello(struct vm *vm, int64_t timeout_ms, struct err *e);

/** Who the guest shall be. Strings are borrowed. */
struct guest_identity {
    const char *sandbox_id, *envd_token, *default_user, *default_workdir;
    const Cube__V1__SandboxSpec *spec;
    uint64_t gen;
    bool replace_envs;
    bool rehearsal; /* everything but letting user processes run: what it touches is there the next time */
};

/** Sets clock, random pool, identity, network and tokens and lets user processes run; every fact that is
 * confirmed is put into the receipt, and one that is not is an error: user code must not run then (DESIGN.md
 * §3.7). */
int guest_identify(struct vm *vm, const struct guest_identity *id, Cube__Node__V1__Receipt *receipt,
                   struct err *e);

/** Leads the guest through all of that once, for nobody and without letting user processes run: files, caches
 * and pages that an identity needs are there afterwards. Each thing is set again for the sandbox. */
int guest_rehearse(struct vm *vm, struct err *e);

/** Waits until envd answers. */
int guest_wait_healthy(struct vm *vm, int64_t timeout_ms, struct err *e);

/** Asks once; also what guest liveness is judged by. */
int guest_health(struct vm *vm, int64_t timeout_ms, Cube__Init__V1__HealthReply *out, struct err *e);
int guest_freeze(struct vm *vm, int64_t timeout_ms,
                 struct err *e); /* user processes stopped, file systems synced */
int guest_thaw(struct vm *vm, int64_t timeout_ms, struct err *e);
int guest_metrics(struct vm *vm, int64_t timeout_ms, Cube__Init__V1__MetricsReply *out, struct err *e);

/** From now on the guest's events go to the owner's log. */
int guest_subscribe(struct vm *vm, struct err *e);
