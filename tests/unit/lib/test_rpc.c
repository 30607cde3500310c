/* rpc between our own client and server over real sockets: every way a call can end. */
#include "rpc_world.h"

#include "lib/base/clock.h"
#include "proto/health.pb-c.h"

#include <errno.h>

typedef Cube__Master__V1__GetRequest Get;
typedef Cube__Master__V1__ListKeysRequest Word; /* one string */

static struct rpc_creds *master, *api, *node;
static struct rpc_server *server;
static struct rpc_client *client;
static char address[64]; /* a Unix path: it can be listened on again, whatever else runs on the machine */
static struct rpc_call *held;
static int closed_calls, uploaded, starts;
static struct rpc_call *streaming;
static int to_stream;

static Word word(const char *s)
{
    Word w = CUBE__MASTER__V1__LIST_KEYS_REQUEST__INIT;
    w.team_id = (char *)s;
    return w;
}

static void on_echo(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    starts++;
    Word w = word(((const Get *)in)->sandbox_id);
    char text[300];
    if (strcmp(w.team_id, "who") == 0) {
        snprintf(text, sizeof text, "%s/%s/%s/%d", rpc_role_name(rpc_peer_role(c)), rpc_peer_node(c),
                 rpc_trace(c), rpc_remaining_ms(c) > 4000 && rpc_remaining_ms(c) <= 5000);
        w = word(text);
    }
    rpc_reply(c, &w.base);
}

static void on_fail(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    struct err e = {0};
    err_set(&e, ERR_CAPACITY, "no room für %s: 100%% ", ((const Get *)in)->sandbox_id);
    err_remedy(&e, "add a node");
    rpc_fail(c, &e);
}

static void on_held_closed(struct rpc_call *c, void *data)
{
    closed_calls++;
    held = NULL;
    loop_stop(L);
}

static void on_hold(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    held = c;
    if (strcmp(((const Get *)in)->sandbox_id, "watch") == 0)
        rpc_on_closed(c, on_held_closed, NULL);
}

static void stream_some(struct rpc_call *c, void *data)
{
    static char big[10000];
    memset(big, 'x', sizeof big - 1);
    Word w = word(big);
    while (to_stream > 0) {
        to_stream--;
        if (!rpc_send(c, &w.base))
            return;
    }
    rpc_finish(c);
}

static void on_stream(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    to_stream = atoi(((const Get *)in)->sandbox_id);
    rpc_on_drained(c, stream_some, NULL);
    stream_some(c, NULL);
}

static void on_up_message(struct rpc_call *c, const ProtobufCMessage *in, void *data)
{
    uploaded++;
    if (strcmp(((const Get *)in)->sandbox_id, "stop") == 0) {
        struct err e = {0};
        err_set(&e, ERR_CONFLICT, "enough");
        rpc_fail(c, &e);
    }
}

static void on_up_end(struct rpc_call *c, void *data)
{
    char text[20];
    snprintf(text, sizeof text, "%d", uploaded);
    Word w = word(text);
    rpc_reply(c, &w.base);
}

static void on_up(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    assert_null(in);
    streaming = c;
    rpc_on_message(c, on_up_message, on_up_end, NULL);
}

#define METHOD(name, fn, who, up)                                                                            \
    {                                                                                                        \
        .path = "/test.Echo/" name, .in = &cube__master__v1__get_request__descriptor,                        \
        .out = &cube__master__v1__list_keys_request__descriptor, .roles = who, .client_stream = up,          \
        .start = fn                                                                                          \
    }
static const struct rpc_method methods[] = {METHOD("Echo", on_echo, RPC_ROLE_API | RPC_ROLE_NODE, false),
                                            METHOD("Fail", on_fail, RPC_ROLE_API, false),
                                            METHOD("Hold", on_hold, RPC_ROLE_API, false),
                                            METHOD("Stream", on_stream, RPC_ROLE_API, false),
                                            METHOD("Up", on_up, RPC_ROLE_API, true),
                                            {0}};

static int open_server(const char *where)
{
    struct err e = {0};
    server = rpc_server_new(L, master);
    rpc_server_add(server, methods, NULL);
    if (rpc_server_listen(server, where, &e) < 0)
        return -1;
    return 0;
}

static int setup(void **state)
{
    starts = closed_calls = uploaded = 0;
    held = NULL;
    if (open_server(address) < 0)
        return -1;
    client = rpc_client_new(L, api, address, NULL);
    return 0;
}

static int teardown(void **state)
{
    rpc_client_free(client);
    rpc_server_free(server);
    return 0;
}

/* ---- what a call ended with ---- */

