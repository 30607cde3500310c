/* Operation events. The node keeps them as the sandbox's bounded log; cube-init forwards them. */
#include "guest/envd/oplog.h"

#include <stdio.h>
#include <string.h>

#include "guest/common/notify.h"
#include "guest/envd/keeper.h"
#include "guest/envd/process.h"

#define COMMAND_MAX 256

static struct notify_msg msg;

static void begin(const char *kind, const char *text)
{
    notify_start(&msg, 'E');
    notify_add(&msg, kind);
    notify_add(&msg, "info");
    notify_add(&msg, text);
}

static void field(const char *key, const char *value)
{
    notify_add(&msg, key);
    notify_add(&msg, value);
}

static void pid_field(pid_t pid)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", (int)pid);
    field("pid", text);
}

/* The command line as people read it, cut. */
static void command_text(const struct proc *p, char *out, size_t cap)
{
    size_t n = (size_t)snprintf(out, cap, "%s", p->cmd);
    for (size_t i = 0; i < p->args.n && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, " %s", p->args.v[i]);
}

void oplog_start(const struct proc *p)
{
    char cmd[COMMAND_MAX];
    command_text(p, cmd, sizeof(cmd));
    begin("process_start", "process started");
    pid_field(p->pid);
    field("cmd", cmd);
    field("user", p->user);
    keeper_send(&msg);
}

void oplog_exit(const struct proc *p)
{
    char code[16];
    snprintf(code, sizeof(code), "%d", p->exit_code);
    begin("process_exit", "process ended");
    pid_field(p->pid);
    field(p->by_signal ? "signal" : "exit_code", code);
    field("user", p->user);
    keeper_send(&msg);
}

void oplog_file(const char *kind, const char *path, const char *to, int64_t size, const char *user)
{
    char text[24];
    begin(kind, kind);
    field("path", path);
    if (to)
        field("destination", to);
    if (size >= 0) {
        snprintf(text, sizeof(text), "%lld", (long long)size);
        field("size", text);
    }
    field("user", user);
    keeper_send(&msg);
}
