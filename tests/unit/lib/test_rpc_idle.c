/* Keepalive, in real time (both at once, about 50 s without work): an idle connection to a living peer stays,
 * one to a peer that says nothing any more is given up. */
#include "rpc_world.h"

#include "lib/base/clock.h"

#include <errno.h>
#include <sys/socket.h>

typedef Cube__Master__V1__GetRequest Get;
typedef Cube__Master__V1__ListKeysRequest Word;

#define IDLE_MS 50000

static int open_checks = 2;
static struct rpc_client *living, *silent;
static int64_t started_us;

static void check_done(void)
{
    if (--open_checks == 0)
        loop_stop(L);
}

static void on_echo(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    Word w = CUBE__MASTER__V1__LIST_KEYS_REQUEST__INIT;
    rpc_reply(c, &w.base);
}

static const struct rpc_method methods[] = {{.path = "/test.Echo/Echo",
                                             .in = &cube__master__v1__get_request__descriptor,
                                             .out = &cube__master__v1__list_keys_request__descriptor,
                                             .roles = RPC_ROLE_API,
                                             .start = on_echo},
                                            {0}};

static void call(struct rpc_client *c, int64_t timeout, rpc_reply_cb cb)
{
    Get q = CUBE__MASTER__V1__GET_REQUEST__INIT;
    rpc_unary(c, "/test.Echo/Echo", &q.base, &cube__master__v1__list_keys_request__descriptor, timeout, NULL,
              cb, NULL);
}

static void on_second(const ProtobufCMessage *m, const struct err *e, void *data)
{
    assert_null(e); /* a new connection could not have been made: the path is gone */
    check_done();
}

static void on_idle_over(struct loop_timer *t)
{
    call(living, 5000, on_second);
}

static void on_first(const ProtobufCMessage *m, const struct err *e, void *data)
{
    static struct loop_timer idle = {.fire = on_idle_over};
    assert_null(e);
    assert_int_equal(unlink((char *)data), 0);
    loop_timer_start(L, &idle, IDLE_MS);
}

static void on_silent(const ProtobufCMessage *m, const struct err *e, void *data)
{
    assert_non_null(e);
    assert_int_equal(e->code, ERR_UNAVAILABLE);
    assert_int_equal(e->sys, ECONNRESET);
    assert_in_range((clock_mono_us() - started_us) / 1000, 39000, 75000);
    check_done();
}

static void on_accepted(h2o_socket_t *sock, void *data)
{
    *(h2o_socket_t **)data = sock; /* and never a word */
}

static void idle_connections_stay_and_dead_ones_are_given_up(void **state)
{
    struct err e = {0};
    char path[80], address[96], mute_address[40];
    struct rpc_creds *master = world_creds(RPC_ROLE_MASTER), *api = world_creds(RPC_ROLE_API);
    struct rpc_server *s = rpc_server_new(L, master);
    h2o_socket_t *mute_sock = NULL;
    rpc_server_add(s, methods, NULL);
    snprintf(path, sizeof path, "%s/rpc.sock", key_dir);
    snprintf(address, sizeof address, "unix:%s", path);
    assert_int_equal(rpc_server_listen(s, address, &e), 0);
    struct loop_listener *mute = loop_listen(L, "127.0.0.1:0", false, false, on_accepted, &mute_sock, &e);
    assert_non_null(mute);
    snprintf(mute_address, sizeof mute_address, "127.0.0.1:%d", loop_listener_port(mute));
    living = rpc_client_new(L, api, address, NULL);
    silent = rpc_client_new(L, api, mute_address, NULL);
    Get q = CUBE__MASTER__V1__GET_REQUEST__INIT;
    rpc_unary(living, "/test.Echo/Echo", &q.base, &cube__master__v1__list_keys_request__descriptor, 5000,
              NULL, on_first, path);
    started_us = clock_mono_us();
    call(silent, 0, on_silent); /* without a deadline of its own */
    loop_run(L);
    rpc_client_free(living);
    rpc_client_free(silent);
    loop_listener_free(mute);
    if (mute_sock)
        h2o_socket_close(mute_sock);
    rpc_server_free(s);
    rpc_creds_free(master);
    rpc_creds_free(api);
}

int main(void)
{
    world_start();
    const struct CMUnitTest tests[] = {cmocka_unit_test(idle_connections_stay_and_dead_ones_are_given_up)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    world_end();
    return failed;
}