static struct outcome {
    int ends, messages;
    bool ok;
    char text[300];
    struct err err;
} last;
static int expected_ends;

static void ended(const struct err *e)
{
    last.ok = !e;
    if (e)
        last.err = *e;
    if (++last.ends == expected_ends)
        loop_stop(L);
}

static void on_reply(const ProtobufCMessage *m, const struct err *e, void *data)
{
    assert_true((m == NULL) == (e != NULL));
    if (m)
        snprintf(last.text, sizeof last.text, "%s", ((const Word *)m)->team_id);
    ended(e);
}

static void on_stream_message(const ProtobufCMessage *m, void *data)
{
    last.messages++;
    snprintf(last.text, sizeof last.text, "%s", ((const Word *)m)->team_id);
}

static void on_stream_end(const struct err *e, void *data)
{
    ended(e);
}

static struct rpc_out *call(struct rpc_client *c, const char *path, const char *text, int64_t timeout)
{
    Get q = CUBE__MASTER__V1__GET_REQUEST__INIT;
    q.sandbox_id = (char *)text;
    return rpc_unary(c, path, &q.base, &cube__master__v1__list_keys_request__descriptor, timeout,
                     "00-ab-cd-01", on_reply, NULL);
}

static void wait_for(int ends)
{
    expected_ends = ends;
    loop_run(L);
}

static void fresh(void)
{
    memset(&last, 0, sizeof last);
}

static void on_stop(struct loop_timer *t)
{
    loop_stop(L);
}

static void turn(int64_t ms)
{
    struct loop_timer t = {.fire = on_stop};
    loop_timer_start(L, &t, ms);
    expected_ends = -1;
    loop_run(L);
    loop_timer_stop(L, &t); /* something else may have stopped the loop */
}

/* ---- tests ---- */

static void unary_calls_answer(void **state)
{
    fresh();
    call(client, "/test.Echo/Echo", "hello", 5000);
    wait_for(1);
    assert_true(last.ok);
    assert_string_equal(last.text, "hello");
    call(client, "/test.Echo/Echo", "who", 5000);
    wait_for(2);
    assert_string_equal(last.text, "api//00-ab-cd-01/1");
}

static void errors_keep_code_message_and_remedy(void **state)
{
    fresh();
    call(client, "/test.Echo/Fail", "x", 5000);
    wait_for(1);
    assert_false(last.ok);
    assert_int_equal(last.err.code, ERR_CAPACITY);
    assert_string_equal(last.err.msg, "no room für x: 100% ");
    assert_string_equal(last.err.remedy, "add a node");
    call(client, "/test.Echo/Nothing", "x", 5000);
    wait_for(2);
    assert_int_equal(last.err.code, ERR_UNSUPPORTED);
}

static void roles_are_proven_and_checked(void **state)
{
    fresh();
    struct rpc_client *n = rpc_client_new(L, node, address, NULL);
    rpc_client_set_node(n, "n7");
    call(n, "/test.Echo/Echo", "who", 5000);
    wait_for(1);
    assert_string_equal(last.text, "node/n7/00-ab-cd-01/1");
    call(n, "/test.Echo/Fail", "x", 5000);
    wait_for(2);
    assert_int_equal(last.err.code, ERR_FORBIDDEN);
    rpc_client_free(n);
    world_write_key("node", '4'); /* the server knows the old one */
    struct rpc_creds *wrong = world_creds(RPC_ROLE_NODE);
    n = rpc_client_new(L, wrong, address, NULL);
    call(n, "/test.Echo/Echo", "x", 5000);
    wait_for(3);
    assert_int_equal(last.err.code, ERR_UNAUTHENTICATED);
    rpc_client_free(n);
    rpc_creds_free(wrong);
    world_write_key("node", '3');
    assert_int_equal(starts, 1);
}

static void many_calls_share_a_connection(void **state)
{
    fresh();
    for (int i = 0; i < 3000; i++)
        call(client, "/test.Echo/Echo", "x", 20000);
    wait_for(3000);
    assert_int_equal(starts, 3000);
    assert_true(last.ok);
}

static void deadlines_end_both_sides(void **state)
{
    fresh();
    int64_t t = clock_mono_us();
    call(client, "/test.Echo/Hold", "watch", 60);
    wait_for(1);
    assert_int_equal(last.err.code, ERR_DEADLINE);
    assert_in_range(clock_mono_us() - t, 55000, 30000000);
    if (closed_calls == 0)
        loop_run(L); /* until the server has noticed */
    assert_int_equal(closed_calls, 1);
}

