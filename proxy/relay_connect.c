/* Begins a connection to a relay over TCP, or TLS off loopback, with its preface; and to the API, which needs
 * none. */
#include "proxy/proxy.h"

#include "lib/net/preface.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

void back_preface(struct back *b, uint8_t out[64])
{
    const struct route *r = &b->sandbox->route;
    struct preface p = {.port = b->pool->port,
                        .gen = b->gen,
                        .expiry_s = (uint32_t)time(NULL) + 30,
                        .nonce = ++b->worker->nonce};
    memcpy(p.sandbox, r->sandbox, strlen(r->sandbox));
    preface_encode(&p, r->ticket, out);
}

/* As connect. A source address has one port per stream to a relay, and fewer than 9,000 where much of the
 * range is reserved (ip_local_reserved_ports: the node's network does that). On loopback there are more
 * addresses. */
static int connect_to(struct worker *w, int fd, const struct route *r)
{
    enum { SOURCES = 16 };
    const struct sockaddr *to = (const struct sockaddr *)&r->relay;
    bool loopback = to->sa_family == AF_INET &&
                    ntohl(((const struct sockaddr_in *)to)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    uint32_t first = loopback ? w->relay_source : 0;
    int rc = -1, one = 1;
    for (uint32_t i = first; i < first + SOURCES; i++) {
        struct sockaddr_in from = {.sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK + i % SOURCES)};
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
        if (i && bind(fd, (const struct sockaddr *)&from, sizeof from) != 0)
            return -1;
        rc = connect(fd, to, r->relay_len);
        if (!loopback || rc == 0 || errno != EADDRNOTAVAIL) {
            w->relay_source = loopback ? i % SOURCES : w->relay_source;
            return rc;
        }
    }
    return rc;
}

bool relay_connect(struct back *b)
{
    struct worker *w = b->worker;
    const struct route *r = &b->sandbox->route;
    bool is_api = b->sandbox->is_api, tls = !is_api && w->proxy->relay_tls;
    int one = 1, fd = socket(r->relay.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    dp_io_limit_sending(fd);
    dp_io_unpaced(fd, (const struct sockaddr *)&r->relay);
    SSL *ssl = tls ? relay_tls_connect(b) : NULL;
    if ((tls && ssl == NULL) || (connect_to(w, fd, r) != 0 && errno != EINPROGRESS) ||
        dp_io_open(&b->io, w->loop, fd, ssl, false) != 0) {
        SSL_free(ssl);
        close(fd);
        b->io.ssl = NULL;
        b->io.watch.fd = -1;
        return false;
    }
    if (!is_api) {
        uint8_t bytes[PREFACE_LEN];
        back_preface(b, bytes);
        dp_io_write(&b->io, bytes, sizeof bytes);
    }
    return true;
}
