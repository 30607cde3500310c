/* Owns the answer to "which cluster?"; order: option, environment, what `cube up` wrote, default. */
#include "cli/settings.h"
#include "lib/base/cleanup.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORT_BASE_MIN 1024
#define PORT_BASE_MAX 65000

static const struct {
    const char *name, *env;
} options[] = {
    {"--state", "CUBE_STATE_DIR"},
    {"--run", "CUBE_RUN_DIR"},
    {"--redis", "CUBE_COMMON_REDIS"},
    {"--port-base", "CUBE_PORT_BASE"},
};

static void copy(char *out, size_t cap, const char *s)
{
    snprintf(out, cap, "%s", s);
}

static void from_env(char *out, size_t cap, const char *name)
{
    const char *v = getenv(name);
    if (v && *v)
        copy(out, cap, v);
}

static void from_json(char *out, size_t cap, json_t *o, const char *name)
{
    const char *v = json_string_value(json_object_get(o, name));
    if (v && *v)
        copy(out, cap, v);
}

static int port_base(const char *text)
{
    char *end;
    long n = strtol(text, &end, 10);
    if (end == text || *end || n < PORT_BASE_MIN || n > PORT_BASE_MAX) {
        fprintf(stderr, "cube: a port base is a number from %d to %d, not '%s'\n", PORT_BASE_MIN,
                PORT_BASE_MAX, text);
        exit(2);
    }
    return (int)n;
}

static void derive_urls(struct settings *s)
{
    snprintf(s->api_url, sizeof s->api_url, "http://127.0.0.1:%d", s->port_base);
    snprintf(s->sandbox_url, sizeof s->sandbox_url, "http://127.0.0.1:%d", s->port_base + 20);
    from_env(s->api_url, sizeof s->api_url, "E2B_API_URL");
    from_env(s->sandbox_url, sizeof s->sandbox_url, "E2B_SANDBOX_URL");
}

void settings_load(struct settings *s)
{
    *s = (struct settings){.port_base = 3000};
    copy(s->state_dir, sizeof s->state_dir, "/var/lib/cube");
    copy(s->run_dir, sizeof s->run_dir, "/run/cube");
    from_env(s->state_dir, sizeof s->state_dir, "CUBE_STATE_DIR");
    char path[256];
    snprintf(path, sizeof path, "%s/up.json", s->state_dir);
    json_t *o = json_load_file(path, 0, NULL);
    if (o) {
        from_json(s->run_dir, sizeof s->run_dir, o, "run_dir");
        from_json(s->redis, sizeof s->redis, o, "redis");
        json_int_t base = json_integer_value(json_object_get(o, "port_base"));
        if (base >= PORT_BASE_MIN && base <= PORT_BASE_MAX)
            s->port_base = (int)base;
        json_decref(o);
    }
    const char *base = getenv("CUBE_PORT_BASE");
    if (base && *base)
        s->port_base = port_base(base);
    derive_urls(s);
    from_env(s->run_dir, sizeof s->run_dir, "CUBE_RUN_DIR");
    from_env(s->redis, sizeof s->redis, "CUBE_COMMON_REDIS");
    from_env(s->api_key, sizeof s->api_key, "E2B_API_KEY");
}

int settings_save(const struct settings *s, struct err *e)
{
    char path[256], tmp[264];
    snprintf(path, sizeof path, "%s/up.json", s->state_dir);
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    json_t *o =
        json_pack("{s:s, s:s, s:i}", "run_dir", s->run_dir, "redis", s->redis, "port_base", s->port_base);
    int bad = !o || json_dump_file(o, tmp, JSON_INDENT(2)) != 0 || rename(tmp, path) != 0;
    json_decref(o);
    return bad ? err_sys(e, ERR_INTERNAL, "writing %s", path) : 0;
}

bool settings_option(struct settings *s, int argc, char **argv, int *i)
{
    const char *name = argv[*i];
    if (*i + 1 >= argc)
        return false;
    /* An option is the environment's variable, set: so the order of options doesn't matter. */
    for (size_t k = 0; k < sizeof options / sizeof *options; k++) {
        if (strcmp(name, options[k].name) != 0)
            continue;
        setenv(options[k].env, argv[*i + 1], 1);
        settings_load(s);
        *i += 1;
        return true;
    }
    return false;
}

int settings_key(struct settings *s, struct err *e)
{
    if (s->api_key[0])
        return 0;
    char path[256];
    snprintf(path, sizeof path, "%s/keys/api_key", s->state_dir);
    _cleanup_fclose_ FILE *f = fopen(path, "re");
    if (!f || !fgets(s->api_key, sizeof s->api_key, f)) {
        err_set(e, ERR_UNAUTHENTICATED, "no API key: %s cannot be read", path);
        return err_remedy(e, "run `cube up`, or set E2B_API_KEY");
    }
    s->api_key[strcspn(s->api_key, "\r\n")] = '\0';
    return 0;
}
