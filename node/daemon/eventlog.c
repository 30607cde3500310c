/* Owns a sandbox's log files: `events` and, once that is full, `events.old`. Invariant: together they never
 * exceed twice FILE_MAX, and a guest cannot add more than RATE entries per second: a hostile one only loses
 * its own history. */
#include "node/daemon/eventlog.h"

#include "lib/base/buf.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/jsonw.h"
#include "node/daemon/sandbox.h"

#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

#define FILE_MAX (512u << 10)
#define ENTRY_MAX 4096
#define MESSAGE_MAX 2048
#define FIELD_MAX 512
#define FIELDS_MAX 16
#define RATE 200 /* entries per second */
#define LIMIT_MAX 1000

struct eventlog {
    struct node *node;
    char id[22];
    int64_t second;
    unsigned in_second;
    uint64_t dropped;
};

struct eventlog *eventlog_new(struct node *n, const char *sandbox_id)
{
    struct eventlog *l = calloc(1, sizeof *l);
    if (!l)
        abort();
    l->node = n;
    snprintf(l->id, sizeof l->id, "%s", sandbox_id);
    return l;
}

void eventlog_free(struct eventlog *l)
{
    free(l);
}

static void path_of(const struct eventlog *l, const char *file, char out[64])
{
    snprintf(out, 64, "%s/%s", l->id, file);
}

static void append(struct eventlog *l, const struct buf *line)
{
    char path[64], old[64];
    path_of(l, "events", path);
    _cleanup_close_ int fd =
        openat(l->node->sandboxes_fd, path, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || write(fd, line->data, line->len) < 0)
        return; /* a full disk costs log lines, nothing else */
    if ((uint64_t)st.st_size + line->len > FILE_MAX) {
        path_of(l, "events.old", old);
        renameat(l->node->sandboxes_fd, path, l->node->sandboxes_fd, old);
    }
}

static void entry(struct eventlog *l, int64_t ts_ms, const char *level, const char *message, size_t n_fields,
                  Cube__Init__V1__Pair **fields)
{
    _cleanup_buf_ struct buf b = {0};
    struct jsonw w = jsonw_start(&b);
    jsonw_obj(&w);
    jsonw_kint(&w, "ts", ts_ms);
    jsonw_key(&w, "level");
    jsonw_strn(&w, level, strnlen(level, 16));
    jsonw_key(&w, "message");
    jsonw_strn(&w, message, strnlen(message, MESSAGE_MAX));
    jsonw_key(&w, "fields");
    jsonw_obj(&w);
    for (size_t i = 0; i < n_fields && i < FIELDS_MAX && b.len < ENTRY_MAX; i++) {
        char key[65];
        snprintf(key, sizeof key, "%s", fields[i]->key);
        jsonw_key(&w, key);
        jsonw_strn(&w, fields[i]->value, strnlen(fields[i]->value, FIELD_MAX));
    }
    jsonw_obj_end(&w);
    jsonw_obj_end(&w);
    buf_putc(&b, '\n');
    if (!b.failed)
        append(l, &b);
}

void eventlog_add(struct eventlog *l, int64_t ts_ms, const char *level, const char *message)
{
    entry(l, ts_ms, level, message, 0, NULL);
}

void eventlog_add_guest(struct sandbox *sb, const Cube__Init__V1__Event *ev)
{
    struct eventlog *l = sb->log;
    int64_t now = clock_realtime_ms();
    if (now / 1000 != l->second) {
        if (l->dropped) {
            char text[80];
            snprintf(text, sizeof text, "%llu events were dropped: more than %d in a second",
                     (unsigned long long)l->dropped, RATE);
            eventlog_add(l, now, "warn", text);
        }
        l->second = now / 1000;
        l->in_second = 0;
        l->dropped = 0;
    }
    if (l->in_second++ >= RATE) {
        l->dropped++;
        return;
    }
    sb->last_activity_ms = now;
    int64_t ts =
        ev->ts_ms > now || ev->ts_ms < sb->started_ms ? now : ev->ts_ms; /* the guest's clock is its own */
    const char *message = *ev->message ? ev->message : ev->kind;
    entry(l, ts, *ev->level ? ev->level : "info", message, ev->n_fields, ev->fields);
}

