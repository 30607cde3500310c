/* Owns the meaning of cube.yaml: where a key's value comes from and what it may be; invariant: a file is
 * checked as a whole before any of it is used. Order: CUBE_<SECTION>_<KEY>, the section, CUBE_COMMON_<KEY>,
 * section "common", the default. */
#include "lib/net/config.h"

#include "lib/base/buf.h"
#include "lib/base/cleanup.h"
#include "lib/net/config_impl.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILE (1u << 20)
#define MAX_EXPANSION 8 /* ${a} in the default of ${b} … */

struct source {
    const char *text; /* NULL: not set */
    char where[160];  /* "cube.yaml:3:11" or "CUBE_API_LISTEN" */
};

struct lookup {
    const char *section;
    const struct config_key *keys;
    const struct config_file *file;
};

static int read_file(const char *path, struct buf *out, struct err *e)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(e, ERR_INVALID, "opening the configuration %s", path);
    for (;;) {
        if (!buf_reserve(out, 4096))
            return err_set(e, ERR_INTERNAL, "reading %s: out of memory", path);
        ssize_t n = read(fd, out->data + out->len, out->cap - out->len);
        if (n < 0)
            return err_sys(e, ERR_INVALID, "reading the configuration %s", path);
        if (n == 0)
            return 0;
        out->len += (size_t)n;
        if (out->len > MAX_FILE)
            return err_set(e, ERR_INVALID, "the configuration %s is larger than 1 MiB", path);
    }
}

static const struct config_key *find_key(const struct config_key *keys, const char *name)
{
    for (const struct config_key *k = keys; k && k->name; k++)
        if (strcmp(k->name, name) == 0)
            return k;
    return NULL;
}

/* A program's own keys count as known even before they are listed in the schema. */
static int check_known(const struct lookup *l, struct err *e)
{
    for (const struct config_value *v = l->file->values; v; v = v->next) {
        bool own = strcmp(v->section, l->section) == 0;
        if (!own && !config_section_known(v->section))
            return err_set(e, ERR_INVALID, "%s:%zu:%zu: unknown section %.60s", l->file->name, v->line,
                           v->column, v->section);
        if (config_key_known(v->section, v->key) || (own && find_key(l->keys, v->key)))
            continue;
        err_set(e, ERR_INVALID, "%s:%zu:%zu: unknown key %.60s in section %.60s", l->file->name, v->line,
                v->column, v->key, v->section);
        const char *near = config_key_near(v->section, v->key);
        return near ? err_remedy(e, "did you mean %s?", near) : -1;
    }
    return 0;
}

static void env_name(const char *section, const char *key, char out[96])
{
    snprintf(out, 96, "CUBE_%s_%s", section, key);
    for (char *p = out; *p; p++)
        *p = *p == '-' || *p == '.' ? '_' : (char)toupper((unsigned char)*p);
}

static bool look_in(const struct lookup *l, const char *section, const char *key, struct source *s)
{
    char name[96];
    env_name(section, key, name);
    const char *env = getenv(name);
    if (env) {
        s->text = env;
        snprintf(s->where, sizeof s->where, "%s", name);
        return true;
    }
    for (const struct config_value *v = l->file->values; v; v = v->next) {
        if (strcmp(v->section, section) == 0 && strcmp(v->key, key) == 0) {
            s->text = v->text;
            snprintf(s->where, sizeof s->where, "%.120s:%zu:%zu", l->file->name, v->line, v->column);
            return true;
        }
    }
    return false;
}

static int expand(const struct lookup *l, const char *text, int depth, struct buf *out, struct err *e);

/* Appends the value of a key; 0 when there is one, 1 when it is not set and has no default. */
static int find_value(const struct lookup *l, const char *key, int depth, struct buf *out, char where[160],
                      struct err *e)
{
    struct source s = {0};
    if (look_in(l, l->section, key, &s) || look_in(l, "common", key, &s)) {
        snprintf(where, 160, "%s", s.where);
        buf_puts(out, s.text);
        return 0;
    }
    snprintf(where, 160, "the default of %s", key);
    const struct config_key *own = find_key(l->keys, key);
    const struct config_known *shared = config_key_known("common", key);
    const char *fallback = own && own->fallback ? own->fallback : shared ? shared->fallback : NULL;
    return fallback ? expand(l, fallback, depth, out, e) : 1;
}

/* ${key} in a default stands for that key's value: "${state_dir}/keys". Text of users is taken as it is. */
static int expand(const struct lookup *l, const char *text, int depth, struct buf *out, struct err *e)
{
    while (*text) {
        const char *open = strstr(text, "${"), *close = open ? strchr(open, '}') : NULL;
        char name[64], where[160];
        if (!close || (size_t)(close - open - 2) >= sizeof name || depth >= MAX_EXPANSION)
            break;
        buf_append(out, text, (size_t)(open - text));
        memcpy(name, open + 2, (size_t)(close - open - 2));
        name[close - open - 2] = '\0';
        if (find_value(l, name, depth + 1, out, where, e) < 0)
            return -1;
        text = close + 1;
    }
    buf_puts(out, text);
    return 0;
}

/* ---- types ---- */

