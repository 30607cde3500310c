/* The node's end of a guest's control connection: a guest that never stops talking. */
#include "lib/base/clock.h"
#include "lib/net/fiber.h"
#include "node/daemon/peer.h"
#include "proto/init.pb-c.h"

#include "tests/unit/node/check.h"

#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FLOOD_US 300000
/* As peer.c has them: at once, per millisecond, for each message. */
#define BURST (4 << 20)
#define PER_MS (8 << 10)
#define MESSAGE 256
#define TURN (16 * 16384) /* read in one turn, before it is looked at */

static struct loop *loop;
static int guest_fd;
static unsigned long events;

static size_t frame(uint64_t id, uint8_t out[64])
{
    Cube__Init__V1__Reply r = CUBE__INIT__V1__REPLY__INIT;
    Cube__Init__V1__Event event = CUBE__INIT__V1__EVENT__INIT;
    r.id = id;
    r.result_case = CUBE__INIT__V1__REPLY__RESULT_EVENT;
    r.event = &event;
    size_t n = cube__init__v1__reply__pack(&r, out + 4);
    memcpy(out, (uint8_t[]){0, 0, 0, (uint8_t)n}, 4);
    return n + 4;
}

/* Events for a while, then the answer to the first request. */
static void *guest(void *arg)
{
    static uint8_t many[64 * 1024];
    uint8_t one[64];
    size_t len = frame(0, one), n = 0;
    (void)arg;
    for (; n + len < sizeof many; n += len)
        memcpy(many + n, one, len);
    for (int64_t end = clock_mono_us() + FLOOD_US; clock_mono_us() < end;)
        assert_int_equal(send(guest_fd, many, n, MSG_NOSIGNAL), n);
    len = frame(1, one);
    assert_int_equal(send(guest_fd, one, len, MSG_NOSIGNAL), len);
    return NULL;
}

static void on_event(const ProtobufCMessage *m, void *data)
{
    (void)m;
    (void)data;
    events++;
}

static void talk(void *arg)
{
    struct peer *p = arg;
    struct err e = {0};
    Cube__Init__V1__Request req = CUBE__INIT__V1__REQUEST__INIT;
    Cube__Init__V1__Health health = CUBE__INIT__V1__HEALTH__INIT;
    req.op_case = CUBE__INIT__V1__REQUEST__OP_HEALTH;
    req.health = &health;
    fiber_sleep(0);
    assert_int_equal(peer_call(p, &req.base, NULL, 0, 60000, NULL, &e), 0);
    loop_stop(loop);
}

static void a_guest_that_never_stops_is_read_at_a_rate(void **state)
{
    (void)state;
    int sv[2];
    pthread_t t;
    struct err e = {0};
    loop = loop_new();
    assert_int_equal(fiber_start(loop, 1, &e), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
    guest_fd = sv[1];
    struct peer *p = peer_new(loop, sv[0],
                              &(struct peer_config){.name = "a guest",
                                                    .framing = PEER_STREAM,
                                                    .event = on_event,
                                                    .reply = &cube__init__v1__reply__descriptor});
    int64_t began = clock_mono_us();
    assert_int_equal(pthread_create(&t, NULL, guest, NULL), 0);
    fiber_spawn(talk, p);
    loop_run(loop);
    int64_t ms = (clock_mono_us() - began) / 1000 + 1;
    uint8_t one[64];
    unsigned long cost = MESSAGE + frame(0, one);
    unsigned long most = (unsigned long)(BURST + ms * PER_MS) / cost + TURN / frame(0, one);
    print_message("%lu events in %lld ms, at most %lu\n", events, (long long)ms, most);
    assert_true(events > 1000 && events <= most);
    pthread_join(t, NULL);
    peer_free(p);
    close(sv[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_guest_that_never_stops_is_read_at_a_rate)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
