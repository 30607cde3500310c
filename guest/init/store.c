/* The store of descriptors and of ends. Invariant: a record owns its descriptors; it goes away only when envd
 * says the process is over, so a crash of envd at any moment loses no process; and how it ended is kept for
 * as long as envd says, in bounded number and size. */
#include "guest/init/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "guest/common/spawn.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"

#define ENDS_MAX 512 /* as many as envd itself keeps */
#define TAG_MAX 1024

struct record {
    struct record *next;
    pid_t pid;
    bool exited;
    int code, status;
    int n_fds, fds[NOTIFY_FDS];
    int n_strings;
    size_t len;
    char strings[]; /* NUL-terminated, one after the other */
};

/* How a process ended: the strings of its 'Z'. */
struct end {
    struct end *next;
    int64_t until_ms;
    char pid[16], code[16], how[4], until[24], tag[];
};

static struct record *records;
static unsigned count;
static struct end *ends, **ends_tail = &ends; /* the oldest first */
static unsigned end_count;

unsigned store_count(void)
{
    return count;
}

void store_put(struct notify_msg *m)
{
    size_t len =
        m->n_strings ? (size_t)(m->s[m->n_strings - 1] - m->s[0]) + strlen(m->s[m->n_strings - 1]) + 1 : 0;
    struct record *r = m->n_strings ? malloc(sizeof(*r) + len) : NULL;
    if (!r) {
        for (int i = 0; i < m->n_fds; i++)
            close(m->fds[i]);
        return;
    }
    *r = (struct record){.next = records,
                         .pid = (pid_t)atoi(m->s[0]),
                         .n_fds = m->n_fds,
                         .n_strings = m->n_strings,
                         .len = len};
    memcpy(r->fds, m->fds, sizeof(r->fds));
    memcpy(r->strings, m->s[0], len);
    records = r;
    count++;
}

void store_forget(pid_t pid)
{
    for (struct record **at = &records; *at; at = &(*at)->next) {
        struct record *r = *at;
        if (r->pid != pid)
            continue;
        *at = r->next;
        for (int i = 0; i < r->n_fds; i++)
            close(r->fds[i]);
        free(r);
        count--;
        return;
    }
}

static void end_drop(struct end **at)
{
    struct end *x = *at;
    *at = x->next;
    if (ends_tail == &x->next)
        ends_tail = at;
    free(x);
    end_count--;
}

void store_ended(const struct notify_msg *m)
{
    if (m->n_strings < 5 || strlen(m->s[4]) > TAG_MAX)
        return;
    struct end *x = calloc(1, sizeof(*x) + strlen(m->s[4]) + 1);
    if (!x)
        return;
    x->until_ms = atoll(m->s[3]);
    snprintf(x->pid, sizeof(x->pid), "%s", m->s[0]);
    snprintf(x->code, sizeof(x->code), "%s", m->s[1]);
    snprintf(x->how, sizeof(x->how), "%s", m->s[2]);
    snprintf(x->until, sizeof(x->until), "%s", m->s[3]);
    strcpy(x->tag, m->s[4]);
    *ends_tail = x;
    ends_tail = &x->next;
    int64_t now = clock_mono_us() / 1000;
    end_count++;
    while (ends && (end_count > ENDS_MAX || ends->until_ms <= now))
        end_drop(&ends);
}

void store_stdin_close(pid_t pid)
{
    for (struct record *r = records; r; r = r->next) {
        char *flags = r->strings + strlen(r->strings) + 1;
        char *i = r->n_strings > 1 ? strchr(flags, 'i') : NULL;
        if (r->pid != pid || !i || r->n_fds < 2)
            continue;
        *i = '-';
        close(r->fds[1]);
        r->n_fds--;
        memmove(&r->fds[1], &r->fds[2], (size_t)(r->n_fds - 1) * sizeof(int));
        return;
    }
}

void store_signal(pid_t pid, int sig)
{
    for (struct record *r = records; r; r = r->next)
        if (r->pid == pid && !r->exited) {
            spawn_kill_group(pid, sig);
            return;
        }
}

static void exited_message(const struct record *r, struct notify_msg *m)
{
    char text[3][16];
    snprintf(text[0], sizeof(text[0]), "%d", (int)r->pid);
    snprintf(text[1], sizeof(text[1]), "%d", r->code);
    snprintf(text[2], sizeof(text[2]), "%d", r->status);
    notify_start(m, 'X');
    for (int i = 0; i < 3; i++)
        notify_add(m, text[i]);
}

bool store_exited(pid_t pid, int code, int status, struct notify_msg *out)
{
    for (struct record *r = records; r; r = r->next)
        if (r->pid == pid && !r->exited) {
            r->exited = true;
            r->code = code;
            r->status = status;
            exited_message(r, out);
            return true;
        }
    return false;
}

void store_replay(int fd)
{
    static struct notify_msg m;
    unsigned lost = 0;
    for (struct record *r = records; r; r = r->next) {
        const char *s = r->strings;
        notify_start(&m, 'S');
        for (int i = 0; i < r->n_strings; i++, s += strlen(s) + 1)
            notify_add(&m, s);
        m.n_fds = r->n_fds;
        memcpy(m.fds, r->fds, sizeof(m.fds));
        lost += notify_send(fd, &m) < 0;
        if (r->exited) {
            exited_message(r, &m);
            notify_send(fd, &m);
        }
    }
    int64_t now = clock_mono_us() / 1000;
    for (struct end *x = ends; x; x = x->next) {
        const char *all[] = {x->pid, x->code, x->how, x->until, x->tag};
        notify_start(&m, 'Z');
        for (int i = 0; i < 5; i++)
            notify_add(&m, all[i]);
        if (x->until_ms > now)
            notify_send(fd, &m);
    }
    notify_start(&m, 'D');
    notify_send(fd, &m);
    if (lost)
        log_error("%u processes could not be handed to the new envd", lost);
}
