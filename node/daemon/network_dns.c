/* Owns the connection to cube-dns. Invariant: it is tried again for ever, and after each connect cube-dns
 * knows everything anew; while there is none, names open nothing. */
#include "node/daemon/network_dns.h"
#include "lib/base/log.h"
#include "node/daemon/jailer.h"
#include "node/dns/report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define RETRY_MS 500
#define SLOTS 16384

static struct {
    struct node *node;
    int fd;
    int sockets[2]; /* from the jailer; -1 until it gave them */
    struct loop_watch *watch;
    struct loop_timer retry;
    uint8_t watched[SLOTS / 8];
} d = {.fd = -1, .sockets = {-1, -1}};

static void lose(void)
{
    if (d.fd < 0)
        return;
    loop_watch_free(d.watch);
    close(d.fd);
    d.fd = -1;
    loop_timer_start(d.node->loop, &d.retry, RETRY_MS);
}

static void tell(uint8_t op, uint32_t slot, uint64_t seq)
{
    struct dns_report r = {.version = DNS_REPORT_VERSION, .op = op, .slot = slot, .seq = seq};
    if (d.fd >= 0 && send(d.fd, &r, sizeof r, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        lose();
}

static void on_report(void *data)
{
    struct dns_report r;
    ssize_t n = recv(d.fd, &r, sizeof r, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n != (ssize_t)sizeof r || r.version != DNS_REPORT_VERSION || r.n_addresses > DNS_REPORT_ADDRESSES) {
        lose();
        return;
    }
    r.name[sizeof r.name - 1] = '\0';
    if (r.op != DNS_ANSWERED)
        return;
    network_name_answered(r.slot, r.name, r.addresses, r.n_addresses, r.ttl_s);
    tell(DNS_OPENED, r.slot, r.seq);
}

static int pass_sockets(void)
{
    struct dns_report r = {.version = DNS_REPORT_VERSION, .op = DNS_SOCKETS};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof d.sockets)];
    } control = {
        .align = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof d.sockets)}};
    struct iovec iov = {&r, sizeof r};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    memcpy(CMSG_DATA(&control.align), d.sockets, sizeof d.sockets);
    return sendmsg(d.fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -1 : 0;
}

static void try_connect(struct loop_timer *t)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%.80s/dns/report.sock", d.node->cfg.run_dir);
    d.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (d.fd < 0 || connect(d.fd, (struct sockaddr *)&a, sizeof a) < 0) {
        if (d.fd >= 0)
            close(d.fd);
        d.fd = -1;
        loop_timer_start(d.node->loop, &d.retry, RETRY_MS);
        return;
    }
    d.watch = loop_watch_read(d.node->loop, d.fd, on_report, NULL);
    if (d.sockets[0] >= 0 && pass_sockets() < 0) {
        lose();
        return;
    }
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        if (d.watched[slot / 8] & (1u << (slot % 8)))
            tell(DNS_WATCH, slot, 0);
}

void network_dns_watch(uint32_t slot, bool on)
{
    uint8_t bit = (uint8_t)(1u << (slot % 8));
    bool was = d.watched[slot / 8] & bit;
    d.watched[slot / 8] = (uint8_t)(on ? d.watched[slot / 8] | bit : d.watched[slot / 8] & ~bit);
    if (on != was)
        tell(on ? DNS_WATCH : DNS_UNWATCH, slot, 0);
}

void network_dns_start(struct node *n)
{
    struct err e = {0};
    d.node = n;
    d.retry.fire = try_connect;
    /* A cube-dns that already serves holds the port: then the jailer cannot bind it again, and need not. */
    if (jailer_dns_sockets(n->jailer, d.sockets, &e) < 0)
        log_line(LOG_INFO, &(struct log_about){.err = &e},
                 "the jailer passes no sockets for the name service");
    loop_timer_start(n->loop, &d.retry, 0);
}
