/* `cube sandbox`: create, list, look at, run in and remove sandboxes. */
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/envd.h"
#include "cli/sandbox_net.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NAME "sandbox"
#define FOLLOW_MS 500
#define PAGE 100

static int usage(int status)
{
    fputs(
        "NAME\n    cube sandbox - sandboxes of your team\n\n"
        "SYNOPSIS\n"
        "    cube sandbox create [TEMPLATE] [--timeout SECONDS] [--env K=V]... [--metadata K=V]...\n"
        "                        [--auto-pause] [--auto-resume] [--idle SECONDS] [--no-internet] [--json]\n"
        "    cube sandbox ls [--state running,paused] [--json]\n"
        "    cube sandbox exec ID [--user USER] [--cwd DIR] [--timeout SECONDS] -- COMMAND [ARGUMENT]...\n"
        "    cube sandbox info ID | logs ID [-f] | pause ID | resume ID\n"
        "    cube sandbox net ID [--json] [--allow-internet | --no-internet]\n"
        "    cube sandbox rm ID... | --all\n\n"
        "    TEMPLATE is `base` when left out. `exec` ends with the command's exit status.\n"
        "    --idle pauses the sandbox after so many seconds without activity instead of at a fixed time.\n"
        "    `net` shows rules, connections and dropped packets, or changes whether the internet is open.\n",
        status ? stderr : stdout);
    return status;
}

static void sandbox_path(char *out, size_t cap, const char *id, const char *rest)
{
    /* An ID is [a-z0-9-]; anything else would only make another path, which the API refuses. */
    snprintf(out, cap, "/sandboxes/%.64s%s", id, rest);
    for (char *p = out + 11; *p && p < out + 11 + strlen(id); p++)
        if (*p == '/' || *p == '?' || *p == '#')
            *p = '_';
}

/* ---- create ---- */

static int create(struct client *c, int argc, char **argv)
{
    struct err e = {0};
    const char *template = NULL;
    bool as_json = false;
    json_t *body = json_object(), *envs = json_object(), *metadata = json_object(), *answer = NULL;
    for (int i = 2; i < argc; i++) {
        bool more = i + 1 < argc;
        if (settings_option(&c->s, argc, argv, &i))
            continue;
        if (strcmp(argv[i], "--timeout") == 0 && more)
            json_object_set_new(body, "timeout", json_integer(atoll(argv[++i])));
        else if (strcmp(argv[i], "--idle") == 0 && more)
            json_object_set_new(metadata, "cube.idle", json_string(argv[++i]));
        else if (strcmp(argv[i], "--env") == 0 && more && client_pair(envs, argv[i + 1]))
            i++;
        else if (strcmp(argv[i], "--metadata") == 0 && more && client_pair(metadata, argv[i + 1]))
            i++;
        else if (strcmp(argv[i], "--auto-pause") == 0)
            json_object_set_new(body, "autoPause", json_true());
        else if (strcmp(argv[i], "--auto-resume") == 0)
            json_object_set_new(body, "autoResume", json_pack("{s:b}", "enabled", 1));
        else if (strcmp(argv[i], "--no-internet") == 0)
            json_object_set_new(body, "allow_internet_access", json_false());
        else if (strcmp(argv[i], "--json") == 0)
            as_json = true;
        else if (argv[i][0] != '-' && !template)
            template = argv[i];
        else
            return usage(2);
    }
    json_object_set_new(body, "templateID", json_string(template ? template : "base"));
    json_object_set_new(body, "envVars", envs);
    json_object_set_new(body, "metadata", metadata);
    if (client_call(c, false, "POST", "/v2/sandboxes", body, &answer, &e) < 0)
        return client_fail(NAME, &e);
    if (as_json)
        client_print_json(answer);
    else
        puts(client_text(answer, "sandboxID"));
    json_decref(answer);
    return 0;
}

/* ---- list ---- */

static void print_row(const json_t *o)
{
    char metadata[120] = "";
    const char *key;
    json_t *v;
    json_object_foreach(json_object_get(o, "metadata"), key, v)
    {
        size_t n = strlen(metadata);
        snprintf(metadata + n, sizeof metadata - n, "%s%s=%s", n ? "," : "", key, json_string_value(v));
    }
    const char *name = json_string_value(json_object_get(o, "alias"));
    printf("%-22s %-8s %-20s %-20.19s %-20.19s %s\n", client_text(o, "sandboxID"), client_text(o, "state"),
           name ? name : client_text(o, "templateID"), client_text(o, "startedAt"), client_text(o, "endAt"),
           metadata);
}

