/* The envd side of the channel to cube-init. Invariant: nothing here blocks; an event that does not fit is
 * counted, not waited for, while process records go first because they are sent before the process runs far.
 */
#include "guest/envd/keeper.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "guest/common/notify.h"
#include "guest/envd/process.h"
#include "lib/base/log.h"

static struct ev channel = {.fd = -1};
static struct notify_msg out; /* one thread: the loop */

void keeper_send(const struct notify_msg *m)
{
    if (channel.fd >= 0)
        notify_send(channel.fd, m);
}

static void send_pid(char type, pid_t pid)
{
    char text[16];
    if (channel.fd < 0)
        return;
    snprintf(text, sizeof(text), "%d", (int)pid);
    notify_start(&out, type);
    notify_add(&out, text);
    keeper_send(&out);
}

void keeper_forget(pid_t pid)
{
    send_pid('F', pid);
}

void keeper_ended(const struct proc *p, int64_t until_ms)
{
    char text[3][24];
    if (channel.fd < 0)
        return;
    snprintf(text[0], sizeof(text[0]), "%d", (int)p->pid);
    snprintf(text[1], sizeof(text[1]), "%d", p->exit_code);
    snprintf(text[2], sizeof(text[2]), "%lld", (long long)until_ms);
    const char *how = p->by_signal ? (p->has_tag ? "st" : "s") : (p->has_tag ? "t" : "");
    const char *all[] = {text[0], text[1], how, text[2], p->tag};
    notify_start(&out, 'Z');
    for (int i = 0; i < 5; i++)
        notify_add(&out, all[i]);
    keeper_send(&out);
}

int keeper_signal(pid_t pid, int sig)
{
    char text[2][16];
    snprintf(text[0], sizeof(text[0]), "%d", (int)pid);
    snprintf(text[1], sizeof(text[1]), "%d", sig);
    notify_start(&out, 'K');
    notify_add(&out, text[0]);
    notify_add(&out, text[1]);
    return notify_send(channel.fd, &out);
}

void keeper_stdin_closed(pid_t pid)
{
    send_pid('C', pid);
}

void keeper_store(const struct proc *p)
{
    char pid[16], flags[8] = "", deadline[24] = "-";
    if (channel.fd < 0)
        return;
    snprintf(pid, sizeof(pid), "%d", (int)p->pid);
    snprintf(flags, sizeof(flags), "%s%s%s%s%s", p->pty ? "p" : "", p->in.fd >= 0 ? "i" : "",
             p->err.fd >= 0 ? "e" : "", p->has_cwd ? "c" : "", p->has_tag ? "t" : "");
    if (p->deadline_ms >= 0)
        snprintf(deadline, sizeof(deadline), "%lld", (long long)p->deadline_ms);
    notify_start(&out, 'S');
    const char *head[] = {pid, flags, p->cmd, p->cwd, p->tag, p->user, deadline};
    for (size_t i = 0; i < 7; i++)
        if (!notify_add(&out, head[i]) && !notify_add(&out, ""))
            return;
    for (size_t i = 0; i < p->args.n; i++)
        if (!notify_add(&out, p->args.v[i]))
            break; /* a very long command line is cut in List after a restart; the process itself is not
                      affected */
    out.fds[out.n_fds++] = p->exit.fd;
    if (p->in.fd >= 0)
        out.fds[out.n_fds++] = p->in.fd;
    out.fds[out.n_fds++] = p->out.fd;
    if (p->err.fd >= 0)
        out.fds[out.n_fds++] = p->err.fd;
    if (notify_send(channel.fd, &out) < 0)
        log_warn("process %s cannot be handed to a successor: the channel to cube-init is full", pid);
}

static void fds_drop(struct notify_msg *m)
{
    for (int i = 0; i < m->n_fds; i++)
        close(m->fds[i]);
}

static void adopt(struct notify_msg *m)
{
    struct user u = {.uid = 0};
    struct msg_start req = {.has_process = true};
    bool in = m->n_strings > 1 && strchr(m->s[1], 'i'), err = m->n_strings > 1 && strchr(m->s[1], 'e');
    if (m->n_strings < 7 || m->n_fds != 2 + in + err) {
        fds_drop(m);
        return;
    }
    req.has_pty = strchr(m->s[1], 'p') != NULL;
    req.process.cmd = m->s[2];
    req.process.cwd = m->s[3];
    req.process.has_cwd = strchr(m->s[1], 'c') != NULL;
    req.tag = m->s[4];
    req.has_tag = strchr(m->s[1], 't') != NULL;
    req.has_stdin = true;
    req.stdin_on = in;
    req.process.args = (struct strings){.v = m->s + 7, .n = (size_t)m->n_strings - 7};
    snprintf(u.name, sizeof(u.name), "%s", m->s[5]);
    struct proc *p = proc_new(&req, &u);
    if (!p) {
        fds_drop(m);
        return;
    }
    int k = 0, fds[4] = {m->fds[k++], -1, -1, -1};
    if (in)
        fds[1] = m->fds[k++];
    fds[2] = m->fds[k++];
    if (err)
        fds[3] = m->fds[k++];
    p->adopted = true;
    proc_run(p, (pid_t)atoi(m->s[0]), fds[0], fds[1], fds[2], fds[3]);
    if (m->s[6][0] != '-')
        proc_deadline(p, atoll(m->s[6]));
    proc_go(p);
}

/* How a process of the predecessor ended. */
static void inherit_end(const struct notify_msg *m)
{
    struct user nobody = {.uid = 0};
    struct msg_start req = {.has_process = true, .process = {.cmd = "", .cwd = ""}};
    int64_t left = m->n_strings < 5 ? 0 : atoll(m->s[3]) - loop_now_ms();
    if (left <= 0)
        return;
    req.tag = m->s[4];
    req.has_tag = strchr(m->s[2], 't') != NULL;
    struct proc *p = proc_new(&req, &nobody);
    if (!p)
        return;
    proc_run(p, (pid_t)atoi(m->s[0]), -1, -1, -1, -1);
    proc_ended(p, atoi(m->s[1]), strchr(m->s[2], 's') != NULL, (unsigned)left);
}

static void take(struct notify_msg *m)
{
    struct proc *p;
    if (m->type == 'S')
        adopt(m);
    else if (m->type == 'Z')
        inherit_end(m);
    else if (m->type == 'X' && m->n_strings >= 3 && (p = proc_by_pid((pid_t)atoi(m->s[0]))))
        proc_exited(p, atoi(m->s[1]), atoi(m->s[2]));
}

static void on_message(void *owner, uint32_t events)
{
    static struct notify_msg in;
    for (;;) {
        int rc = notify_recv(channel.fd, &in);
        if (rc < 0)
            exit(0); /* cube-init is gone: so is the guest */
        if (rc == 0)
            return;
        take(&in);
    }
}

int keeper_open(int fd)
{
    static struct notify_msg first;
    channel = (struct ev){.fd = fd, .cb = on_message};
    /* cube-init sends the predecessor's processes and 'D' before it lets us run: take them before anybody can
     * ask. */
    while (notify_recv(fd, &first) > 0 && first.type != 'D')
        take(&first);
    return ev_watch(&channel, EPOLLIN);
}