static const struct {
    const char *unit;
    int64_t factor;
} sizes[] = {{"", 1}, {"K", 1ll << 10}, {"M", 1ll << 20}, {"G", 1ll << 30}, {"T", 1ll << 40}},
  times[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}};

static bool parse_number(enum config_type type, const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || errno || isspace((unsigned char)*text))
        return false;
    int64_t factor = 0;
    if (type == CONFIG_INT)
        factor = *end == '\0' ? 1 : 0;
    for (size_t i = 0; type == CONFIG_SIZE && i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = strlen(sizes[i].unit);
        bool plain = strcmp(end, sizes[i].unit) == 0;
        if (plain || (n && strncmp(end, sizes[i].unit, n) == 0 && strcmp(end + n, "iB") == 0))
            factor = sizes[i].factor;
    }
    for (size_t i = 0; type == CONFIG_MS && i < sizeof times / sizeof *times; i++)
        if (strcmp(end, times[i].unit) == 0)
            factor = times[i].factor;
    if (type == CONFIG_MS && v == 0 && *end == '\0')
        factor = 1; /* 0 is the same in every unit */
    return factor != 0 && !__builtin_mul_overflow((int64_t)v, factor, out);
}

static bool parse_bool(const char *text, bool *out)
{
    static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no", "off", "0"};
    for (size_t i = 0; i < 4; i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *out = strcmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

/* Texts live as long as the process; the list keeps them in sight of leak checkers. */
static const char *keep(const char *text)
{
    static struct kept {
        struct kept *next;
        char text[];
    } * kept;
    struct kept *k = malloc(sizeof *k + strlen(text) + 1);
    if (!k)
        return NULL;
    strcpy(k->text, text);
    k->next = kept;
    kept = k;
    return k->text;
}

static int store(const struct lookup *l, const struct config_key *k, const char *text, const char *where,
                 void *out, struct err *e)
{
    static const char *const wants[] = {[CONFIG_INT] = "an integer",
                                        [CONFIG_BOOL] = "true or false",
                                        [CONFIG_SIZE] = "a size such as 64M",
                                        [CONFIG_MS] = "a time with its unit, such as 500ms, 30s, 5m"};
    char *at = (char *)out + k->offset;
    int64_t v;
    if (k->type == CONFIG_STR) {
        const char *copy = keep(text);
        memcpy(at, &copy, sizeof copy);
        return copy ? 0 : err_set(e, ERR_INTERNAL, "reading the configuration: out of memory");
    }
    if (k->type == CONFIG_BOOL) {
        bool b = false;
        if (!parse_bool(text, &b))
            return err_set(e, ERR_INVALID, "%s: %s.%s must be %s, not \"%.60s\"", where, l->section, k->name,
                           wants[k->type], text);
        memcpy(at, &b, sizeof b);
        return 0;
    }
    if (!parse_number(k->type, text, &v))
        return err_set(e, ERR_INVALID, "%s: %s.%s must be %s, not \"%.60s\"", where, l->section, k->name,
                       wants[k->type], text);
    if (k->max > 0 && (v < k->min || v > k->max))
        return err_set(e, ERR_INVALID, "%s: %s.%s is %" PRId64 "; it must be from %" PRId64 " to %" PRId64,
                       where, l->section, k->name, v, k->min, k->max);
    memcpy(at, &v, sizeof v);
    return 0;
}

static int fill(const struct lookup *l, void *out, struct err *e)
{
    for (const struct config_key *k = l->keys; k->name; k++) {
        _cleanup_buf_ struct buf text = {0};
        char where[160], env[96];
        int r = find_value(l, k->name, 0, &text, where, e);
        if (r < 0)
            return -1;
        if (r == 1) {
            env_name(l->section, k->name, env);
            err_set(e, ERR_INVALID, "%s: %s.%s is required", l->file->name, l->section, k->name);
            return err_remedy(e, "set %s below `%s:`, or %s", k->name, l->section, env);
        }
        if (store(l, k, buf_cstr(&text), where, out, e) < 0)
            return -1;
    }
    return 0;
}

int config_load(const char *path, const char *section, const struct config_key *keys, void *out,
                struct err *e)
{
    _cleanup_buf_ struct buf text = {0};
    struct config_file file = {.name = path ? path : "configuration"};
    struct lookup l = {.section = section, .keys = keys, .file = &file};
    int r = 0;
    if (path)
        r = read_file(path, &text, e);
    if (r == 0 && path)
        r = config_parse(path, text.data ? text.data : "", text.len, &file, e);
    if (r == 0)
        r = check_known(&l, e);
    if (r == 0)
        r = fill(&l, out, e);
    config_file_free(&file);
    return r;
}

void config_usage(const char *section, const struct config_key *keys)
{
    for (const struct config_key *k = keys; k->name; k++) {
        char env[96];
        env_name(section, k->name, env);
        const struct config_known *shared = config_key_known("common", k->name);
        const char *fallback = k->fallback                  ? k->fallback
                               : shared && shared->fallback ? shared->fallback
                                                            : NULL;
        printf("    %s.%s\n        %s\n        default: %s; environment: %s\n", section, k->name,
               k->help ? k->help : "",
               !fallback   ? "none, required"
               : *fallback ? fallback
                           : "empty",
               env);
    }
}
