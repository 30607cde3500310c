/* The network device on a pair of datagram sockets, which keep frames apart as a TAP does; free-page
 * reporting. */
#include "node/vmm/balloon.h"
#include "node/vmm/net.h"
#include "tests/unit/vmm/driver.h"

#include <linux/virtio_mmio.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define HDR 12u
#define QUEUE 128u

static struct driver d;
static struct worker w;
static struct net n;
static struct balloon b;
static int wire;

static int setup(void **state)
{
    struct err e = {0};
    int pair[2], size = 1 << 20;

    driver_ram(&d);
    assert_int_equal(worker_init(&w, &e), 0);
    assert_int_equal(net_init(&n, &d.mem, &w, &e), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    wire = pair[0];
    n.tap.fd = pair[1];
    n.tap_ready = true;
    driver_start(&d, &n.dev, 0, QUEUE);
    return 0;
}

static int teardown(void **state)
{
    net_free(&n);
    close(wire);
    driver_ram_free(&d);
    return 0;
}

static void rx_give(uint64_t at, uint32_t len)
{
    struct part p = {at, len, true};

    driver_add(&d, 0, &p, 1);
}

static void frame_come(const uint8_t *frame, uint32_t len)
{
    assert_int_equal(send(wire, frame, len, 0), len);
    n.tap_ready = true;
    driver_kick(&d, 0);
}

static void test_send(void **state)
{
    uint8_t frame[200], got[300];
    uint64_t at = driver_alloc(&d, 4096);
    struct part p[] = {{at, HDR, false}, {at + 100, 60, false}, {at + 300, 40, false}};
    uint16_t head;
    uint32_t len;

    for (unsigned i = 0; i < sizeof frame; i++)
        frame[i] = (uint8_t)i;
    memcpy(driver_at(&d, at), frame, HDR);
    memcpy(driver_at(&d, at + 100), frame + HDR, 60);
    memcpy(driver_at(&d, at + 300), frame + HDR + 60, 40);
    driver_add(&d, 1, p, 3);
    driver_kick(&d, 1);
    assert_true(driver_used(&d, 1, &head, &len));
    assert_int_equal(recv(wire, got, sizeof got, 0), HDR + 100);
    assert_memory_equal(got, frame, HDR + 100);
    /* A header alone and a frame that is too long: taken, not sent. */
    driver_add(&d, 1, p, 1);
    struct part big = {at, 70000, false};
    driver_add(&d, 1, &big, 1);
    driver_kick(&d, 1);
    assert_true(driver_used(&d, 1, &head, &len) && driver_used(&d, 1, &head, &len));
    assert_int_equal(recv(wire, got, sizeof got, 0), -1);
}

/* A frame longer than a buffer lies in several, and the first says how many. */
static void test_mergeable(void **state)
{
    static uint8_t frame[9000];
    uint64_t at = driver_alloc(&d, QUEUE * 1536);
    uint16_t head, count;
    uint32_t len, left = sizeof frame, done = 0;

    for (unsigned i = 0; i < sizeof frame; i++)
        frame[i] = (uint8_t)(i * 13);
    for (unsigned i = 0; i < 70; i++)
        rx_give(at + i * 1536ull, 1536);
    frame_come(frame, sizeof frame);
    for (unsigned i = 0; left; i++) {
        assert_true(driver_used(&d, 0, &head, &len));
        assert_int_equal(len, left < 1536 ? left : 1536);
        uint8_t *p = driver_at(&d, at + i * 1536ull);
        if (i == 0) {
            memcpy(&count, p + 10, 2);
            memcpy(frame + 10, &count, 2);
        }
        assert_memory_equal(p, frame + done, len);
        done += len;
        left -= len;
    }
    assert_int_equal(count, 6);
    assert_false(driver_used(&d, 0, &head, &len));
    assert_true(driver_interrupts(&d) > 0);
    /* What was not used is still there for the next frame. */
    frame_come(frame, 100);
    assert_true(driver_used(&d, 0, &head, &len));
    assert_int_equal(len, 100);
}

/* Too little room for the largest segment: the frame waits, and comes as soon as there is enough. */
static void test_waits_for_room(void **state)
{
    uint8_t frame[500] = {1};
    uint64_t at = driver_alloc(&d, QUEUE * 1536);
    uint16_t head;
    uint32_t len;

    for (unsigned i = 0; i < 10; i++)
        rx_give(at + i * 1536ull, 1536);
    frame_come(frame, sizeof frame);
    assert_false(driver_used(&d, 0, &head, &len));
    for (unsigned i = 10; i < 80; i++)
        rx_give(at + i * 1536ull, 1536);
    driver_kick(&d, 0);
    assert_true(driver_used(&d, 0, &head, &len));
    assert_int_equal(len, 500);
}

static void test_tiny_buffers(void **state)
{
    uint64_t at = driver_alloc(&d, 4096);
    uint8_t frame[100] = {0};

    rx_give(at, 8); /* no room for the header: the driver is broken */
    frame_come(frame, sizeof frame);
    assert_true(driver_read(&d, VIRTIO_MMIO_STATUS) & 0x40);
}

static unsigned resident(uint64_t gpa, uint64_t bytes)
{
    unsigned char v[1024];
    unsigned k = 0;

    assert_int_equal(mincore(driver_at(&d, gpa), bytes, v), 0);
    for (uint64_t i = 0; i < bytes / 4096; i++)
        k += v[i] & 1;
    return k;
}

static void test_reporting(void **state)
{
    struct err e = {0};
    uint16_t head;
    uint32_t len;

    driver_ram(&d);
    assert_int_equal(worker_init(&w, &e), 0);
    assert_int_equal(balloon_init(&b, &d.mem, &w, &e), 0);
    driver_start(&d, &b.dev, 0, 16);
    uint64_t at = driver_alloc(&d, 2 << 20);
    memset(driver_at(&d, at), 7, 2 << 20);
    assert_int_equal(resident(at, 2 << 20), 512);
    struct part p = {at, 1 << 20, true};
    driver_add(&d, 2, &p, 1);
    driver_kick(&d, 2);
    assert_true(driver_used(&d, 2, &head, &len));
    assert_int_equal(resident(at, 1 << 20), 0);
    assert_int_equal(resident(at + (1 << 20), 1 << 20), 256);
    /* Pages that the inflate queue names are left alone: nobody asked for any. */
    p = (struct part){at + (1 << 20), 4096, true};
    driver_add(&d, 0, &p, 1);
    driver_kick(&d, 0);
    assert_int_equal(resident(at + (1 << 20), 1 << 20), 256);
    balloon_free(&b);
    driver_ram_free(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_send, setup, teardown),
        cmocka_unit_test_setup_teardown(test_mergeable, setup, teardown),
        cmocka_unit_test_setup_teardown(test_waits_for_room, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tiny_buffers, setup, teardown),
        cmocka_unit_test(test_reporting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
