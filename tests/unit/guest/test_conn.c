/* A streamed response over a socket that is full now and then: whoever waits for `on_drain` is always told,
 * by whichever of the connection's own sends the output became empty. send() answers here what the test says.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "guest/envd/conn.h"

#define SAID_FULL_MAX 8
#define GUARD_MS 3000

static int full;       /* so many of the next sends find the socket full */
static bool streaming; /* the response has begun */
static bool drained;

ssize_t __real_send(int fd, const void *p, size_t n, int flags);

ssize_t __wrap_send(int fd, const void *p, size_t n, int flags)
{
    if (streaming && full > 0) {
        full--;
        errno = EAGAIN;
        return -1;
    }
    return __real_send(fd, p, n, flags);
}

static void on_drain(struct conn *c)
{
    drained = true;
    loop_stop();
}

static void handle(struct conn *c)
{
    conn_stream(c, 200, "text/plain", NULL);
    streaming = true;
    char *room = conn_chunk(c, 1000);
    assert_non_null(room);
    memset(room, 'x', 1000);
    conn_chunk_end(c);
    c->on_drain = on_drain; /* as a handler that stops producing while `conn_pending` */
    if (conn_pending(c) == 0)
        on_drain(c);
}

static const struct route route = {
    .method = "GET", .path = "/", .mode = BODY_WHOLE, .open = true, .handle = handle};

const struct route *__wrap_conn_route(struct conn *c, const struct http_req *http, const char *path)
{
    return &route;
}

static void on_guard(void *owner)
{
    loop_stop();
}

static void test_drain_is_told(void **state)
{
    static const char request[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    for (int n = 0; n <= SAID_FULL_MAX; n++) {
        int fds[2];
        struct timer guard = {.cb = on_guard};
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
        full = n;
        streaming = drained = false;
        struct conn *c = conn_open(fds[0], false, true);
        assert_non_null(c);
        assert_int_equal(write(fds[1], request, sizeof request - 1), sizeof request - 1);
        timer_set(&guard, GUARD_MS);
        loop_run();
        timer_clear(&guard);
        if (!drained)
            fail_msg("with a socket that was full %d times the handler was never told", n);
        conn_abort(c);
        close(fds[1]);
    }
}

int main(void)
{
    if (loop_open() < 0)
        abort();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_drain_is_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
