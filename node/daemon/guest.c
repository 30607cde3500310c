/* Owns the conversation with cube-init in a guest. Invariant: a sandbox counts as identified only when the
 * guest confirmed each single fact of SetIdentity. */
#include "node/daemon/guest.h"

#include "lib/base/clock.h"
#include "lib/base/ids.h"
#include "node/daemon/eventlog.h"
#include "lib/net/fiber.h"
#include "node/daemon/sandbox.h"
#include "node/daemon/vm_files.h"

#include <string.h>
#include <time.h>

#define INIT_VERSION 1
#define HELLO_MS 3000 /* one attempt; a booting guest may have lost the first packet */
#define IDENTIFY_MS 10000
#define NO_NAME "i00000000000000000000" /* as long as a sandbox's, so that its place in files is the same */
#define HEALTH_STEP_MS 20

static void on_event(const ProtobufCMessage *m, void *data)
{
    struct vm *vm = data;
    const Cube__Init__V1__Reply *r = (const Cube__Init__V1__Reply *)m;
    if (r->result_case == CUBE__INIT__V1__REPLY__RESULT_EVENT && vm->owner)
        eventlog_add_guest(vm->owner, r->event);
}

static int call(struct vm *vm, Cube__Init__V1__Request *req, int64_t timeout_ms, int expect,
                struct peer_reply *out, struct err *e)
{
    if (vm->ended)
        return err_set(e, ERR_UNAVAILABLE, "%s has ended: %s", vm->name, vm->end_reason);
    if (!vm->guest)
        return err_set(e, ERR_UNAVAILABLE, "no connection to the guest of %s", vm->name);
    if (peer_call(vm->guest, &req->base, NULL, 0, timeout_ms, out, e) < 0)
        return vm->ended ? err_set(e, ERR_UNAVAILABLE, "%s has ended: %s", vm->name, vm->end_reason) : -1;
    if (out && expect && ((Cube__Init__V1__Reply *)out->message)->result_case != (unsigned)expect) {
        peer_reply_free(out);
        return err_set(e, ERR_INTERNAL, "the guest of %s answered something else", vm->name);
    }
    if (vm->owner)
        vm->owner->last_answer_ms = clock_realtime_ms();
    return 0;
}

int guest_connect(struct vm *vm, struct err *e)
{
    int fd = socket_connect_at(vm->sock_dir, "ctl.sock", e);
    if (fd < 0)
        return -1;
    char name[64];
    snprintf(name, sizeof name, "the guest of %s", vm->name);
    peer_free(vm->guest);
    vm->guest = peer_new(vm->node->loop, fd,
                         &(struct peer_config){.name = name,
                                               .framing = PEER_STREAM,
                                               .event = on_event,
                                               .data = vm,
                                               .reply = &cube__init__v1__reply__descriptor});
    return 0;
}

int guest_hello(struct vm *vm, int64_t timeout_ms, struct err *e)
{
    Cube__Init__V1__Hello hello = CUBE__INIT__V1__HELLO__INIT;
    hello.version = INIT_VERSION;
    Cube__Init__V1__Request req = CUBE__INIT__V1__REQUEST__INIT;
    req.op_case = CUBE__INIT__V1__REQUEST__OP_HELLO;
    req.hello = &hello;
    struct peer_reply reply _cleanup_reply_ = {0};
    if (call(vm, &req, timeout_ms, CUBE__INIT__V1__REPLY__RESULT_HELLO, &reply, e) < 0)
        return -1;
    const Cube__Init__V1__HelloReply *h = ((Cube__Init__V1__Reply *)reply.message)->hello;
    snprintf(vm->envd_version, sizeof vm->envd_version, "%s", h->envd_version);
    return 0;
}

