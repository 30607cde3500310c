/* vsock against a driver written here: both ways in, status bytes, credit, half-close, refusals, hostile
 * packets. */
#include "node/vmm/vsock.h"
#include "tests/unit/vmm/driver.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#define RX_BUFFERS 12u
#define RX_BYTES 4096u

struct fixture {
    struct driver d;
    struct worker w;
    struct vsock v;
    int ctl, in;
    uint64_t rx[RX_BUFFERS];
    uint16_t rx_head[RX_BUFFERS];
};

static struct fixture f;

static int listener(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    assert_true(s >= 0 && bind(s, (void *)&a, sizeof a.sun_family) == 0 && listen(s, 64) == 0);
    return s;
}

static void rx_give(unsigned i)
{
    struct part p = {f.rx[i], RX_BYTES, true};

    f.rx_head[i] = driver_add(&f.d, 0, &p, 1);
}

static int setup(void **state)
{
    struct err e = {0};

    driver_ram(&f.d);
    assert_int_equal(worker_init(&f.w, &e), 0);
    assert_int_equal(vsock_init(&f.v, &f.d.mem, &f.w, &e), 0);
    f.ctl = listener();
    f.in = listener();
    vsock_attach(&f.v, dup(f.ctl), dup(f.in));
    driver_start(&f.d, &f.v.dev, 0, 16);
    for (unsigned i = 0; i < RX_BUFFERS; i++) {
        f.rx[i] = driver_alloc(&f.d, RX_BYTES);
        rx_give(i);
    }
    worker_turn(&f.w, 0); /* the reset before */
    return 0;
}

static int teardown(void **state)
{
    vsock_free(&f.v);
    close(f.ctl);
    close(f.in);
    driver_ram_free(&f.d);
    return 0;
}

static int dial(int l)
{
    struct sockaddr_un a;
    socklen_t len = sizeof a;
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(getsockname(l, (void *)&a, &len), 0);
    assert_int_equal(connect(s, (void *)&a, len), 0);
    fcntl(s, F_SETFL, O_NONBLOCK);
    return s;
}

static void turns(void)
{
    for (int i = 0; i < 8; i++)
        worker_turn(&f.w, 0);
}

struct packet {
    struct virtio_vsock_hdr h;
    uint8_t data[RX_BYTES];
};

/* The next packet for the guest; its buffer is given back. */
static bool next_packet(struct packet *p)
{
    uint16_t head;
    uint32_t len;

    turns();
    if (!driver_used(&f.d, 0, &head, &len))
        return false;
    for (unsigned i = 0; i < RX_BUFFERS; i++)
        if (f.rx_head[i] == head) {
            memcpy(&p->h, driver_at(&f.d, f.rx[i]), sizeof p->h);
            assert_int_equal(len, sizeof p->h + p->h.len);
            memcpy(p->data, (uint8_t *)driver_at(&f.d, f.rx[i]) + sizeof p->h, p->h.len);
            rx_give(i);
            driver_kick(&f.d, 0);
            return true;
        }
    fail();
    return false;
}

static void expect_packet(struct packet *p, uint16_t op)
{
    if (!next_packet(p))
        fail_msg("no packet, expected op %u", op);
    if (p->h.op != op)
        fail_msg("op %u, expected %u", p->h.op, op);
    assert_int_equal(p->h.src_cid, VSOCK_CID_HOST);
    assert_int_equal(p->h.dst_cid, VSOCK_CID_GUEST);
}

static void expect_silence(void)
{
    struct packet p;

    if (next_packet(&p))
        fail_msg("unexpected packet, op %u", p.h.op);
}

struct end {
    uint32_t host, guest, buf_alloc, fwd;
};

static void guest_send(const struct end *c, uint16_t op, uint32_t flags, const void *data, uint32_t len)
{
    struct virtio_vsock_hdr h = {.src_cid = VSOCK_CID_GUEST,
                                 .dst_cid = VSOCK_CID_HOST,
                                 .src_port = c->guest,
                                 .dst_port = c->host,
                                 .len = len,
                                 .type = VIRTIO_VSOCK_TYPE_STREAM,
                                 .op = op,
                                 .flags = flags,
                                 .buf_alloc = c->buf_alloc,
                                 .fwd_cnt = c->fwd};
    static uint64_t at;
    uint16_t head;
    uint32_t used;

    if (!at || at + sizeof h + len > f.d.mem.size)
        at = 0x2000000;
    memcpy(driver_at(&f.d, at), &h, sizeof h);
    if (len)
        memcpy((uint8_t *)driver_at(&f.d, at) + sizeof h, data, len);
    struct part p[2] = {{at, sizeof h, false}, {at + sizeof h, len, false}};
    driver_add(&f.d, 1, p, len ? 2 : 1);
    driver_kick(&f.d, 1);
    assert_true(driver_used(&f.d, 1, &head, &used));
}

