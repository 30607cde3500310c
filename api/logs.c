/* Owns the two log answers. Invariant: `line` of the old form is a JSON object as text with at least `level`,
 * which the CLI parses. */
#include "api/handlers.h"
#include "api/server.h"

#include <string.h>

#define LOG_MAX 1000

static void entry(struct jsonw *w, const Cube__Master__V1__LogEntry *l)
{
    jsonw_obj(w);
    jsonw_key(w, "timestamp");
    jsonw_time_ms(w, l->ts_ms);
    jsonw_kstr(w, "level", l->level && *l->level ? l->level : "info");
    jsonw_kstr(w, "message", l->message);
    jsonw_key(w, "fields");
    jsonw_obj(w);
    for (size_t i = 0; i < l->n_fields; i++)
        jsonw_kstr(w, l->fields[i]->key, l->fields[i]->value);
    jsonw_obj_end(w);
    jsonw_obj_end(w);
}

static void line(struct jsonw *w, const Cube__Master__V1__LogEntry *l)
{
    _cleanup_buf_ struct buf text = {0};
    struct jsonw inner = jsonw_start(&text);
    jsonw_obj(&inner);
    jsonw_kstr(&inner, "level", l->level && *l->level ? l->level : "info");
    jsonw_kstr(&inner, "message", l->message);
    for (size_t i = 0; i < l->n_fields; i++)
        if (strcmp(l->fields[i]->key, "level") != 0 && strcmp(l->fields[i]->key, "message") != 0)
            jsonw_kstr(&inner, l->fields[i]->key, l->fields[i]->value);
    jsonw_obj_end(&inner);
    jsonw_obj(w);
    jsonw_key(w, "timestamp");
    jsonw_time_ms(w, l->ts_ms);
    jsonw_key(w, "line");
    jsonw_strn(w, text.data, text.len);
    jsonw_obj_end(w);
}

static void entries(struct jsonw *w, const char *key, const Cube__Master__V1__ReadLogReply *r,
                    void (*one)(struct jsonw *, const Cube__Master__V1__LogEntry *))
{
    jsonw_key(w, key);
    jsonw_arr(w);
    for (size_t i = 0; i < r->n_entries; i++)
        one(w, r->entries[i]);
    jsonw_arr_end(w);
}

static void on_logs_v1(struct call *c, const ProtobufCMessage *m)
{
    const Cube__Master__V1__ReadLogReply *r = (const Cube__Master__V1__ReadLogReply *)m;
    struct jsonw w = call_json(c);
    jsonw_obj(&w);
    entries(&w, "logs", r, line);
    entries(&w, "logEntries", r, entry);
    jsonw_obj_end(&w);
    call_send_json(c, 200);
}

static void on_logs_v2(struct call *c, const ProtobufCMessage *m)
{
    struct jsonw w = call_json(c);
    jsonw_obj(&w);
    entries(&w, "logs", (const Cube__Master__V1__ReadLogReply *)m, entry);
    jsonw_obj_end(&w);
    call_send_json(c, 200);
}

void handle_sandbox_logs_v1(struct call *c)
{
    struct err e = {0};
    int64_t limit;
    Cube__Master__V1__ReadLogRequest in = CUBE__MASTER__V1__READ_LOG_REQUEST__INIT;
    in.sandbox_id = (char *)path_sandbox_id(c);
    if (!in.sandbox_id)
        return;
    if (query_int(&c->query, "start", 0, INT64_MAX, 0, &in.cursor_ms, &e) < 0 ||
        query_int(&c->query, "limit", 0, LOG_MAX, LOG_MAX, &limit, &e) < 0) {
        call_fail(c, &e);
        return;
    }
    in.team_id = c->caller.team_id;
    in.limit = limit ? (uint32_t)limit : LOG_MAX;
    call_master(c, MASTER_SANDBOXES "ReadLog", &in.base, &cube__master__v1__read_log_reply__descriptor,
                UPSTREAM_READ, on_logs_v1, NULL);
}

void handle_sandbox_logs_v2(struct call *c)
{
    struct err e = {0};
    int64_t limit;
    Cube__Master__V1__ReadLogRequest in = CUBE__MASTER__V1__READ_LOG_REQUEST__INIT;
    in.sandbox_id = (char *)path_sandbox_id(c);
    if (!in.sandbox_id)
        return;
    const char *direction = query_get(&c->query, "direction"), *level = query_get(&c->query, "level");
    const char *search = query_get(&c->query, "search");
    if (query_int(&c->query, "cursor", 0, INT64_MAX, 0, &in.cursor_ms, &e) == 0 &&
        query_int(&c->query, "limit", 0, LOG_MAX, LOG_MAX, &limit, &e) == 0) {
        if (direction && *direction && strcmp(direction, "forward") != 0 &&
            strcmp(direction, "backward") != 0)
            err_set(&e, ERR_INVALID,
                    "validation error: query parameter 'direction' must be forward or backward");
        else if (level && *level && strcmp(level, "debug") != 0 && strcmp(level, "info") != 0 &&
                 strcmp(level, "warn") != 0 && strcmp(level, "error") != 0)
            err_set(&e, ERR_INVALID,
                    "validation error: query parameter 'level' must be debug, info, warn or error");
        else if (search && strlen(search) > 256)
            err_set(&e, ERR_INVALID,
                    "validation error: query parameter 'search' must be at most 256 bytes long");
    }
    if (e.code) {
        call_fail(c, &e);
        return;
    }
    in.team_id = c->caller.team_id;
    in.limit = limit ? (uint32_t)limit : LOG_MAX;
    in.backward = !direction || strcmp(direction, "forward") != 0;
    in.level = (char *)(level ? level : "");
    in.search = (char *)(search ? search : "");
    call_master(c, MASTER_SANDBOXES "ReadLog", &in.base, &cube__master__v1__read_log_reply__descriptor,
                UPSTREAM_READ, on_logs_v2, NULL);
}
