/* Owns the sockets that sandboxes ask: one UDP socket, and TCP connections (RFC 7766) that are few,
 * short-lived and bounded. The sandbox is known by its source address, which CubeVS wrote. */
#include "node/dns/dns.h"
#include "lib/base/cleanup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define TCP_MAX 256
#define TCP_LIFE_MS 5000
#define BATCH 64
#define FLAG_TC 0x02

struct connection {
    uint64_t number; /* 0 = free */
    int fd;
    struct loop_watch *watch;
    struct loop_timer life;
    struct dns_asker who;
    size_t have;
    uint8_t in[2 + 512];
};

static struct {
    struct loop *loop;
    int udp, tcp;
    uint32_t net; /* host order */
    uint64_t numbers;
    struct connection connections[TCP_MAX];
} s;

static bool slot_of(const struct sockaddr_in *a, uint32_t *slot)
{
    *slot = ntohl(a->sin_addr.s_addr) - s.net;
    return *slot < DNS_SLOTS;
}

static void on_udp(void *data)
{
    for (int i = 0; i < BATCH; i++) {
        uint8_t p[1024];
        struct dns_asker who = {0};
        socklen_t len = sizeof who.from;
        ssize_t n = recvfrom(s.udp, p, sizeof p, MSG_DONTWAIT, (struct sockaddr *)&who.from, &len);
        if (n < 0)
            return;
        if (slot_of(&who.from, &who.slot))
            dns_ask(p, (size_t)n, &who);
    }
}

static void connection_end(struct connection *c)
{
    loop_timer_stop(s.loop, &c->life);
    loop_watch_free(c->watch);
    close(c->fd);
    c->number = 0;
}

static void on_life_over(struct loop_timer *t)
{
    connection_end((struct connection *)((char *)t - offsetof(struct connection, life)));
}

static void on_tcp(void *data)
{
    struct connection *c = data;
    ssize_t n = recv(c->fd, c->in + c->have, sizeof c->in - c->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        connection_end(c);
        return;
    }
    c->have += (size_t)n;
    while (c->have >= 2) {
        size_t len = (size_t)c->in[0] << 8 | c->in[1];
        if (len > sizeof c->in - 2) {
            connection_end(c);
            return;
        }
        if (c->have < 2 + len)
            return;
        uint64_t number = c->number;
        uint8_t question[512];
        memcpy(question, c->in + 2, len);
        memmove(c->in, c->in + 2 + len, c->have - 2 - len);
        c->have -= 2 + len;
        dns_ask(question, len, &c->who);
        if (c->number != number)
            return; /* its answer could not be written */
    }
}

static void on_accept(void *data)
{
    for (int i = 0; i < BATCH; i++) {
        struct sockaddr_in a;
        socklen_t len = sizeof a;
        int fd = accept4(s.tcp, (struct sockaddr *)&a, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        struct connection *c = NULL;
        uint32_t slot, of_slot = 0;
        bool known = slot_of(&a, &slot);
        for (int k = 0; k < TCP_MAX && known; k++) {
            if (!s.connections[k].number)
                c = c ? c : &s.connections[k];
            else
                of_slot += s.connections[k].who.slot == slot;
        }
        if (!c || of_slot >= TCP_MAX / 16) {
            close(fd);
            continue;
        }
        *c = (struct connection){.number = ++s.numbers, .fd = fd, .life.fire = on_life_over};
        c->who = (struct dns_asker){.from = a, .tcp = c->number, .slot = slot};
        c->watch = loop_watch_read(s.loop, fd, on_tcp, c);
        loop_timer_start(s.loop, &c->life, TCP_LIFE_MS);
    }
}

static void reply_tcp(uint64_t number, const uint8_t *p, size_t n)
{
    for (int k = 0; k < TCP_MAX; k++) {
        struct connection *c = &s.connections[k];
        if (c->number != number)
            continue;
        uint8_t out[2 + DNS_MESSAGE_MAX] = {(uint8_t)(n >> 8), (uint8_t)n};
        memcpy(out + 2, p, n);
        /* A fresh connection's buffer takes 4 KiB; a reader too slow for that loses it. */
        if (send(c->fd, out, n + 2, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)(n + 2))
            connection_end(c);
        return;
    }
}

void dns_reply(const struct dns_asker *who, const uint8_t *p, size_t n, uint16_t udp_size)
{
    if (who->tcp) {
        reply_tcp(who->tcp, p, n);
        return;
    }
    uint8_t cut[DNS_MESSAGE_MAX];
    struct dns_question q;
    if (n > udp_size) { /* header and question, with the word that there is more over TCP */
        memcpy(cut, p, n);
        cut[2] &= 0x7f; /* reads as a query once more, to find the question's end */
        memset(cut + 6, 0, 6);
        if (!dns_question_parse(cut, n, &q))
            return;
        cut[2] |= 0x80 | FLAG_TC;
        p = cut;
        n = q.end;
    }
    sendto(s.udp, p, n, MSG_DONTWAIT, (const struct sockaddr *)&who->from, sizeof who->from);
}

static int bind_socket(int type, struct err *e)
{
    struct sockaddr_storage a;
    socklen_t len;
    if (loop_address_parse(dns_config.listen, &a, &len, e) < 0)
        return -1;
    int on = 1;
    _cleanup_close_ int fd = socket(AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
        bind(fd, (struct sockaddr *)&a, len) < 0 || (type == SOCK_STREAM && listen(fd, 64) < 0))
        return err_sys(e, ERR_INTERNAL, "listening on %s", dns_config.listen);
    return fd_steal(&fd);
}

int dns_serve_sockets(int udp, int tcp, struct err *e)
{
    static struct loop_watch *watches[2];
    for (int i = 0; i < 2; i++)
        if (watches[i])
            loop_watch_free(watches[i]);
    if (s.udp >= 0) {
        close(s.udp);
        close(s.tcp);
    }
    s.udp = udp;
    s.tcp = tcp;
    watches[0] = loop_watch_read(s.loop, udp, on_udp, NULL);
    watches[1] = loop_watch_read(s.loop, tcp, on_accept, NULL);
    return watches[0] && watches[1] ? 0 : err_set(e, ERR_INTERNAL, "watching the sockets of sandboxes");
}

int dns_serve_open(struct loop *l, struct err *e)
{
    struct in_addr net;
    if (inet_pton(AF_INET, dns_config.slot_net, &net) != 1)
        return err_set(e, ERR_INVALID, "dns.slot_net '%s' is no IPv4 address", dns_config.slot_net);
    s.loop = l;
    s.net = ntohl(net.s_addr);
    s.udp = s.tcp = -1;
    if (!dns_config.listen[0])
        return 0;
    int udp = bind_socket(SOCK_DGRAM, e);
    int tcp = udp < 0 ? -1 : bind_socket(SOCK_STREAM, e);
    return tcp < 0 ? -1 : dns_serve_sockets(udp, tcp, e);
}