/* One page, the newest; who has more than a hundred sandboxes filters or uses an SDK. */
static int list(struct client *c, int argc, char **argv)
{
    struct err e = {0};
    const char *state = "running,paused";
    bool as_json = false;
    for (int i = 2; i < argc; i++) {
        if (settings_option(&c->s, argc, argv, &i))
            continue;
        if (strcmp(argv[i], "--state") == 0 && i + 1 < argc)
            state = argv[++i];
        else if (strcmp(argv[i], "--json") == 0)
            as_json = true;
        else
            return usage(2);
    }
    char path[160];
    snprintf(path, sizeof path, "/v2/sandboxes?limit=%d&state=%.64s", PAGE, state);
    json_t *answer = NULL, *o;
    size_t i;
    if (client_call(c, false, "GET", path, NULL, &answer, &e) < 0)
        return client_fail(NAME, &e);
    if (as_json) {
        client_print_json(answer);
    } else {
        printf("%-22s %-8s %-20s %-20s %-20s %s\n", "ID", "STATE", "TEMPLATE", "STARTED (UTC)", "ENDS (UTC)",
               "METADATA");
        json_array_foreach(answer, i, o) print_row(o);
        if (json_array_size(answer) == PAGE)
            printf("(the newest %d)\n", PAGE);
    }
    json_decref(answer);
    return 0;
}

/* ---- exec ---- */

static void on_output(int stream, const char *p, size_t n, void *data)
{
    fwrite(p, 1, n, stream == 2 ? stderr : stdout);
    fflush(stream == 2 ? stderr : stdout);
}

static int exec(struct client *c, int argc, char **argv)
{
    struct err e = {0};
    const char *id = NULL, *user = NULL, *cwd = NULL;
    long timeout_ms = 0;
    int i = 2;
    for (; i < argc && strcmp(argv[i], "--") != 0; i++) {
        bool more = i + 1 < argc;
        if (settings_option(&c->s, argc, argv, &i))
            continue;
        if (strcmp(argv[i], "--user") == 0 && more)
            user = argv[++i];
        else if (strcmp(argv[i], "--cwd") == 0 && more)
            cwd = argv[++i];
        else if (strcmp(argv[i], "--timeout") == 0 && more)
            timeout_ms = atol(argv[++i]) * 1000;
        else if (argv[i][0] != '-' && !id)
            id = argv[i];
        else
            break;
    }
    if (i < argc && strcmp(argv[i], "--") == 0)
        i++;
    if (!id || i >= argc)
        return usage(2);
    char path[128];
    sandbox_path(path, sizeof path, id, "");
    json_t *detail = NULL;
    if (client_call(c, false, "GET", path, NULL, &detail, &e) < 0)
        return client_fail(NAME, &e);
    const char *token = json_string_value(json_object_get(detail, "envdAccessToken"));
    struct envd_target target = {c->s.sandbox_url, json_string_value(json_object_get(detail, "sandboxID")),
                                 token, user};
    struct envd_result result = {0};
    int bad = envd_run(&target, argv + i, cwd, timeout_ms, on_output, NULL, &result, &e);
    json_decref(detail);
    return bad < 0 ? client_fail(NAME, &e) : result.exit_code;
}

/* ---- one sandbox ---- */

static int info(struct client *c, const char *id)
{
    struct err e = {0};
    char path[128];
    json_t *detail = NULL, *ours = NULL;
    sandbox_path(path, sizeof path, id, "");
    if (client_call(c, false, "GET", path, NULL, &detail, &e) < 0)
        return client_fail(NAME, &e);
    json_object_del(detail, "envdAccessToken");
    json_object_del(detail, "trafficAccessToken");
    snprintf(path, sizeof path, "/cube/v1/sandboxes/%.64s", client_text(detail, "sandboxID"));
    if (client_call(c, false, "GET", path, NULL, &ours, &e) == 0)
        json_object_set(detail, "cube", ours);
    client_print_json(detail);
    json_decref(ours);
    json_decref(detail);
    return 0;
}

/* What a guest wrote, without what a terminal would obey. */
static void print_plain(const char *s)
{
    for (; *s; s++)
        putchar((unsigned char)*s < ' ' || *s == 0x7f ? '?' : *s);
}