static void late_answers_into_the_void_are_harmless(void **state)
{
    fresh();
    call(client, "/test.Echo/Hold", "x", 40);
    wait_for(1);
    turn(30);
    assert_non_null(held); /* it set no `closed`: still its to answer */
    Word w = word("late");
    rpc_reply(held, &w.base);
    call(client, "/test.Echo/Echo", "next", 5000);
    wait_for(2);
    assert_string_equal(last.text, "next");
}

static void cancel_is_silent_here_and_heard_there(void **state)
{
    fresh();
    struct rpc_out *o = call(client, "/test.Echo/Hold", "watch", 5000);
    while (!held)
        turn(1);
    rpc_out_cancel(o);
    loop_run(L);
    assert_int_equal(closed_calls, 1);
    assert_int_equal(last.ends, 0);
    o = call(client, "/test.Echo/Echo", "x", 5000);
    rpc_out_cancel(o); /* before it went out */
    turn(10);
    assert_int_equal(last.ends, 0);
}

static void server_streams_flow_and_drain(void **state)
{
    fresh();
    Get q = CUBE__MASTER__V1__GET_REQUEST__INIT;
    q.sandbox_id = "1000"; /* 10 MB: above the high-water mark many times */
    rpc_stream(client, "/test.Echo/Stream", &q.base, &cube__master__v1__list_keys_request__descriptor, 20000,
               on_stream_message, on_stream_end, NULL);
    wait_for(1);
    assert_true(last.ok);
    assert_int_equal(last.messages, 1000);
    q.sandbox_id = "0";
    rpc_stream(client, "/test.Echo/Stream", &q.base, &cube__master__v1__list_keys_request__descriptor, 20000,
               on_stream_message, on_stream_end, NULL);
    wait_for(2);
    assert_true(last.ok);
    assert_int_equal(last.messages, 1000);
}

static const char *up_last;
static void on_opened(struct rpc_out *o, void *data)
{
    Get q = CUBE__MASTER__V1__GET_REQUEST__INIT;
    for (int i = 0; i < 50; i++) {
        q.sandbox_id = "m";
        rpc_out_send(o, &q.base);
    }
    if (up_last) {
        q.sandbox_id = (char *)up_last;
        rpc_out_send(o, &q.base);
    } else {
        rpc_out_half_close(o);
    }
}

static void client_streams_end_from_either_side(void **state)
{
    fresh();
    up_last = NULL;
    rpc_upload(client, "/test.Echo/Up", &cube__master__v1__list_keys_request__descriptor, on_opened, on_reply,
               NULL);
    wait_for(1);
    assert_true(last.ok);
    assert_string_equal(last.text, "50");
    uploaded = 0;
    up_last = "stop";
    rpc_upload(client, "/test.Echo/Up", &cube__master__v1__list_keys_request__descriptor, on_opened, on_reply,
               NULL);
    wait_for(2);
    assert_int_equal(last.err.code, ERR_CONFLICT);
    assert_string_equal(last.err.msg, "enough");
    assert_int_equal(uploaded, 51);
}

static void messages_above_the_limit_are_refused(void **state)
{
    fresh();
    size_t n = (4u << 20) + 1;
    char *big = malloc(n + 1);
    memset(big, 'x', n);
    big[n] = '\0';
    call(client, "/test.Echo/Echo", big, 5000);
    wait_for(1);
    assert_int_equal(last.err.code, ERR_TOO_LARGE);
    big[n - 100] = '\0'; /* just below: passes both ways */
    call(client, "/test.Echo/Echo", big, 15000);
    wait_for(2);
    assert_true(last.ok);
    free(big);
}

static void calls_never_sent_say_so_and_a_new_server_is_found(void **state)
{
    fresh();
    call(client, "/test.Echo/Echo", "x", 5000);
    wait_for(1);
    rpc_server_free(server);
    turn(5);
    call(client, "/test.Echo/Echo", "x", 5000);
    wait_for(2);
    assert_int_equal(last.err.code, ERR_UNAVAILABLE);
    assert_int_equal(last.err.sys, ECONNREFUSED);
    assert_int_equal(open_server(address), 0);
    turn(60); /* the first pause between attempts is 50 ms */
    call(client, "/test.Echo/Echo", "again", 5000);
    wait_for(3);
    assert_true(last.ok);
    assert_string_equal(last.text, "again");
}

static void a_broken_connection_is_not_never_sent(void **state)
{
    fresh();
    call(client, "/test.Echo/Hold", "watch", 5000);
    while (!held)
        turn(1);
    rpc_server_free(server);
    wait_for(1);
    assert_int_equal(last.err.code, ERR_UNAVAILABLE);
    assert_int_not_equal(last.err.sys, ECONNREFUSED);
    server = NULL;
}

