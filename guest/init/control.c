/* Control connections. Invariant: a connection holds at most one incomplete message and OUT_MAX unsent bytes;
 * a subscriber over EVENTS_OUT_MAX loses events instead of holding the guest up. */
#include "guest/init/control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/vm_sockets.h>

#include "guest/common/loop.h"
#include "guest/common/peer.h"
#include "lib/base/buf.h"
#include "lib/base/log.h"

#define CONNECTIONS_MAX 16
#define OUT_MAX ((size_t)4 << 20)
#define EVENTS_OUT_MAX ((size_t)512 << 10)
#define READ_SIZE 65536

struct ctl {
    struct ctl *next, **prev;
    struct ev ev;
    struct buf in, out;
    size_t out_off;
    bool subscribed, closing;
    uint64_t lost;
};

static struct ctl *all;
static unsigned n_all;
static struct ev listener = {.fd = -1};

static void ctl_close(struct ctl *c)
{
    if (c->ev.fd < 0)
        return;
    ev_close(&c->ev);
    exec_conn_gone(c);
    buf_free(&c->in);
    buf_free(&c->out);
    *c->prev = c->next;
    if (c->next)
        c->next->prev = c->prev;
    n_all--;
    loop_free_later(c);
}

size_t control_pending(const struct ctl *c)
{
    return c->out.len - c->out_off;
}

static void flush(struct ctl *c)
{
    while (control_pending(c)) {
        ssize_t n = send(c->ev.fd, c->out.data + c->out_off, control_pending(c), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN)
            c->closing = true; /* the event that follows closes it */
        if (n < 0)
            break;
        c->out_off += (size_t)n;
    }
    if (!control_pending(c)) {
        buf_free(&c->out);
        c->out_off = 0;
    }
    ev_watch(&c->ev, EPOLLIN | EPOLLRDHUP | (control_pending(c) || c->closing ? EPOLLOUT : 0));
}

static void put_framed(struct ctl *c, const uint8_t *data, size_t n)
{
    char head[4] = {(char)(n >> 24), (char)(n >> 16), (char)(n >> 8), (char)n};
    if (c->closing || control_pending(c) > OUT_MAX) {
        c->closing = true;
        return;
    }
    buf_append(&c->out, head, 4);
    buf_append(&c->out, data, n);
    flush(c);
}

void control_send_packed(struct ctl *c, const uint8_t *data, size_t n)
{
    put_framed(c, data, n);
}

void control_reply(struct ctl *c, const Cube__Init__V1__Reply *reply)
{
    size_t n = cube__init__v1__reply__get_packed_size(reply);
    uint8_t *data = malloc(n ? n : 1);
    if (!data)
        return;
    cube__init__v1__reply__pack(reply, data);
    put_framed(c, data, n);
    free(data);
}

void control_error(struct ctl *c, uint64_t id, const struct err *e)
{
    Cube__Init__V1__Reply r = CUBE__INIT__V1__REPLY__INIT;
    r.id = id;
    r.error_code = (char *)err_code_name(e->code);
    r.error = (char *)e->msg;
    control_reply(c, &r);
}

static void lost_report(struct ctl *c)
{
    char text[64];
    Cube__Init__V1__Event event = CUBE__INIT__V1__EVENT__INIT;
    Cube__Init__V1__Reply r = CUBE__INIT__V1__REPLY__INIT;
    snprintf(text, sizeof(text), "%llu events were lost", (unsigned long long)c->lost);
    c->lost = 0;
    event.kind = (char *)"log";
    event.level = (char *)"warn";
    event.message = text;
    r.result_case = CUBE__INIT__V1__REPLY__RESULT_EVENT;
    r.event = &event;
    control_reply(c, &r);
}

bool control_broadcast(const uint8_t *data, size_t n)
{
    bool any = false;
    for (struct ctl *c = all; c; c = c->next) {
        if (!c->subscribed || c->closing)
            continue;
        any = true;
        if (control_pending(c) > EVENTS_OUT_MAX) {
            c->lost++;
            continue;
        }
        if (c->lost)
            lost_report(c);
        put_framed(c, data, n);
    }
    return any;
}

void control_subscribe(struct ctl *c)
{
    c->subscribed = true;
}

static void messages_take(struct ctl *c)
{
    while (c->ev.fd >= 0 && c->in.len >= 4) {
        const uint8_t *p = (const uint8_t *)c->in.data;
        size_t n = (size_t)p[0] << 24 | (size_t)p[1] << 16 | (size_t)p[2] << 8 | p[3];
        if (n > CONTROL_MESSAGE_MAX) {
            log_warn("control message of %zu bytes refused", n);
            ctl_close(c);
            return;
        }
        if (c->in.len < 4 + n)
            return;
        Cube__Init__V1__Request *req = cube__init__v1__request__unpack(NULL, n, p + 4);
        if (!req) {
            ctl_close(c);
            return;
        }
        request_handle(c, req);
        cube__init__v1__request__free_unpacked(req, NULL);
        if (c->ev.fd >= 0)
            buf_consume(&c->in, 4 + n);
    }
    if (c->ev.fd >= 0 && !c->in.len)
        buf_free(&c->in);
}

static void on_event(void *owner, uint32_t events)
{
    struct ctl *c = owner;
    if (events & (EPOLLERR | EPOLLHUP) || c->closing) {
        ctl_close(c);
        return;
    }
    if (events & EPOLLOUT) {
        flush(c);
        if (!control_pending(c))
            exec_conn_drained(c);
    }
    if (!(events & (EPOLLIN | EPOLLRDHUP)))
        return;
    if (!buf_reserve(&c->in, READ_SIZE)) {
        ctl_close(c);
        return;
    }
    ssize_t n = recv(c->ev.fd, c->in.data + c->in.len, READ_SIZE, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        ctl_close(c);
        return;
    }
    if (n > 0)
        c->in.len += (size_t)n;
    messages_take(c);
}

static void on_accept(void *owner, uint32_t events)
{
    struct sockaddr_storage from = {0};
    socklen_t n = sizeof(from);
    int fd = accept4(listener.fd, (struct sockaddr *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
    struct ctl *c = fd < 0 || peer_is_guest(&from) || n_all >= CONNECTIONS_MAX ? NULL : calloc(1, sizeof(*c));
    if (!c) {
        if (fd >= 0)
            close(fd);
        return;
    }
    c->ev = (struct ev){.fd = fd, .cb = on_event, .owner = c};
    c->prev = &all;
    c->next = all;
    if (all)
        all->prev = &c->next;
    all = c;
    n_all++;
    ev_watch(&c->ev, EPOLLIN | EPOLLRDHUP);
}

int control_listen(int fd, struct err *e)
{
    struct sockaddr_vm a = {.svm_family = AF_VSOCK, .svm_port = CONTROL_PORT, .svm_cid = VMADDR_CID_ANY};
    if (fd < 0) {
        fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, 8) < 0)
            return err_sys(e, ERR_INTERNAL, "listening on vsock port %d", CONTROL_PORT);
    }
    listener = (struct ev){.fd = fd, .cb = on_accept};
    return ev_watch(&listener, EPOLLIN) < 0 ? err_sys(e, ERR_INTERNAL, "watching the control listener") : 0;
}
