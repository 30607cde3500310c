/* The links of churn's relay: opens streams as the relay over TCP does, but each is one end of a socket pair,
 * and the other end goes to the proxy. What proxies report is of no interest here. */
#include "tests/ingress/churn.h"

#include "lib/base/seqpacket.h"
#include "lib/net/relay_link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LINKS = 64 };

static struct dp_loop *loop;
static struct dp_watch listener, links[LINKS];
static const char *relay_address;

static void take_open(struct dp_watch *w, const struct link_msg *m)
{
    struct link_msg answer = {.type = LINK_OPENED, .stream = m->stream};
    uint8_t bytes[LINK_MSG_MAX];
    uint64_t gen = 0;
    int pair[2] = {-1, -1};
    enum preface_status status = churn_admit(m->preface, &gen);
    if (status == PREFACE_OK && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
        status = PREFACE_NOT_READY;
    preface_answer_encode(status, gen, answer.answer);
    bool ok = status == PREFACE_OK;
    if (seqpacket_send(w->fd, bytes, link_encode(&answer, bytes), &pair[1], ok) != 0) {
        perror("an answer over a link");
        exit(1);
    }
    if (ok) {
        close(pair[1]);
        churn_serve(pair[0], m->preface);
    }
}

static void on_link(struct dp_watch *w, uint32_t events)
{
    uint8_t bytes[LINK_MSG_MAX];
    struct link_msg m;
    ssize_t n = recv(w->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        dp_watch_close(loop, w);
    } else if (!link_decode(bytes, (size_t)n, &m)) {
        fprintf(stderr, "a proxy said %zd bytes that are no message\n", n);
        exit(1);
    } else if (m.type == LINK_OPEN) {
        take_open(w, &m);
    }
}

static void on_listener(struct dp_watch *w, uint32_t events)
{
    int fd = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct link_msg hello = {.type = LINK_HELLO};
    uint8_t bytes[LINK_MSG_MAX];
    snprintf(hello.address, sizeof hello.address, "%s", relay_address);
    for (int i = 0; i < LINKS && fd >= 0; i++) {
        if (links[i].fd >= 0)
            continue;
        links[i] = (struct dp_watch){.ready = on_link, .fd = fd};
        seqpacket_send(fd, bytes, link_encode(&hello, bytes), NULL, 0);
        dp_watch_add(loop, &links[i], EPOLLIN);
        return;
    }
    if (fd >= 0)
        close(fd);
}

void churn_link_start(struct dp_loop *l, const char *path, const char *address)
{
    struct err e = {0};
    loop = l;
    relay_address = address;
    for (int i = 0; i < LINKS; i++)
        links[i].fd = -1;
    listener =
        (struct dp_watch){.ready = on_listener, .fd = seqpacket_listen(path, (uid_t)-1, (gid_t)-1, &e)};
    if (listener.fd < 0 || dp_watch_add(l, &listener, DP_WATCH_LISTEN) != 0) {
        fprintf(stderr, "%s: %s\n", path, e.msg);
        exit(1);
    }
}

void churn_link_break(void)
{
    for (int i = 0; i < LINKS; i++)
        dp_watch_close(loop, &links[i]);
}
