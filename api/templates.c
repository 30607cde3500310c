/* Owns the reads of templates. Invariant: a template that the team may not see looks like one that does not
 * exist, except for the alias check, which says 403 (contracts/e2b.md §1.5). */
#include "api/handlers.h"
#include "api/names.h"
#include "api/present.h"
#include "api/server.h"

#include <string.h>

static void on_templates(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__ListTemplatesReply *r = (const Cube__Master__V1__ListTemplatesReply *)m;
    struct jsonw w = call_json(c);
    jsonw_arr(&w);
    for (size_t i = 0; i < r->n_templates; i++)
        present_template(&w, r->templates[i]);
    jsonw_arr_end(&w);
    call_send_json(c, 200);
}

static void list(struct call *c)
{
    Cube__Master__V1__ListTemplatesRequest in = CUBE__MASTER__V1__LIST_TEMPLATES_REQUEST__INIT;
    in.team_id = c->caller.team_id;
    call_master(c, MASTER_CATALOG "ListTemplates", &in.base,
                &cube__master__v1__list_templates_reply__descriptor, UPSTREAM_READ, on_templates, NULL);
}

void handle_template_list_v1(struct call *c)
{
    list(c);
}

void handle_template_list_v2(struct call *c)
{
    list(c);
}

static void lookup(struct call *c, const char *method, const ProtobufCMessageDescriptor *out, unsigned flags,
                   call_reply_cb *reply, call_error_cb *failed)
{
    struct err e = {0};
    char ref[TEMPLATE_REF_MAX + 1];
    Cube__Master__V1__GetTemplateRequest in = CUBE__MASTER__V1__GET_TEMPLATE_REQUEST__INIT;
    if (template_ref_parse(c->match.args[0], ref, &e) < 0) {
        call_fail(c, &e);
        return;
    }
    in.name = ref;
    in.team_id = c->caller.team_id;
    call_master(c, method, &in.base, out, flags, reply, failed);
}

static void on_no_template(struct call *c, const struct err *e)
{
    if (e->code == ERR_FORBIDDEN)
        call_error(c, ERR_NOT_FOUND, "template '%s' not found", c->match.args[0]);
    else
        call_fail(c, e);
}

static void on_template(struct call *c, const ProtobufCMessage *m)
{
    struct jsonw w = call_json(c);
    present_template_builds(&w, (const Cube__Master__V1__Template *)m);
    call_send_json(c, 200);
}

void handle_template_get(struct call *c)
{
    lookup(c, MASTER_CATALOG "GetTemplate", &cube__master__v1__template__descriptor, UPSTREAM_READ,
           on_template, on_no_template);
}

static void on_alias(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__Template *t = (const Cube__Master__V1__Template *)m;
    struct jsonw w = call_json(c);
    jsonw_obj(&w);
    jsonw_kstr(&w, "templateID", t->template_id);
    jsonw_kbool(&w, "public", t->public_);
    jsonw_obj_end(&w);
    call_send_json(c, 200);
}

void handle_template_alias(struct call *c)
{
    lookup(c, MASTER_CATALOG "GetTemplate", &cube__master__v1__template__descriptor, UPSTREAM_READ, on_alias,
           NULL);
}

void handle_template_delete(struct call *c)
{
    lookup(c, MASTER_CATALOG "DeleteTemplate", &cube__master__v1__empty__descriptor, 0, reply_empty, NULL);
}

/* ---- the operator's registration ---- */

static int take_aliases(struct call *c, Cube__Master__V1__Template *t, struct err *e)
{
    const json_t *aliases = NULL;
    if (body_arr(c->body, "", "aliases", 16, &aliases, e) < 0)
        return -1;
    t->aliases = call_alloc(c, json_array_size(aliases) * sizeof *t->aliases);
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)aliases, i, v)
    {
        char *ref = call_alloc(c, TEMPLATE_REF_MAX + 1);
        if (!json_is_string(v))
            return err_set(e, ERR_INVALID, "validation error: 'aliases' must hold strings");
        if (template_ref_parse(json_string_value(v), ref, e) < 0)
            return -1;
        t->aliases[t->n_aliases++] = ref;
    }
    return 0;
}

static void on_registered(struct call *c, const ProtobufCMessage *m)
{
    struct jsonw w = call_json(c);
    present_template(&w, (const Cube__Master__V1__Template *)m);
    call_send_json(c, 201);
}

void handle_cube_template_put(struct call *c)
{
    static const char *const known[] = {"templateID",  "teamID",         "aliases",    "public",
                                        "cpuCount",    "memoryMB",       "diskSizeMB", "envdVersion",
                                        "defaultUser", "defaultWorkdir", "buildID",    NULL};
    struct err e = {0};
    int64_t cpu = 1, memory = 512, disk = 1024;
    bool public = false;
    const char *id = NULL, *team = "", *envd = "", *user = "", *workdir = "", *build = "";
    Cube__Master__V1__Template t = CUBE__MASTER__V1__TEMPLATE__INIT;
    Cube__V1__Limits limits = CUBE__V1__LIMITS__INIT;
    if (body_str(c->body, "", "templateID", 64, &id, &e) < 0 ||
        body_str(c->body, "", "teamID", 63, &team, &e) < 0 ||
        body_bool(c->body, "", "public", &public, NULL, &e) < 0 ||
        body_int(c->body, "", "cpuCount", 1, 256, &cpu, NULL, &e) < 0 ||
        body_int(c->body, "", "memoryMB", 64, 1 << 20, &memory, NULL, &e) < 0 ||
        body_int(c->body, "", "diskSizeMB", 0, INT32_MAX, &disk, NULL, &e) < 0 ||
        body_str(c->body, "", "envdVersion", 32, &envd, &e) < 0 ||
        body_str(c->body, "", "defaultUser", 64, &user, &e) < 0 ||
        body_str(c->body, "", "defaultWorkdir", 1024, &workdir, &e) < 0 ||
        body_str(c->body, "", "buildID", 64, &build, &e) < 0 || take_aliases(c, &t, &e) < 0) {
        call_fail(c, &e);
        return;
    }
    if (!id || strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789") != strlen(id) || strlen(id) != 20) {
        call_error(c, ERR_INVALID, "validation error: 'templateID' must be 20 characters of a-z and 0-9");
        return;
    }
    body_unknown(c->body, "", known, &c->unknown);
    limits.vcpus = (uint32_t)cpu;
    limits.memory_mib = (uint32_t)memory;
    limits.disk_mib = (uint32_t)disk;
    t.template_id = (char *)id;
    t.team_id = (char *)team;
    t.public_ = public;
    t.limits = &limits;
    t.envd_version = (char *)envd;
    t.default_user = (char *)user;
    t.default_workdir = (char *)workdir;
    t.build_id = (char *)build;
    t.status = "ready";
    call_master(c, MASTER_CATALOG "PutTemplate", &t.base, &cube__master__v1__template__descriptor, 0,
                on_registered, NULL);
}