static struct end accept_next(uint32_t port)
{
    struct packet p;

    expect_packet(&p, VIRTIO_VSOCK_OP_REQUEST);
    assert_int_equal(p.h.dst_port, port);
    struct end c = {p.h.src_port, port, 65536, 0};
    guest_send(&c, VIRTIO_VSOCK_OP_RESPONSE, 0, NULL, 0);
    return c;
}

static void expect_read(int s, const char *text)
{
    char got[256];

    turns();
    ssize_t n = read(s, got, sizeof got);
    if (n != (ssize_t)strlen(text) || memcmp(got, text, (size_t)n))
        fail_msg("read %zd bytes", n);
}

static void expect_eof(int s)
{
    char c;

    turns();
    assert_int_equal(read(s, &c, 1), 0);
}

static void test_ctl(void **state)
{
    struct packet p;
    int s = dial(f.ctl);
    struct end c = accept_next(VSOCK_PORT_CTL);

    assert_int_equal(write(s, "hello", 5), 5);
    expect_packet(&p, VIRTIO_VSOCK_OP_RW);
    assert_memory_equal(p.data, "hello", 5);
    guest_send(&c, VIRTIO_VSOCK_OP_RW, 0, "world", 5);
    expect_read(s, "world");
    /* Half-close from the host, then from the guest. */
    shutdown(s, SHUT_WR);
    expect_packet(&p, VIRTIO_VSOCK_OP_SHUTDOWN);
    assert_int_equal(p.h.flags, VIRTIO_VSOCK_SHUTDOWN_SEND);
    guest_send(&c, VIRTIO_VSOCK_OP_RW, 0, "more", 4);
    expect_read(s, "more");
    guest_send(&c, VIRTIO_VSOCK_OP_SHUTDOWN, 3, NULL, 0);
    expect_packet(&p, VIRTIO_VSOCK_OP_RST);
    expect_eof(s);
    assert_int_equal(f.v.nconns, 0);
    close(s);
}

static void test_ctl_waits(void **state)
{
    struct packet p;
    int s = dial(f.ctl);

    for (int i = 0; i < 3; i++) { /* cube-init is not there yet */
        expect_packet(&p, VIRTIO_VSOCK_OP_REQUEST);
        struct end c = {p.h.src_port, p.h.dst_port, 65536, 0};
        guest_send(&c, VIRTIO_VSOCK_OP_RST, 0, NULL, 0);
        for (int k = 0; k < 100 && !virtq_pending(&f.v.dev.q[0]); k++)
            ;
        usleep(12000);
    }
    struct end c = accept_next(VSOCK_PORT_CTL);
    guest_send(&c, VIRTIO_VSOCK_OP_RW, 0, "up", 2);
    expect_read(s, "up");
    close(s);
}

static void test_envd(void **state)
{
    struct packet p;
    int s = dial(f.in);

    assert_int_equal(write(s, "\xc3", 1), 1); /* the port in two pieces */
    turns();
    expect_silence();
    assert_int_equal(write(s, "\x3fGET", 4), 4);
    struct end c = accept_next(VSOCK_PORT_ENVD);
    expect_packet(&p, VIRTIO_VSOCK_OP_RW);
    assert_int_equal(p.h.len, 3);
    assert_memory_equal(p.data, "GET", 3);
    guest_send(&c, VIRTIO_VSOCK_OP_RW, 0, "200", 3);
    turns();
    char got[8] = {0};
    assert_int_equal(read(s, got, 8), 4);
    assert_memory_equal(got,
                        "\0"
                        "200",
                        4);
    close(s);
    expect_packet(&p, VIRTIO_VSOCK_OP_SHUTDOWN);
    assert_int_equal(p.h.flags, 3);
    guest_send(&c, VIRTIO_VSOCK_OP_RST, 0, NULL, 0);
    assert_int_equal(f.v.nconns, 0);
}

