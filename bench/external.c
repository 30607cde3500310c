/* Owns the running of other parts' benchmarks; invariant: what is printed is an object of the agreed shape,
 * or an error. */
#include "bench/external.h"

#include "bench/full.h"
#include "lib/base/buf.h"
#include "lib/net/jsonin.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_OUTPUT (1u << 20)
#define MAX_WORDS 32

struct external {
    const char *name;
    const struct bench_options *o;
    const struct full *full; /* NULL: needs no cluster */
};

/* One word with its placeholders replaced. */
static char *expand(const struct external *x, const char *word, size_t n)
{
    struct buf b = {0};
    char node[32] = "";
    if (x->full)
        snprintf(node, sizeof node, "127.0.0.1:%d", x->full->port + 40);
    const struct {
        const char *mark, *value;
    } rows[] = {{"@root@", x->o->root},
                {"@build@", x->o->build},
                {"@name@", x->name},
                {"@node@", node},
                {"@state@", x->full ? x->full->state : ""},
                {"@run@", x->full ? x->full->run : ""},
                {"@template@", x->full ? x->full->template_id : ""}};
    for (size_t i = 0; i < n;) {
        size_t k = 0;
        while (k < sizeof rows / sizeof *rows && strncmp(word + i, rows[k].mark, strlen(rows[k].mark)) != 0)
            k++;
        if (k < sizeof rows / sizeof *rows) {
            buf_puts(&b, rows[k].value);
            i += strlen(rows[k].mark);
        } else {
            buf_putc(&b, word[i++]);
        }
    }
    buf_cstr(&b);
    return b.data;
}

bool external_available(const char *command, const struct bench_options *o)
{
    struct external x = {.name = "", .o = o};
    char *program = expand(&x, command, strcspn(command, " "));
    bool ok = program && access(program, X_OK) == 0;
    free(program);
    return ok;
}

static int read_all(int fd, struct buf *out)
{
    while (out->len < MAX_OUTPUT && buf_reserve(out, 4096)) {
        ssize_t n = read(fd, out->data + out->len, out->cap - out->len);
        if (n <= 0)
            return (int)n;
        out->len += (size_t)n;
    }
    return -1;
}

static volatile sig_atomic_t program_pid;

/* The program is told, so that it can print what it has; we print that and end after it. */
static void on_end_wanted(int sig)
{
    if (program_pid > 0)
        kill(program_pid, SIGTERM);
}

/* What the program printed is in *out even when its status says that it could not finish. */
static int run_words(char *const *argv, struct buf *out, struct err *e)
{
    struct sigaction ask = {.sa_handler = on_end_wanted, .sa_flags = SA_RESTART}, old[2];
    int fds[2], status = -1;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_sys(e, ERR_INTERNAL, "running %s", argv[0]);
    sigaction(SIGTERM, &ask, &old[0]);
    sigaction(SIGINT, &ask, &old[1]);
    pid_t pid = fork();
    program_pid = pid;
    if (pid == 0) {
        sigaction(SIGTERM, &old[0], NULL);
        sigaction(SIGINT, &old[1], NULL);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        dup2(fds[1], STDOUT_FILENO);
        execv(argv[0], argv);
        fprintf(stderr, "%s: %m\n", argv[0]);
        _exit(127);
    }
    close(fds[1]);
    int r = pid < 0 ? -1 : read_all(fds[0], out);
    close(fds[0]);
    if (pid > 0)
        waitpid(pid, &status, 0);
    program_pid = 0;
    sigaction(SIGTERM, &old[0], NULL);
    sigaction(SIGINT, &old[1], NULL);
    if (r < 0 || status != 0)
        return err_set(e, ERR_INTERNAL, "%s ended with status %d", argv[0],
                       WIFEXITED(status) ? WEXITSTATUS(status) : status);
    return 0;
}

/* {name, environment{cores, kernel, kvm, load}, busy, results[{metric, unit, n, p50, p99, max}]} (internal.md
 * §12). */
