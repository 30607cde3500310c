/* Owns the control lines on stdin, by which a test makes the simulated nodes misbehave. */
#include "bench/simnode/simnode.h"

#include "lib/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct loop_watch *watch;
static char line[512];
static size_t have;

static int op_of(const char *s)
{
    static const char *const names[SIM_OPS] = {"start", "restore", "pause", "kill", "update", "snapshot"};
    for (int i = 0; i < SIM_OPS; i++)
        if (s && strcmp(s, names[i]) == 0)
            return i;
    return -1;
}

static void set_silent(struct sim *s, const char *id, bool silent)
{
    for (unsigned i = 0; i < s->nnodes; i++)
        if (strcmp(s->nodes[i].id, id) == 0) {
            s->nodes[i].silent = silent;
            if (!silent)
                sim_report_soon(&s->nodes[i]);
        }
}

static void obey(struct sim *s, char *text)
{
    char *save = NULL, *word = strtok_r(text, " ", &save), *a = strtok_r(NULL, " ", &save),
         *b = strtok_r(NULL, " ", &save);
    char *c = strtok_r(NULL, " ", &save);
    int op = op_of(a);
    if (!word)
        return;
    if (strcmp(word, "delay") == 0 && op >= 0 && b)
        s->faults[op].delay_ms = atoll(b);
    else if (strcmp(word, "refuse") == 0 && op >= 0 && b) {
        s->faults[op].refuse = strcmp(b, "ok") == 0 ? ERR_OK : err_code_parse(b);
        s->faults[op].percent = c ? atoi(c) : 100;
    } else if (strcmp(word, "die") == 0 && a)
        sim_die(a, b ? b : "the VM ended by itself");
    else if (strcmp(word, "silence") == 0 && a)
        set_silent(s, a, true);
    else if (strcmp(word, "speak") == 0 && a)
        set_silent(s, a, false);
    else if (strcmp(word, "count") != 0) {
        printf("? %s\n", word);
        fflush(stdout);
        return;
    }
    uint32_t running = 0;
    for (unsigned i = 0; i < s->nnodes; i++)
        running += s->nodes[i].count;
    printf("ok running=%u started=%" PRIu64 " killed=%" PRIu64 "\n", running, s->started, s->killed);
    fflush(stdout);
}

static void on_input(void *data)
{
    struct sim *s = data;
    ssize_t n = read(STDIN_FILENO, line + have, sizeof line - 1 - have);
    if (n <= 0) {
        loop_stop(s->loop); /* the test that started this process is gone */
        loop_watch_free(watch);
        return;
    }
    have += (size_t)n;
    line[have] = '\0';
    for (char *end; (end = strchr(line, '\n'));) {
        *end = '\0';
        obey(s, line);
        have -= (size_t)(end + 1 - line);
        memmove(line, end + 1, have + 1);
    }
    if (have == sizeof line - 1)
        have = 0;
}

int sim_control(struct sim *s, struct err *e)
{
    watch = loop_watch_read(s->loop, STDIN_FILENO, on_input, s);
    return watch ? 0 : err_set(e, ERR_INTERNAL, "watching stdin");
}