static void test_gateway(void **state)
{
    struct packet p;
    int s = dial(f.in);

    assert_int_equal(write(s, "\x1f\x90hey", 5), 5);
    struct end c = accept_next(VSOCK_PORT_GATEWAY);
    expect_packet(&p, VIRTIO_VSOCK_OP_RW);
    assert_int_equal(p.h.len, 2); /* the port first, alone */
    assert_memory_equal(p.data, "\x1f\x90", 2);
    expect_packet(&p, VIRTIO_VSOCK_OP_RW);
    assert_memory_equal(p.data, "hey", 3);
    guest_send(&c, VIRTIO_VSOCK_OP_RW, 0, "\0ok", 3);
    turns();
    char got[8];
    assert_int_equal(read(s, got, 8), 3);
    close(s);
}

static void test_refused(void **state)
{
    struct packet p;
    char status = 99;
    int s = dial(f.in);

    assert_int_equal(write(s, "\xc3\x3f", 2), 2);
    expect_packet(&p, VIRTIO_VSOCK_OP_REQUEST);
    struct end c = {p.h.src_port, p.h.dst_port, 0, 0};
    guest_send(&c, VIRTIO_VSOCK_OP_RST, 0, NULL, 0);
    turns();
    assert_int_equal(read(s, &status, 1), 1);
    assert_int_equal(status, VSOCK_STATUS_NOT_READY);
    expect_eof(s);
    close(s);
}

/* The guest may not open connections, nor speak for others. */
static void test_guest_initiated(void **state)
{
    struct packet p;
    struct end c = {1234, 5678, 65536, 0};

    guest_send(&c, VIRTIO_VSOCK_OP_REQUEST, 0, NULL, 0);
    expect_packet(&p, VIRTIO_VSOCK_OP_RST);
    assert_int_equal(p.h.dst_port, 5678);
    guest_send(&c, VIRTIO_VSOCK_OP_RW, 0, "x", 1);
    expect_packet(&p, VIRTIO_VSOCK_OP_RST);
    guest_send(&c, VIRTIO_VSOCK_OP_RST, 0, NULL, 0); /* never answered: no ping-pong */
    expect_silence();
    assert_int_equal(f.v.nconns, 0);
    /* An open connection under another guest port is not found. */
    int s = dial(f.ctl);
    struct end real = accept_next(VSOCK_PORT_CTL);
    struct end forged = {real.host, 99, 65536, 0};
    guest_send(&forged, VIRTIO_VSOCK_OP_RW, 0, "bad", 3);
    expect_packet(&p, VIRTIO_VSOCK_OP_RST);
    guest_send(&real, VIRTIO_VSOCK_OP_RW, 0, "good", 4);
    expect_read(s, "good");
    close(s);
}

static void test_credit_to_guest(void **state)
{
    static char block[100000];
    struct packet p;
    size_t got = 0;
    int s = dial(f.ctl);
    struct end c = {0};

    expect_packet(&p, VIRTIO_VSOCK_OP_REQUEST);
    c = (struct end){p.h.src_port, p.h.dst_port, 10000, 0};
    guest_send(&c, VIRTIO_VSOCK_OP_RESPONSE, 0, NULL, 0);
    for (size_t i = 0; i < sizeof block; i++)
        block[i] = (char)(i * 31);
    assert_int_equal(write(s, block, sizeof block), sizeof block);
    while (got < sizeof block) {
        while (next_packet(&p)) {
            assert_int_equal(p.h.op, VIRTIO_VSOCK_OP_RW);
            assert_memory_equal(p.data, block + got, p.h.len);
            got += p.h.len;
        }
        assert_true(got <= c.fwd + 10000u); /* never more than the guest has room for */
        assert_true(got > c.fwd);
        c.fwd = (uint32_t)got;
        guest_send(&c, VIRTIO_VSOCK_OP_CREDIT_UPDATE, 0, NULL, 0);
    }
    close(s);
}