static bool drained;
static void on_drained(void *data)
{
    drained = true;
}

static void drain_finishes_open_calls_and_moves_new_ones(void **state)
{
    fresh();
    drained = false;
    struct rpc_server *old = server;
    call(client, "/test.Echo/Hold", "x", 5000);
    while (!held)
        turn(1);
    rpc_server_drain(old, on_drained, NULL);
    assert_int_equal(open_server(address), 0); /* its successor listens already */
    turn(70);
    assert_false(drained);
    call(client, "/test.Echo/Echo", "new", 5000);
    wait_for(1);
    assert_true(last.ok);
    assert_string_equal(last.text, "new");
    Word w = word("old");
    rpc_reply(held, &w.base);
    wait_for(2);
    assert_true(last.ok);
    assert_string_equal(last.text, "old");
    while (!drained)
        turn(1);
    rpc_server_free(old);
}

static void free_inside_a_callback(const ProtobufCMessage *m, const struct err *e, void *data)
{
    ended(e);
    rpc_client_free(client);
    client = NULL;
}

static void clients_may_be_freed_inside_callbacks(void **state)
{
    fresh();
    Get q = CUBE__MASTER__V1__GET_REQUEST__INIT;
    q.sandbox_id = "x";
    call(client, "/test.Echo/Hold", "watch", 5000);
    rpc_unary(client, "/test.Echo/Echo", &q.base, &cube__master__v1__list_keys_request__descriptor, 5000,
              NULL, free_inside_a_callback, NULL);
    for (int i = 0; i < 5; i++)
        call(client, "/test.Echo/Hold", "watch", 5000);
    wait_for(7);
    assert_int_equal(last.err.code, ERR_CANCELLED);
    while (closed_calls < 6)
        turn(1);
}

static void on_health(const ProtobufCMessage *m, void *data)
{
    int status = (int)((const Grpc__Health__V1__HealthCheckResponse *)m)->status;
    snprintf(last.text + strlen(last.text), 4, "%d", status);
    last.messages++;
    if (last.messages == 1)
        rpc_server_set_serving(server, true);
    else if (last.messages == 2)
        rpc_server_drain(server, on_drained, NULL);
}

static void health_is_watched(void **state)
{
    fresh();
    Grpc__Health__V1__HealthCheckRequest q = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    q.service = "test.Echo";
    rpc_stream(client, "/grpc.health.v1.Health/Watch", &q.base,
               &grpc__health__v1__health_check_response__descriptor, 0, on_health, on_stream_end, NULL);
    wait_for(1);
    assert_string_equal(last.text, "212");
    assert_int_equal(last.err.code, ERR_UNAVAILABLE);
}

static void plaintext_is_for_loopback_only(void **state)
{
    struct err e = {0};
    assert_int_equal(rpc_server_listen(server, "0.0.0.0:0", &e), -1);
    assert_non_null(strstr(e.msg, "plaintext"));
    fresh();
    struct rpc_client *c = rpc_client_new(L, api, "192.0.2.1:9", NULL);
    call(c, "/test.Echo/Echo", "x", 5000);
    wait_for(1);
    assert_int_equal(last.err.code, ERR_UNAVAILABLE);
    assert_non_null(strstr(last.err.msg, "plaintext"));
    rpc_client_free(c);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    world_start();
    snprintf(address, sizeof address, "unix:%s/rpc.sock", key_dir);
    master = world_creds(RPC_ROLE_MASTER);
    api = world_creds(RPC_ROLE_API);
    node = world_creds(RPC_ROLE_NODE);
    const struct CMUnitTest tests[] = {
        T(unary_calls_answer),
        T(errors_keep_code_message_and_remedy),
        T(roles_are_proven_and_checked),
        T(many_calls_share_a_connection),
        T(deadlines_end_both_sides),
        T(late_answers_into_the_void_are_harmless),
        T(cancel_is_silent_here_and_heard_there),
        T(server_streams_flow_and_drain),
        T(client_streams_end_from_either_side),
        T(messages_above_the_limit_are_refused),
        T(calls_never_sent_say_so_and_a_new_server_is_found),
        T(a_broken_connection_is_not_never_sent),
        T(drain_finishes_open_calls_and_moves_new_ones),
        T(clients_may_be_freed_inside_callbacks),
        T(health_is_watched),
        T(plaintext_is_for_loopback_only),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rpc_creds_free(master);
    rpc_creds_free(api);
    rpc_creds_free(node);
    world_end();
    return failed;
}
