/* Owns the answer about one sandbox's network: its rules, what is open, and what was denied. */
#include "api/create.h"
#include "api/handlers.h"
#include "api/server.h"

#include <jansson.h>
#include <stdlib.h>

/* Only the lists: the object may also hold what is a secret. */
static void put_list(struct jsonw *w, const json_t *rules, const char *key)
{
    const json_t *list = json_object_get(rules, key), *one;
    size_t i;
    jsonw_key(w, key);
    jsonw_arr(w);
    json_array_foreach(list, i, one) if (json_is_string(one)) jsonw_str(w, json_string_value(one));
    jsonw_arr_end(w);
}

static void put_rules(struct jsonw *w, const Cube__Master__V1__NetworkReply *r)
{
    json_t *rules = *r->network_json ? json_loads(r->network_json, 0, NULL) : NULL;
    jsonw_kbool(w, "allowInternetAccess", !r->deny_internet);
    put_list(w, rules, "allowOut");
    put_list(w, rules, "denyOut");
    json_decref(rules);
    jsonw_key(w, "names");
    jsonw_arr(w);
    for (size_t i = 0; i < r->n_names; i++) {
        jsonw_obj(w);
        jsonw_kstr(w, "name", r->names[i]->name);
        jsonw_kstr(w, "address", r->names[i]->address);
        jsonw_kint(w, "secondsLeft", r->names[i]->left_s);
        jsonw_obj_end(w);
    }
    jsonw_arr_end(w);
}

static void put_traffic(struct jsonw *w, const Cube__Master__V1__NetworkReply *r)
{
    jsonw_kint(w, "upPackets", (int64_t)r->up_packets);
    jsonw_kint(w, "upBytes", (int64_t)r->up_bytes);
    jsonw_kint(w, "downPackets", (int64_t)r->down_packets);
    jsonw_kint(w, "downBytes", (int64_t)r->down_bytes);
    jsonw_kint(w, "sessionCount", r->session_count);
    jsonw_key(w, "sessions");
    jsonw_arr(w);
    for (size_t i = 0; i < r->n_sessions; i++) {
        const Cube__Master__V1__NetworkSession *s = r->sessions[i];
        jsonw_obj(w);
        jsonw_kstr(w, "protocol", s->protocol);
        jsonw_kstr(w, "remote", s->remote);
        jsonw_kint(w, "remotePort", s->remote_port);
        jsonw_kint(w, "localPort", s->guest_port);
        jsonw_kstr(w, "state", s->state);
        jsonw_kint(w, "idleSeconds", s->idle_s);
        jsonw_obj_end(w);
    }
    jsonw_arr_end(w);
}

static void put_drops(struct jsonw *w, const Cube__Master__V1__NetworkReply *r)
{
    jsonw_key(w, "drops");
    jsonw_obj(w);
    for (size_t i = 0; i < r->n_drops; i++)
        jsonw_kint(w, r->drops[i]->reason, (int64_t)r->drops[i]->packets);
    jsonw_obj_end(w);
    jsonw_key(w, "denied");
    jsonw_arr(w);
    for (size_t i = 0; i < r->n_denied; i++) {
        const Cube__Master__V1__NetworkDenied *d = r->denied[i];
        jsonw_obj(w);
        jsonw_key(w, "lastAt");
        jsonw_time_ms(w, d->last_ms);
        jsonw_kstr(w, "reason", d->reason);
        jsonw_kstr(w, "protocol", *d->protocol ? d->protocol : NULL);
        jsonw_kstr(w, "remote", d->remote);
        jsonw_kint(w, "remotePort", d->remote_port);
        jsonw_kint(w, "packets", (int64_t)d->packets);
        jsonw_obj_end(w);
    }
    jsonw_arr_end(w);
}

static void on_network(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__NetworkReply *r = (const Cube__Master__V1__NetworkReply *)m;
    struct jsonw w = call_json(c);
    jsonw_obj(&w);
    jsonw_kstr(&w, "sandboxID", c->match.args[0]);
    jsonw_kstr(&w, "away", *r->away ? r->away : NULL);
    put_rules(&w, r);
    put_traffic(&w, r);
    put_drops(&w, r);
    jsonw_obj_end(&w);
    call_send_json(c, 200);
}

void handle_cube_network(struct call *c)
{
    Cube__Master__V1__NetworkRequest in = CUBE__MASTER__V1__NETWORK_REQUEST__INIT;
    in.sandbox_id = (char *)path_sandbox_id(c);
    if (!in.sandbox_id)
        return;
    in.team_id = c->caller.team_id;
    call_master(c, MASTER_SANDBOXES "Network", &in.base, &cube__master__v1__network_reply__descriptor,
                UPSTREAM_READ, on_network, NULL);
}