static void test_credit_from_guest(void **state)
{
    static char block[60000], got[70000];
    struct packet p;
    size_t sent = 0, received = 0;
    int s = dial(f.ctl), small = 4096;
    struct end c = accept_next(VSOCK_PORT_CTL);
    uint32_t told = 0;

    setsockopt(s, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    /* Up to what was announced, though nobody reads. */
    while (sent + sizeof block - told <= VSOCK_BUF_BYTES) {
        memset(block, (int)(sent / sizeof block), sizeof block);
        guest_send(&c, VIRTIO_VSOCK_OP_RW, 0, block, sizeof block);
        sent += sizeof block;
        while (next_packet(&p)) {
            assert_int_equal(p.h.op, VIRTIO_VSOCK_OP_CREDIT_UPDATE);
            told = p.h.fwd_cnt;
        }
    }
    assert_true(sent >= 4 * sizeof block);
    while (received < sent) {
        ssize_t n = read(s, got, sizeof got);
        if (n > 0) {
            for (ssize_t i = 0; i < n; i++)
                assert_int_equal(got[i], (char)((received + (size_t)i) / sizeof block));
            received += (size_t)n;
        }
        while (next_packet(&p))
            assert_int_equal(p.h.op, VIRTIO_VSOCK_OP_CREDIT_UPDATE);
    }
    /* A guest that sends more than its credit loses the connection. */
    for (int i = 0; i < 20 && f.v.nconns; i++)
        guest_send(&c, VIRTIO_VSOCK_OP_RW, 0, block, sizeof block);
    assert_int_equal(f.v.nconns, 0);
    close(s);
}

static void read_all(int s, size_t len)
{
    static char got[100000];

    for (size_t done = 0; done < len;) {
        turns();
        ssize_t n = read(s, got, len - done);
        assert_true(n > 0);
        done += (size_t)n;
    }
}

/* What could not be told because another connection had filled the guest's buffers is told when there are
 * some again: nobody else would wake a guest that waits for it. */
static void test_credit_waits_for_buffers(void **state)
{
    static char block[40000];
    struct packet p;
    uint32_t told = 0;
    int s = dial(f.ctl), other;
    struct end c = accept_next(VSOCK_PORT_CTL);

    other = dial(f.in);
    assert_int_equal(write(other, (uint8_t[]){VSOCK_PORT_ENVD >> 8, VSOCK_PORT_ENVD & 0xff}, 2), 2);
    accept_next(VSOCK_PORT_ENVD);
    assert_int_equal(write(other, block, sizeof block) + write(other, block, 20000), 60000);
    turns(); /* takes every buffer */
    for (int i = 0; i < 2; i++) {
        guest_send(&c, VIRTIO_VSOCK_OP_RW, 0, block, sizeof block);
        read_all(s, sizeof block);
    }
    while (next_packet(&p))
        if (p.h.src_port == c.host && p.h.op == VIRTIO_VSOCK_OP_CREDIT_UPDATE)
            told = p.h.fwd_cnt;
    assert_int_equal(told, 2 * sizeof block);
    close(s);
    close(other);
}

/* Looking whether there is something to send tells the guest nothing. */
static void test_credit_is_not_lost_by_looking(void **state)
{
    static char block[10000];
    struct packet p;
    uint32_t told = 0, sent = 0;
    int s = dial(f.ctl);
    struct end c = accept_next(VSOCK_PORT_CTL);

    for (int i = 0; i < 40; i++) {
        assert_true(sent + sizeof block - told <= VSOCK_BUF_BYTES);
        guest_send(&c, VIRTIO_VSOCK_OP_RW, 0, block, sizeof block);
        sent += sizeof block;
        read_all(s, sizeof block);
        guest_send(&c, VIRTIO_VSOCK_OP_CREDIT_UPDATE, 0, NULL, 0); /* has the connection looked at */
        f.v.conns[c.host % VSOCK_CONNS_MAX]->readable = true;      /* as after an event of another kind */
        guest_send(&c, VIRTIO_VSOCK_OP_CREDIT_UPDATE, 0, NULL, 0);
        while (next_packet(&p))
            told = p.h.fwd_cnt;
    }
    close(s);
}

/* What the guest sent before its shutdown arrives before the end of the stream does. */
static void test_shutdown_after_data(void **state)
{
    static char block[60000];
    int s = dial(f.ctl), small = 4096;
    struct end c = accept_next(VSOCK_PORT_CTL);
    size_t received = 0;

    setsockopt(s, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    for (int i = 0; i < 4; i++)
        guest_send(&c, VIRTIO_VSOCK_OP_RW, 0, block, sizeof block);
    guest_send(&c, VIRTIO_VSOCK_OP_SHUTDOWN, 3, NULL, 0);
    for (;;) {
        char got[8192];
        ssize_t n = read(s, got, sizeof got);
        if (n == 0)
            break;
        if (n > 0)
            received += (size_t)n;
        turns();
    }
    assert_int_equal(received, 4 * sizeof block);
    close(s);
}

/* The process at the other end writes and closes: the guest gets the bytes, then the end. */
static void test_write_and_close(void **state)
{
    struct packet p;
    int s = dial(f.ctl);
    accept_next(VSOCK_PORT_CTL);

    assert_int_equal(write(s, "bye", 3), 3);
    close(s);
    expect_packet(&p, VIRTIO_VSOCK_OP_RW);
    assert_int_equal(p.h.len, 3);
    expect_packet(&p, VIRTIO_VSOCK_OP_SHUTDOWN);
    assert_int_equal(p.h.flags, 3);
}

static void test_restore(void **state)
{
    struct vsock_ports saved[VSOCK_CONNS_MAX];
    struct packet p;
    struct err e = {0};
    int s[3];

    for (int i = 0; i < 3; i++) {
        s[i] = dial(f.ctl);
        accept_next(VSOCK_PORT_CTL);
    }
    unsigned n = vsock_save(&f.v, saved);
    assert_int_equal(n, 3);
    /* As a new process would: the same device, resets first, then what waits in the listener. */
    assert_int_equal(vsock_load(&f.v, saved, n, &e), 0);
    int fresh = dial(f.ctl);
    for (unsigned i = 0; i < n; i++) {
        expect_packet(&p, VIRTIO_VSOCK_OP_RST);
        assert_int_equal(p.h.src_port, saved[i].host);
    }
    expect_packet(&p, VIRTIO_VSOCK_OP_REQUEST);
    assert_int_equal(vsock_load(&f.v, saved, VSOCK_CONNS_MAX + 1, &e), -1);
    close(fresh);
    for (int i = 0; i < 3; i++)
        close(s[i]);
}

/* A reset of the driver drops the connections; a new driver finds a working device. */
static void test_reset(void **state)
{
    int s = dial(f.ctl);
    accept_next(VSOCK_PORT_CTL);

    driver_start(&f.d, &f.v.dev, 0, 16);
    turns();
    expect_eof(s);
    close(s);
    for (unsigned i = 0; i < RX_BUFFERS; i++)
        rx_give(i);
    driver_kick(&f.d, 0);
    s = dial(f.ctl);
    struct end c = accept_next(VSOCK_PORT_CTL);
    guest_send(&c, VIRTIO_VSOCK_OP_RW, 0, "new", 3);
    expect_read(s, "new");
    close(s);
}

static void test_many(void **state)
{
    static int s[VSOCK_CONNS_MAX + 40];
    struct packet p;
    unsigned requests = 0;

    for (unsigned i = 0; i < VSOCK_CONNS_MAX + 40; i++) {
        s[i] = dial(f.ctl);
        while (next_packet(&p))
            requests += p.h.op == VIRTIO_VSOCK_OP_REQUEST;
    }
    assert_int_equal(requests, VSOCK_CONNS_MAX);
    assert_int_equal(f.v.nconns, VSOCK_CONNS_MAX);
    for (unsigned i = 0; i < VSOCK_CONNS_MAX + 40; i++)
        close(s[i]);
    for (int i = 0; i < 2000 && f.v.nconns; i++)
        while (next_packet(&p)) {
            struct end c = {p.h.src_port, p.h.dst_port, 65536, 0};
            if (p.h.op == VIRTIO_VSOCK_OP_SHUTDOWN)
                guest_send(&c, VIRTIO_VSOCK_OP_RST, 0, NULL, 0);
        }
    assert_int_equal(f.v.nconns, 0);
}

int main(void)
{
#define TEST(x) cmocka_unit_test_setup_teardown(x, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_ctl),
        TEST(test_ctl_waits),
        TEST(test_envd),
        TEST(test_gateway),
        TEST(test_refused),
        TEST(test_guest_initiated),
        TEST(test_credit_to_guest),
        TEST(test_credit_from_guest),
        TEST(test_credit_waits_for_buffers),
        TEST(test_credit_is_not_lost_by_looking),
        TEST(test_shutdown_after_data),
        TEST(test_write_and_close),
        TEST(test_restore),
        TEST(test_reset),
        TEST(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
