/* `cube up`: from nothing to a checked cluster on this machine, each step with its time. */
#include "cli/bootstrap.h"
#include "cli/checks.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/envd.h"
#include "cli/http.h"
#include "cli/programs.h"
#include "cli/selftest.h"
#include "cli/progress.h"
#include "cli/supervise.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#define READY_WAIT_MS 120000 /* a first start makes the snapshot of the template */
#define READY_POLL_MS 20
#define SELF_CHECK_TIMEOUT_S 60

struct up {
    struct settings s;
    const char *kernel, *base, *tools;
    bool self_check;
    char template_id[64];
    struct client client; /* of this cluster, with its own key and token */
};

static int usage(int status)
{
    printf("NAME\n    cube up - start everything on this machine and check it\n\n"
           "SYNOPSIS\n    ./cube up [OPTION]...\n\nOPTIONS\n"
           "    --state DIR       where keys, templates and sandboxes are kept (/var/lib/cube)\n"
           "    --run DIR         sockets and pid files (/run/cube)\n"
           "    --port-base N     first port: api N, master N+10, proxy N+20, node N+40; admin +100 (3000)\n"
           "    --redis ADDRESS   an existing Redis (host:port); default: one is started\n"
           "    --no-check        do not create a sandbox at the end\n"
           "    --kernel, --base, --tools FILE   the guest's kernel, root file system and tools disk (set by "
           "./cube)\n\n"
           "A second run keeps keys and sandboxes, restarts what has a new program, and is quick.\n");
    return status;
}