static int64_t print_logs(json_t *answer)
{
    int64_t last_ms = -1;
    size_t i;
    json_t *o;
    json_array_foreach(json_object_get(answer, "logs"), i, o)
    {
        const char *at = client_text(o, "timestamp");
        struct tm tm = {0};
        printf("%.23s %-5s ", at, client_text(o, "level"));
        print_plain(client_text(o, "message"));
        const char *key;
        json_t *value;
        json_object_foreach(json_object_get(o, "fields"), key, value)
        {
            putchar(' ');
            print_plain(key);
            putchar('=');
            print_plain(json_is_string(value) ? json_string_value(value) : "");
        }
        putchar('\n');
        const char *rest = strptime(at, "%Y-%m-%dT%H:%M:%S", &tm);
        if (rest)
            last_ms = (int64_t)timegm(&tm) * 1000 + (*rest == '.' ? atoi(rest + 1) : 0);
    }
    fflush(stdout);
    return last_ms;
}

static int logs(struct client *c, const char *id, bool follow)
{
    struct err e = {0};
    int64_t cursor = 0;
    for (;;) {
        char path[200];
        snprintf(path, sizeof path, "/v2/sandboxes/%.64s/logs?direction=forward&limit=1000&cursor=%" PRId64,
                 id, cursor);
        json_t *answer = NULL;
        if (client_call(c, false, "GET", path, NULL, &answer, &e) < 0)
            return client_fail(NAME, &e);
        int64_t last = print_logs(answer);
        json_decref(answer);
        if (last >= 0)
            cursor = last + 1;
        else if (!follow)
            return 0;
        else
            usleep(FOLLOW_MS * 1000);
    }
}

static int act(struct client *c, const char *method, const char *id, const char *rest, json_t *body)
{
    struct err e = {0};
    char path[128];
    sandbox_path(path, sizeof path, id, rest);
    return client_call(c, false, method, path, body, NULL, &e) < 0 ? client_fail(NAME, &e) : 0;
}

static int one(struct client *c, int argc, char **argv)
{
    const char *id = NULL;
    bool follow = false, as_json = false, open_net = false, close_net = false;
    const struct client_flag flags[] = {{"-f", &follow, NULL},
                                        {"--json", &as_json, NULL},
                                        {"--allow-internet", &open_net, NULL},
                                        {"--no-internet", &close_net, NULL},
                                        {0}};
    if (client_options(c, argc, argv, 2, flags, &id) < 0 || !id || (open_net && close_net) ||
        (as_json && strcmp(argv[1], "net") != 0))
        return usage(2);
    if (strcmp(argv[1], "info") == 0)
        return info(c, id);
    if (strcmp(argv[1], "logs") == 0)
        return logs(c, id, follow);
    if (strcmp(argv[1], "pause") == 0)
        return act(c, "POST", id, "/pause", json_object());
    if (strcmp(argv[1], "resume") == 0)
        return act(c, "POST", id, "/connect", json_pack("{s:i}", "timeout", 300));
    if (!open_net && !close_net)
        return sandbox_net_show(c, id, as_json);
    return act(c, "PUT", id, "/network", json_pack("{s:b}", "allow_internet_access", open_net));
}

/* ---- remove ---- */

static int remove_all(struct client *c)
{
    struct err e = {0};
    int bad = 0;
    for (;;) {
        json_t *answer = NULL, *o;
        size_t i, gone = 0;
        if (client_call(c, false, "GET", "/v2/sandboxes?limit=100", NULL, &answer, &e) < 0)
            return client_fail(NAME, &e);
        json_array_foreach(answer, i, o)
        {
            const char *id = client_text(o, "sandboxID");
            if (act(c, "DELETE", id, "", NULL) == 0) {
                puts(id);
                gone++;
            } else {
                bad = 1;
            }
        }
        size_t n = json_array_size(answer);
        json_decref(answer);
        if (n < 100 || gone == 0)
            return bad;
    }
}

static int remove_some(struct client *c, int argc, char **argv)
{
    int bad = 0, n = 0;
    for (int i = 2; i < argc; i++) {
        if (settings_option(&c->s, argc, argv, &i))
            continue;
        if (strcmp(argv[i], "--all") == 0)
            return remove_all(c);
        if (argv[i][0] == '-')
            return usage(2);
        bad |= act(c, "DELETE", argv[i], "", NULL);
        n++;
    }
    return n ? bad : usage(2);
}

int cmd_sandbox(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(struct client *c, int argc, char **argv);
    } table[] = {{"create", create}, {"ls", list},    {"exec", exec}, {"info", one},      {"logs", one},
                 {"pause", one},     {"resume", one}, {"net", one},   {"rm", remove_some}};
    if (argc < 2 || strcmp(argv[1], "--help") == 0)
        return usage(argc < 2 ? 2 : 0);
    struct client c;
    client_init(&c);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].name, argv[1]) == 0)
            return table[i].run(&c, argc, argv);
    return usage(2);
}