int guest_open(struct vm *vm, int64_t timeout_ms, struct err *e)
{
    int64_t end = clock_mono_us() + timeout_ms * 1000;
    for (int64_t pause = 2;; pause = pause < 50 ? pause * 2 : 50) {
        int64_t left = (end - clock_mono_us()) / 1000;
        if (vm->ended)
            return err_set(e, ERR_UNAVAILABLE, "%s has ended: %s", vm->name, vm->end_reason);
        if (left <= 0)
            return err_wrap(e, "the guest of %s did not answer within %lld ms", vm->name,
                            (long long)timeout_ms);
        if (guest_connect(vm, e) == 0 && guest_hello(vm, left < HELLO_MS ? left : HELLO_MS, e) == 0)
            return 0;
        fiber_sleep(pause);
    }
}

static int confirm(const Cube__Init__V1__IdentitySet *s, const struct guest_identity *id, struct err *e)
{
    const char *missing = !s->clock_set                  ? "clock"
                          : !s->random_reseeded          ? "random pool"
                          : !s->identity_set             ? "identity"
                          : !s->network_set              ? "network"
                          : !s->tokens_set               ? "tokens"
                          : !s->thawed && !id->rehearsal ? "thaw"
                                                         : NULL;
    return missing ? err_set(e, ERR_CREATE_FAILED, "the guest of %s did not confirm its %s", id->sandbox_id,
                             missing)
                   : 0;
}

int guest_identify(struct vm *vm, const struct guest_identity *id, Cube__Node__V1__Receipt *receipt,
                   struct err *e)
{
    uint8_t random[64], machine[16];
    random_bytes(random, sizeof random);
    random_bytes(machine, sizeof machine);
    char lifecycle[37];
    id_uuid(lifecycle);
    Cube__Init__V1__Network net = CUBE__INIT__V1__NETWORK__INIT; /* internal.md §8 */
    net.address = (char *)"169.254.0.21/30";
    net.gateway = net.dns = (char *)"169.254.0.22";
    net.mtu = 1450;
    Cube__Init__V1__SetIdentity op = CUBE__INIT__V1__SET_IDENTITY__INIT;
    op.sandbox_id = (char *)id->sandbox_id;
    op.hostname = id->rehearsal ? (char *)NO_NAME : op.sandbox_id;
    op.template_id = id->spec->template_id;
    op.gen = id->gen;
    op.random = (ProtobufCBinaryData){sizeof random, random};
    op.machine_id = (ProtobufCBinaryData){sizeof machine, machine};
    op.envd_token = (char *)id->envd_token;
    op.default_user = (char *)id->default_user;
    op.default_workdir = (char *)id->default_workdir;
    op.network = &net;
    op.lifecycle_id = lifecycle;
    op.replace_envs = id->replace_envs;
    op.thaw = !id->rehearsal;
    size_t n = id->spec->n_envs;
    Cube__Init__V1__Pair pair[n ? n : 1], *pairs[n ? n : 1];
    for (size_t i = 0; i < n; i++) {
        cube__init__v1__pair__init(&pair[i]);
        pair[i].key = id->spec->envs[i]->key;
        pair[i].value = id->spec->envs[i]->value;
        pairs[i] = &pair[i];
    }
    op.n_envs = n;
    op.envs = pairs;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now); /* as late as can be */
    op.realtime_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    Cube__Init__V1__Request req = CUBE__INIT__V1__REQUEST__INIT;
    req.op_case = CUBE__INIT__V1__REQUEST__OP_SET_IDENTITY;
    req.set_identity = &op;
    struct peer_reply reply _cleanup_reply_ = {0};
    if (call(vm, &req, IDENTIFY_MS, CUBE__INIT__V1__REPLY__RESULT_IDENTITY_SET, &reply, e) < 0)
        return err_wrap(e, "giving %s its identity", id->sandbox_id);
    const Cube__Init__V1__IdentitySet *s = ((Cube__Init__V1__Reply *)reply.message)->identity_set;
    receipt->clock_set = s->clock_set;
    receipt->random_reseeded = s->random_reseeded;
    receipt->identity_set = s->identity_set;
    receipt->network_set = s->network_set;
    receipt->tokens_set = s->tokens_set;
    receipt->generation_file = s->generation_file;
    receipt->init_us = s->took_us;
    return confirm(s, id, e);
}