/* Runs `cube-node template import` as the node's user; its last line of output is the template's ID. */
static int import_template(struct up *u, struct err *e)
{
    const struct daemon_spec *d = daemon_table;
    while (strcmp(d->name, "cube-node") != 0)
        d++;
    const char *const paths[] = {u->base, u->kernel, u->tools};
    char from[3][32];
    int in[3];
    for (size_t i = 0; i < 3; i++) { /* opened as root: the node's user may not reach where they lie */
        in[i] = open(paths[i], O_RDONLY);
        if (in[i] < 0)
            return err_sys(e, ERR_NOT_FOUND, "opening %s", paths[i]);
        snprintf(from[i], sizeof from[i], "/proc/self/fd/%d", in[i]);
    }
    char binary[512], config[256];
    program_of(&u->s, d, binary, sizeof binary);
    snprintf(config, sizeof config, "%s/cube.yaml", u->s.state_dir);
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_sys(e, ERR_INTERNAL, "importing the template");
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[1], STDOUT_FILENO);
        daemon_drop_privileges(d);
        execl(binary, "cube-node", "template", "import", "--config", config, "--name", "base", "--root",
              from[0], "--kernel", from[1], "--tools", from[2], (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    for (size_t i = 0; i < 3; i++)
        close(in[i]);
    FILE *f = fdopen(fds[0], "re");
    char line[256];
    while (f && fgets(line, sizeof line, f))
        snprintf(u->template_id, sizeof u->template_id, "%.*s", (int)strcspn(line, "\r\n"), line);
    if (f)
        fclose(f);
    int status = 0;
    waitpid(pid, &status, 0);
    if (pid < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0 || !u->template_id[0])
        return err_set(e, ERR_INTERNAL, "%s template import failed (status %d)", binary, status);
    return 0;
}

/* Waits until `done` says yes; the condition lies in another process, so it is asked again every
 * READY_POLL_MS. */
static int wait_until(bool (*done)(void *arg, struct err *e), void *arg, struct err *e)
{
    int64_t end = clock_boot_ms() + READY_WAIT_MS;
    while (!done(arg, e)) {
        if (clock_boot_ms() > end)
            return -1;
        poll(NULL, 0, READY_POLL_MS);
    }
    return 0;
}

static bool daemons_ready(void *arg, struct err *e)
{
    struct up *u = arg;
    for (const struct daemon_spec *d = daemon_table; d->name; d++) {
        if (!d->admin_port)
            continue;
        char url[64];
        long status = 0;
        struct err why = {0};
        _cleanup_buf_ struct buf body = {0};
        snprintf(url, sizeof url, "http://127.0.0.1:%d/readyz", u->s.port_base + d->admin_port);
        if (http_call("GET", url, NULL, NULL, 2000, &status, &body, &why) < 0 || status != 200) {
            err_set(e, ERR_UNAVAILABLE, "%s is not ready: %s", d->name, status ? buf_cstr(&body) : why.msg);
            err_remedy(e, "see %s/log/%s.log", u->s.state_dir, d->name);
            return false;
        }
    }
    return true;
}

static int register_catalog(struct up *u, struct err *e)
{
    char path[256], token[80];
    snprintf(path, sizeof path, "%s/keys/admin_token", u->s.state_dir);
    _cleanup_fclose_ FILE *f = fopen(path, "re");
    if (!f || !fgets(token, sizeof token, f))
        return err_sys(e, ERR_INTERNAL, "reading %s", path);
    token[strcspn(token, "\r\n")] = '\0';
    u->s.api_key[0] = '\0'; /* this cluster's own key, whatever the environment says */
    if (settings_key(&u->s, e) < 0)
        return -1;
    u->client.s = u->s;
    snprintf(u->client.admin_token, sizeof u->client.admin_token, "%s", token);
    if (client_call(&u->client, true, "POST", "/cube/v1/teams",
                    json_pack("{s:s, s:s, s:s}", "teamID", "default", "name", "default", "slug", "default"),
                    NULL, e) < 0)
        return err_wrap(e, "making the team");
    if (client_call(&u->client, true, "POST", "/cube/v1/keys",
                    json_pack("{s:s, s:s, s:s}", "teamID", "default", "name", "cube up", "key", u->s.api_key),
                    NULL, e) < 0)
        return err_wrap(e, "registering the API key");
    if (client_call(&u->client, true, "POST", "/cube/v1/templates",
                    json_pack("{s:s, s:[s], s:b, s:i, s:i, s:i, s:s, s:s}", "templateID", u->template_id,
                              "aliases", "base", "public", 1, "cpuCount", 1, "memoryMB", 512, "diskSizeMB",
                              2048, "defaultUser", "user", "defaultWorkdir", "/home/user"),
                    NULL, e) < 0)
        return err_wrap(e, "registering the template");
    return 0;
}

static bool node_ready(void *arg, struct err *e)
{
    struct up *u = arg;
    json_t *nodes = NULL;
    if (client_call(&u->client, true, "GET", "/cube/v1/nodes", NULL, &nodes, e) < 0)
        return false;
    bool found = false;
    size_t i, k;
    json_t *node, *name;
    json_array_foreach(nodes, i, node)
    {
        const char *status = json_string_value(json_object_get(node, "status"));
        json_array_foreach(json_object_get(node, "templates"), k, name) found |=
            status && strcmp(status, "ready") == 0 && strcmp(json_string_value(name), u->template_id) == 0;
    }
    json_decref(nodes);
    if (!found) {
        err_set(e, ERR_UNAVAILABLE, "no node is ready with template %s", u->template_id);
        err_remedy(e, "see %s/log/cube-node.log", u->s.state_dir);
    }
    return found;
}

struct check {
    struct up *u;
    char id[64], token[80], output[512];
};

static void keep_output(int stream, const char *p, size_t n, void *data)
{
    struct check *c = data;
    size_t have = strlen(c->output);
    if (stream == 1 && have < sizeof c->output - 1)
        snprintf(c->output + have, sizeof c->output - have, "%.*s", (int)n, p);
}

static int check_create(struct check *c, struct err *e)
{
    json_t *o = NULL, *body = json_pack("{s:s, s:i}", "templateID", "base", "timeout", SELF_CHECK_TIMEOUT_S);
    if (client_call(&c->u->client, false, "POST", "/v2/sandboxes", body, &o, e) < 0)
        return err_wrap(e, "creating a sandbox");
    const char *id = json_string_value(json_object_get(o, "sandboxID"));
    const char *token = json_string_value(json_object_get(o, "envdAccessToken"));
    snprintf(c->id, sizeof c->id, "%s", id ? id : "");
    snprintf(c->token, sizeof c->token, "%s", token ? token : "");
    json_decref(o);
    return id ? 0 : err_set(e, ERR_INTERNAL, "the create answer holds no sandboxID");
}

static int check_run(struct check *c, struct err *e)
{
    struct envd_target t = {.base_url = c->u->s.sandbox_url, .sandbox_id = c->id, .access_token = c->token};
    char *argv[] = {"/bin/uname", "-a", NULL};
    struct envd_result r = {0};
    if (envd_run(&t, argv, NULL, 20000, keep_output, c, &r, e) < 0)
        return err_wrap(e, "running uname -a in sandbox %s", c->id);
    return r.exit_code == 0 ? 0 : err_set(e, ERR_INTERNAL, "uname -a in sandbox %s: %s", c->id, r.status);
}

static int check_delete(struct check *c, struct err *e)
{
    char path[128];
    snprintf(path, sizeof path, "/sandboxes/%s", c->id);
    return client_call(&c->u->client, false, "DELETE", path, NULL, NULL, e) < 0
               ? err_wrap(e, "deleting sandbox %s", c->id)
               : 0;
}

static int self_check(struct up *u, struct err *e)
{
    struct check c = {.u = u};
    struct progress p = progress_step("create a sandbox");
    if (progress_end(&p, check_create(&c, e), "%s", c.id) < 0)
        return -1;
    p = progress_step("run uname -a in it");
    int bad = check_run(&c, e);
    c.output[strcspn(c.output, "\n")] = '\0';
    progress_end(&p, bad, "%s", c.output);
    p = progress_step("delete it");
    struct err later = {0};
    int bad2 = progress_end(&p, check_delete(&c, bad ? &later : e), "done");
    return bad < 0 ? bad : bad2;
}

static int start_daemons(struct up *u, struct err *e)
{
    pid_t pid = supervise_pid(&u->s);
    if (pid > 0)
        supervise_refresh(pid);
    else if (supervise_start(&u->s, e) < 0)
        return -1;
    return wait_until(daemons_ready, u, e);
}

static int up(struct up *u, struct err *e)
{
    struct progress p = progress_step("host");
    if (progress_end(&p, checks_required(&u->s, e), "%s", checks_summary()) < 0)
        return -1;
    p = progress_step("directories and keys");
    int bad = bootstrap(&u->s, e);
    if (progress_end(&p, bad < 0 ? bad : settings_save(&u->s, e), "%s", u->s.state_dir) < 0)
        return -1;
    p = progress_step("programs");
    if (progress_end(&p, programs_install(&u->s, e), "%s/bin", u->s.state_dir) < 0)
        return -1;
    p = progress_step("self-test");
    bad = selftest_run(u->kernel, u->tools, e) < 0 ? -1 : 0;
    if (progress_end(&p, bad, "a guest boots, its user mode works") < 0)
        return -1;
    p = progress_step("template base");
    if (progress_end(&p, import_template(u, e), "%s", u->template_id) < 0)
        return -1;
    p = progress_step("daemons");
    if (progress_end(&p, start_daemons(u, e), "api, master, lifecycle, proxy, node, relay, jailer") < 0)
        return -1;
    p = progress_step("team, key, template");
    if (progress_end(&p, register_catalog(u, e), "registered") < 0)
        return -1;
    p = progress_step("node");
    if (progress_end(&p, wait_until(node_ready, u, e), "ready") < 0)
        return -1;
    return u->self_check ? self_check(u, e) : 0;
}

int cmd_up(int argc, char **argv)
{
    struct up u = {.self_check = true};
    settings_load(&u.s);
    u.kernel = getenv("CUBE_GUEST_KERNEL");
    u.base = getenv("CUBE_GUEST_BASE");
    u.tools = getenv("CUBE_GUEST_TOOLS");
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            return usage(0);
        if (strcmp(argv[i], "--no-check") == 0)
            u.self_check = false;
        else if (strcmp(argv[i], "--kernel") == 0 && i + 1 < argc)
            u.kernel = argv[++i];
        else if (strcmp(argv[i], "--base") == 0 && i + 1 < argc)
            u.base = argv[++i];
        else if (strcmp(argv[i], "--tools") == 0 && i + 1 < argc)
            u.tools = argv[++i];
        else if (!settings_option(&u.s, argc, argv, &i))
            return fprintf(stderr, "cube up: unknown option %s\n", argv[i]), usage(2);
    }
    /* What another cluster's environment says has no place here: this command makes its own. */
    unsetenv("E2B_API_KEY");
    unsetenv("E2B_API_URL");
    unsetenv("E2B_SANDBOX_URL");
    snprintf(u.s.api_url, sizeof u.s.api_url, "http://127.0.0.1:%d", u.s.port_base);
    snprintf(u.s.sandbox_url, sizeof u.s.sandbox_url, "http://127.0.0.1:%d", u.s.port_base + 20);
    if (!u.kernel || !u.base || !u.tools)
        return fprintf(
                   stderr,
                   "cube up: --kernel, --base and --tools are needed; `./cube up` makes and names them\n"),
               2;

    int64_t start = clock_mono_us();
    struct err e = {0};
    if (up(&u, &e) < 0) {
        fprintf(stderr, "cube up: %s\n", e.msg);
        if (e.remedy[0])
            fprintf(stderr, "  %s\n", e.remedy);
        return 1;
    }
    bool usual = strcmp(u.s.state_dir, "/var/lib/cube") == 0;
    printf("\nUp in %.1f s. For the SDKs:\n\n    export E2B_API_KEY=%s\n    export E2B_API_URL=%s\n    "
           "export E2B_SANDBOX_URL=%s\n\n"
           "(or: eval \"$(./cube env%s%s)\")\n",
           (double)(clock_mono_us() - start) / 1e6, u.s.api_key, u.s.api_url, u.s.sandbox_url,
           usual ? "" : " --state ", usual ? "" : u.s.state_dir);
    return 0;
}