static int check(const char *name, json_t *v, struct err *e)
{
    const char *text;
    const json_t *child, *results = NULL;
    bool busy;
    if (jsonin_need_str(v, "name", 60, &text, e) < 0 || jsonin_obj(v, "environment", &child, e) < 0 ||
        jsonin_arr(v, "results", 1000, &results, e) < 0 || jsonin_bool(v, "busy", &busy, e) < 0)
        return -1;
    if (strcmp(text, name) != 0 || !results || json_array_size(results) == 0)
        return err_set(e, ERR_INVALID, "the object is of \"%s\" with %zu results", text,
                       json_array_size(results));
    for (size_t i = 0; i < json_array_size(results); i++) {
        const json_t *row = json_array_get(results, i);
        if (jsonin_need_str(row, "metric", 60, &text, e) < 0 ||
            jsonin_need_str(row, "unit", 60, &text, e) < 0)
            return -1;
        if (!json_is_number(json_object_get(row, "p50")) || !json_is_number(json_object_get(row, "max")))
            return err_set(e, ERR_INVALID, "result %zu has no p50 or max", i);
    }
    return 0;
}

static void print_table(json_t *v)
{
    const json_t *env = json_object_get(v, "environment"), *results = json_object_get(v, "results");
    const char *kernel = json_string_value(json_object_get(env, "kernel")),
               *kvm = json_string_value(json_object_get(env, "kvm"));
    printf("%s  (%lld cores, kernel %s, KVM %s, load %.2f%s)\n",
           json_string_value(json_object_get(v, "name")),
           (long long)json_integer_value(json_object_get(env, "cores")), kernel ? kernel : "?",
           kvm ? kvm : "?", json_number_value(json_object_get(env, "load")),
           json_is_true(json_object_get(v, "busy")) ? ": the machine was busy" : "");
    for (size_t i = 0; i < json_array_size(results); i++) {
        const json_t *row = json_array_get(results, i);
        printf("  %-24s %-9s n=%-6lld p50=%-10.3f p99=%-10.3f max=%.3f\n",
               json_string_value(json_object_get(row, "metric")),
               json_string_value(json_object_get(row, "unit")),
               (long long)json_integer_value(json_object_get(row, "n")),
               json_number_value(json_object_get(row, "p50")), json_number_value(json_object_get(row, "p99")),
               json_number_value(json_object_get(row, "max")));
    }
}

static int run_and_print(const struct external *x, const char *command, char *const *more, struct err *e)
{
    char *argv[MAX_WORDS + 2] = {0};
    size_t n = 0;
    _cleanup_buf_ struct buf out = {0};
    for (const char *p = command; *p && n < MAX_WORDS; p += strspn(p, " ")) {
        size_t len = strcspn(p, " ");
        argv[n++] = expand(x, p, len);
        p += len;
    }
    argv[n++] = strdup("--json");
    size_t own = n;
    for (; *more && n < MAX_WORDS; more++)
        argv[n++] = *more;
    int r = run_words(argv, &out, e);
    for (size_t i = 0; i < own; i++)
        free(argv[i]);
    if (r < 0 && !out.len)
        return -1;
    struct err partial = {0}, *parse = r < 0 ? &partial : e;
    _cleanup_json_ json_t *v = jsonin_load_object(out.data ? out.data : "", out.len, MAX_OUTPUT, parse);
    if (r < 0 && (!v || check(x->name, v, parse) < 0))
        return -1;
    if (!v || check(x->name, v, e) < 0)
        return err_wrap(e, "the output of %s", x->name);
    if (x->o->json)
        fwrite(out.data, 1, out.len, stdout);
    else
        print_table(v);
    return r;
}

static void set_sdk_variables(const struct full *f)
{
    char url[64];
    snprintf(url, sizeof url, "http://127.0.0.1:%d", f->port);
    setenv("E2B_API_URL", url, 1);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", f->port + 20);
    setenv("E2B_SANDBOX_URL", url, 1);
    setenv("E2B_API_KEY", f->api_key, 1);
}

int external_run(const char *name, const char *command, bool cluster, const struct bench_options *o,
                 char *const *more, struct err *e)
{
    struct external x = {.name = name, .o = o};
    struct full f;
    if (!external_available(command, o))
        return err_set(e, ERR_NOT_FOUND, "this build has no %.*s", (int)strcspn(command, " "), command);
    if (!cluster)
        return run_and_print(&x, command, more, e);
    x.full = &f;
    int r = full_prepare(&f, o->root, e);
    if (r < 0)
        return -1;
    r = full_cube(&f, o->root, "up", NULL, e);
    if (r == 0)
        r = full_describe(&f, e);
    if (r == 0) {
        set_sdk_variables(&f);
        r = run_and_print(&x, command, more, e);
    }
    full_end(&f, r < 0);
    return r;
}