struct lines {
    json_t **item;
    size_t count, cap;
};

static int level_rank(const char *level)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    for (int i = 0; i < 4; i++)
        if (strcmp(level, names[i]) == 0)
            return i;
    return 1;
}

static bool wanted(const json_t *o, const Cube__Master__V1__ReadLogRequest *req)
{
    const char *message = json_string_value(json_object_get(o, "message"));
    const char *level = json_string_value(json_object_get(o, "level"));
    const json_t *ts = json_object_get(o, "ts");
    if (!message || !level || !json_is_integer(ts))
        return false;
    int64_t t = json_integer_value(ts);
    if (req->cursor_ms && (req->backward ? t > req->cursor_ms : t < req->cursor_ms))
        return false;
    if (*req->level && level_rank(level) < level_rank(req->level))
        return false;
    return !*req->search || strstr(message, req->search);
}

static void collect(struct eventlog *l, const char *file, const Cube__Master__V1__ReadLogRequest *req,
                    struct lines *out)
{
    char path[64];
    path_of(l, file, path);
    _cleanup_free_ char *text = NULL;
    size_t n;
    if (file_read(l->node->sandboxes_fd, path, FILE_MAX + ENTRY_MAX * 4, &text, &n, NULL) < 0)
        return;
    for (char *line = text, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        if (!end)
            break;
        json_t *o = json_loadb(line, (size_t)(end - line), 0, NULL);
        if (!o || !wanted(o, req)) {
            json_decref(o);
            continue;
        }
        if (out->count == out->cap) {
            out->cap = out->cap ? out->cap * 2 : 64;
            out->item = realloc(out->item, out->cap * sizeof *out->item);
            if (!out->item)
                abort();
        }
        out->item[out->count++] = o;
    }
}

static Cube__Master__V1__LogEntry *to_entry(const json_t *o)
{
    Cube__Master__V1__LogEntry *en = calloc(1, sizeof *en);
    if (!en)
        abort();
    cube__master__v1__log_entry__init(en);
    en->ts_ms = json_integer_value(json_object_get(o, "ts"));
    en->level = strdup(json_string_value(json_object_get(o, "level")));
    en->message = strdup(json_string_value(json_object_get(o, "message")));
    json_t *fields = json_object_get(o, "fields");
    const char *key;
    json_t *value;
    en->fields = calloc(json_object_size(fields) + 1, sizeof *en->fields);
    json_object_foreach(fields, key, value)
    {
        Cube__V1__Pair *p = calloc(1, sizeof *p);
        if (!p || !en->fields)
            abort();
        cube__v1__pair__init(p);
        p->key = strdup(key);
        p->value = strdup(json_is_string(value) ? json_string_value(value) : "");
        en->fields[en->n_fields++] = p;
    }
    return en;
}

int eventlog_read(struct eventlog *l, const Cube__Master__V1__ReadLogRequest *req,
                  Cube__Master__V1__ReadLogReply *out, struct err *e)
{
    (void)e;
    cube__master__v1__read_log_reply__init(out);
    struct lines lines = {0};
    collect(l, "events.old", req, &lines);
    collect(l, "events", req, &lines);
    size_t limit = req->limit && req->limit < LIMIT_MAX ? req->limit : LIMIT_MAX;
    size_t n = lines.count < limit ? lines.count : limit;
    out->entries = calloc(n + 1, sizeof *out->entries);
    if (!out->entries)
        abort();
    for (size_t i = 0; i < n; i++) /* backward: the newest first */
        out->entries[out->n_entries++] = to_entry(lines.item[req->backward ? lines.count - 1 - i : i]);
    for (size_t i = 0; i < lines.count; i++)
        json_decref(lines.item[i]);
    free(lines.item);
    return 0;
}

void eventlog_reply_free(Cube__Master__V1__ReadLogReply *reply)
{
    for (size_t i = 0; i < reply->n_entries; i++)
        cube__master__v1__log_entry__free_unpacked(reply->entries[i], NULL);
    free(reply->entries);
    reply->entries = NULL;
    reply->n_entries = 0;
}
