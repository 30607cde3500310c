/* `cube down` and `cube status`. Down ends every running sandbox, the daemons and Redis, and sweeps what VMs
 * left on the host; paused sandboxes, templates and keys stay in the state directory. */
#include "cli/commands.h"
#include "cli/http.h"
#include "cli/programs.h"
#include "cli/progress.h"
#include "cli/supervise.h"
#include "lib/base/cleanup.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

/* Best effort: with the API away, the sweep ends the VMs all the same and their records tell so at the next
 * start. */
static int kill_sandboxes(struct settings *s)
{
    struct err e = {0};
    if (settings_key(s, &e) < 0)
        return 0;
    char key[96], url[512];
    snprintf(key, sizeof key, "X-API-KEY: %s", s->api_key);
    const char *headers[] = {key, NULL};
    int killed = 0;
    for (int round = 0; round < 100; round++) {
        _cleanup_buf_ struct buf out = {0};
        long status = 0;
        snprintf(url, sizeof url, "%s/v2/sandboxes?state=running&limit=100", s->api_url);
        if (http_call("GET", url, headers, NULL, 5000, &status, &out, &e) < 0 || status != 200)
            return killed;
        json_t *list = json_loadb(out.data ? out.data : "", out.len, 0, NULL);
        size_t i, before = (size_t)killed;
        json_t *one;
        json_array_foreach(list, i, one)
        {
            _cleanup_buf_ struct buf answer = {0};
            snprintf(url, sizeof url, "%s/sandboxes/%s", s->api_url,
                     json_string_value(json_object_get(one, "sandboxID")));
            if (http_call("DELETE", url, headers, NULL, 20000, &status, &answer, &e) == 0 && status == 204)
                killed++;
        }
        json_decref(list);
        if ((size_t)killed == before)
            return killed;
    }
    return killed;
}

static int run_program(const char *binary, char *const *argv, struct err *e)
{
    pid_t pid = fork();
    if (pid == 0) {
        execv(binary, argv);
        _exit(127);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return err_set(e, ERR_INTERNAL, "%s failed (status %d)", binary, status);
    return 0;
}

/* The sandbox network first: its programs hold the TAPs' interfaces and the uplink. */
static int sweep(const struct settings *s, struct err *e)
{
    char binary[512], config[256], pins[256];
    snprintf(config, sizeof config, "%s/cube.yaml", s->state_dir);
    snprintf(pins, sizeof pins, "%s/bpf/vs", s->run_dir);
    if (access(config, F_OK) < 0)
        return 0;
    program_path(s, "cube-vs", binary, sizeof binary);
    if (run_program(binary, (char *[]){"cube-vs", "--pins", pins, "remove", NULL}, e) < 0)
        return -1;
    program_path(s, "cube-jailer", binary, sizeof binary);
    return run_program(binary, (char *[]){"cube-jailer", "--config", config, "--sweep", NULL}, e);
}

/* Directories below <run> hold only sockets and pid files of ours by now. */
static void remove_run_dir(const struct settings *s)
{
    static const char *const dirs[] = {"pid", "redis", "relay", "dns", "proxy", "sb", "warm", "vmm", "bpf"};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        char path[300];
        snprintf(path, sizeof path, "%s/%s", s->run_dir, dirs[i]);
        _cleanup_closedir_ DIR *d = opendir(path);
        for (struct dirent *x; d && (x = readdir(d));)
            if (x->d_type == DT_SOCK || x->d_type == DT_REG)
                unlinkat(dirfd(d), x->d_name, 0);
        rmdir(path);
    }
    rmdir(s->run_dir);
}

int cmd_down(int argc, char **argv)
{
    struct settings s;
    settings_load(&s);
    for (int i = 1; i < argc; i++) {
        if (settings_option(&s, argc, argv, &i))
            continue;
        printf("NAME\n    cube down - stop everything and leave nothing behind\n\nSYNOPSIS\n    cube down "
               "[--state DIR]\n\n"
               "Running sandboxes are killed. Paused ones, templates, keys and logs stay in the state "
               "directory.\n");
        return strcmp(argv[i], "--help") == 0 ? 0 : 2;
    }
    unsetenv("E2B_API_KEY");
    unsetenv("E2B_API_URL");
    snprintf(s.api_url, sizeof s.api_url, "http://127.0.0.1:%d", s.port_base);
    s.api_key[0] = '\0';
    struct err e = {0};
    struct progress p = progress_step("sandboxes");
    int killed = supervise_pid(&s) > 0 ? kill_sandboxes(&s) : 0;
    progress_end(&p, 0, "%d killed", killed);
    p = progress_step("daemons");
    if (progress_end(&p, supervise_stop(&s, &e), "stopped") == 0) {
        p = progress_step("host");
        if (progress_end(&p, sweep(&s, &e), "swept") == 0) {
            remove_run_dir(&s);
            return 0;
        }
    }
    fprintf(stderr, "cube down: %s\n", e.msg);
    return 1;
}

int cmd_status(int argc, char **argv)
{
    struct settings s;
    settings_load(&s);
    for (int i = 1; i < argc; i++) {
        if (settings_option(&s, argc, argv, &i))
            continue;
        printf("NAME\n    cube status - which daemons run\n\nSYNOPSIS\n    cube status [--state DIR]\n\nEXIT "
               "STATUS\n    0 all run, 1 not all\n");
        return strcmp(argv[i], "--help") == 0 ? 0 : 2;
    }
    int missing = supervise_pid(&s) > 0 ? 0 : 1;
    printf("  %-16s %s\n", "supervisor", missing ? "stopped" : "running");
    for (const struct daemon_spec *d = daemon_table; d->name; d++) {
        if (!d->binary && s.redis[0])
            continue;
        pid_t pid = supervise_daemon_pid(&s, d->name);
        bool runs = pid > 0 && (kill(pid, 0) == 0 || errno == EPERM);
        printf("  %-16s %s", d->name, runs ? "running" : "stopped\n");
        if (runs)
            printf(", pid %d\n", pid);
        missing += !runs;
    }
    return missing ? 1 : 0;
}