int guest_rehearse(struct vm *vm, struct err *e)
{
    Cube__V1__SandboxSpec spec = CUBE__V1__SANDBOX_SPEC__INIT;
    Cube__Node__V1__Receipt receipt = CUBE__NODE__V1__RECEIPT__INIT;
    struct guest_identity id = {.sandbox_id = "",
                                .envd_token = "",
                                .default_user = "",
                                .default_workdir = "",
                                .spec = &spec,
                                .replace_envs = true,
                                .rehearsal = true};
    return guest_identify(vm, &id, &receipt, e);
}

int guest_health(struct vm *vm, int64_t timeout_ms, Cube__Init__V1__HealthReply *out, struct err *e)
{
    Cube__Init__V1__Health op = CUBE__INIT__V1__HEALTH__INIT;
    Cube__Init__V1__Request req = CUBE__INIT__V1__REQUEST__INIT;
    req.op_case = CUBE__INIT__V1__REQUEST__OP_HEALTH;
    req.health = &op;
    struct peer_reply reply _cleanup_reply_ = {0};
    if (call(vm, &req, timeout_ms, CUBE__INIT__V1__REPLY__RESULT_HEALTH, &reply, e) < 0)
        return -1;
    *out = *((Cube__Init__V1__Reply *)reply.message)->health;
    return 0;
}

int guest_wait_healthy(struct vm *vm, int64_t timeout_ms, struct err *e)
{
    int64_t end = clock_mono_us() + timeout_ms * 1000;
    for (;;) {
        int64_t left = (end - clock_mono_us()) / 1000;
        if (left <= 0)
            return err_set(e, ERR_DEADLINE, "envd of %s was not healthy within %lld ms", vm->name,
                           (long long)timeout_ms);
        Cube__Init__V1__HealthReply h;
        if (guest_health(vm, left, &h, e) < 0)
            return -1;
        if (h.envd_ok)
            return 0;
        fiber_sleep(HEALTH_STEP_MS);
    }
}

int guest_freeze(struct vm *vm, int64_t timeout_ms, struct err *e)
{
    Cube__Init__V1__Freeze op = CUBE__INIT__V1__FREEZE__INIT;
    op.sync = true;
    Cube__Init__V1__Request req = CUBE__INIT__V1__REQUEST__INIT;
    req.op_case = CUBE__INIT__V1__REQUEST__OP_FREEZE;
    req.freeze = &op;
    return call(vm, &req, timeout_ms, 0, NULL, e);
}

int guest_thaw(struct vm *vm, int64_t timeout_ms, struct err *e)
{
    Cube__Init__V1__Thaw op = CUBE__INIT__V1__THAW__INIT;
    Cube__Init__V1__Request req = CUBE__INIT__V1__REQUEST__INIT;
    req.op_case = CUBE__INIT__V1__REQUEST__OP_THAW;
    req.thaw = &op;
    return call(vm, &req, timeout_ms, 0, NULL, e);
}

int guest_metrics(struct vm *vm, int64_t timeout_ms, Cube__Init__V1__MetricsReply *out, struct err *e)
{
    Cube__Init__V1__Metrics op = CUBE__INIT__V1__METRICS__INIT;
    Cube__Init__V1__Request req = CUBE__INIT__V1__REQUEST__INIT;
    req.op_case = CUBE__INIT__V1__REQUEST__OP_METRICS;
    req.metrics = &op;
    struct peer_reply reply _cleanup_reply_ = {0};
    if (call(vm, &req, timeout_ms, CUBE__INIT__V1__REPLY__RESULT_METRICS, &reply, e) < 0)
        return -1;
    *out = *((Cube__Init__V1__Reply *)reply.message)->metrics;
    return 0;
}

int guest_subscribe(struct vm *vm, struct err *e)
{
    Cube__Init__V1__Subscribe op = CUBE__INIT__V1__SUBSCRIBE__INIT;
    Cube__Init__V1__Request req = CUBE__INIT__V1__REQUEST__INIT;
    req.op_case = CUBE__INIT__V1__REQUEST__OP_SUBSCRIBE;
    req.subscribe = &op;
    return call(vm, &req, IDENTIFY_MS, 0, NULL, e);
}
