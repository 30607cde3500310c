/* Owns the two creates. Invariant: the answer 201 is given only for a sandbox that the master calls running.
 */
#include "api/create.h"
#include "api/handlers.h"
#include "api/present.h"
#include "api/server.h"

#include <string.h>

static void on_created(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__SandboxReply *r = (const Cube__Master__V1__SandboxReply *)m;
    struct jsonw w = call_json(c);
    present_sandbox(&w, r->sandbox, c->w->api->domain);
    call_send_json(c, 201);
}

static void create(struct call *c, bool v2)
{
    struct err e = {0};
    struct create body;
    Cube__Master__V1__CreateRequest in = CUBE__MASTER__V1__CREATE_REQUEST__INIT;
    const char *idempotency = call_header(c, "idempotency-key");
    if (idempotency && !idempotency_key_valid(idempotency, strlen(idempotency))) {
        call_error(c, ERR_INVALID, "Idempotency-Key must be 1 to 255 characters of a-z, 0-9 and '-'");
        return;
    }
    if (create_parse(c->body, v2, c->caller.max_timeout_ms, &body, &e) < 0) {
        create_free(&body);
        call_fail(c, &e);
        return;
    }
    c->unknown = body.unknown;
    body.spec.team_id = c->caller.team_id;
    in.spec = &body.spec;
    in.idempotency_key = (char *)(idempotency ? idempotency : "");
    call_master(c, MASTER_SANDBOXES "Create", &in.base, &cube__master__v1__sandbox_reply__descriptor,
                UPSTREAM_CREATE, on_created, NULL);
    create_free(&body);
}

void handle_sandbox_create_v2(struct call *c)
{
    create(c, true);
}

void handle_sandbox_create_v1(struct call *c)
{
    create(c, false);
}
