/* The Redis client against real servers: commands, scripts, death and return, timeouts, Sentinel, and a
 * followed stream. */
#include "check.h"
#include "redis_server.h"

#include "lib/base/buf.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/net/redis.h"

#include <errno.h>
#include <hiredis/hiredis.h>

static struct loop *L;
static char dir[] = "/tmp/L-redis-XXXXXX";
static int port;
static pid_t server;
static char address[64];
static struct redis *R;

static int replies, awaited;
static struct err last_err;
static char last_text[200];
static long long last_int;

static void on_reply(const redisReply *reply, const struct err *e, void *data)
{
    assert_true((reply == NULL) == (e != NULL));
    last_err = e ? *e : (struct err){0};
    if (reply && reply->str)
        snprintf(last_text, sizeof last_text, "%s", reply->str);
    if (reply)
        last_int = reply->integer;
    if (++replies >= awaited)
        loop_stop(L);
}

static void wait_replies(int n)
{
    awaited = n;
    while (replies < n) /* something else may stop the loop as well */
        loop_run(L);
}

static bool want_state;
static void on_state(bool connected, void *data)
{
    if (connected == want_state)
        loop_stop(L);
}

static void on_give_up(struct loop_timer *t)
{
    fail_msg("the connection did not change its state in time");
}

static void wait_state(bool connected)
{
    struct loop_timer t = {.fire = on_give_up};
    want_state = connected;
    awaited = 1 << 30;
    loop_timer_start(L, &t, 120000); /* Sentinel does nothing for 30 s after it stood still for 2 */
    while (redis_connected(R) != connected)
        loop_run(L);
    loop_timer_stop(L, &t);
}

static int setup(void **state)
{
    replies = 0;
    R = redis_new(L, &(struct redis_config){.address = address, .timeout_ms = 20000});
    redis_on_state(R, on_state, NULL);
    wait_state(true);
    return 0;
}

static int teardown(void **state)
{
    redis_free(R);
    return 0;
}

static void commands_are_pipelined(void **state)
{
    for (int i = 0; i < 1000; i++)
        redis_command(R, on_reply, NULL, "INCR %s", "counter");
    wait_replies(1000);
    assert_int_equal(last_int, 1000);
    const char *argv[] = {"SET", "bin", "a\0b"};
    redis_command_argv(R, on_reply, NULL, 3, argv, (size_t[]){3, 3, 3});
    redis_command(R, on_reply, NULL, "STRLEN bin");
    wait_replies(1002);
    assert_int_equal(last_int, 3);
    redis_command(R, on_reply, NULL, "LPUSH counter x");
    wait_replies(1003);
    assert_int_equal(last_err.code, ERR_INTERNAL);
    assert_non_null(strstr(last_err.msg, "WRONGTYPE"));
}

static void scripts_are_loaded_when_needed(void **state)
{
    static struct redis_script s = {.name = "t",
                                    .text = "return {ARGV[1] .. KEYS[1], redis.call('incr', 'runs')}"};
    static struct redis_script bad = {.name = "b", .text = "return redis.error_reply('CONFLICT rev is 7')"};
    const char *keys[] = {"k"}, *args[] = {"v"};
    for (int i = 0; i < 3; i++)
        redis_eval(R, &s, on_reply, NULL, 1, keys, 1, args, NULL);
    wait_replies(3);
    assert_int_equal(last_err.code, ERR_OK);
    redis_command(R, on_reply, NULL, "SCRIPT FLUSH");
    redis_eval(R, &s, on_reply, NULL, 1, keys, 1, args, NULL);
    redis_eval(R, &bad, on_reply, NULL, 0, NULL, 0, NULL, NULL);
    wait_replies(6);
    assert_string_equal(last_err.msg, "Redis: CONFLICT rev is 7");
    redis_command(R, on_reply, NULL, "GET runs");
    wait_replies(7);
    assert_string_equal(last_text, "4"); /* each ran once */
}

static void a_dead_server_fails_commands_and_its_return_is_found(void **state)
{
    redis_command(R, on_reply, NULL, "BLPOP nothing 0"); /* under way when it dies */
    redis_command(R, on_reply, NULL, "PING");
    redis_stop(server);
    wait_replies(2);
    assert_int_equal(last_err.code, ERR_UNAVAILABLE);
    assert_int_equal(last_err.sys, ECONNRESET); /* nobody knows whether it happened */
    wait_state(false);
    redis_command(R, on_reply, NULL, "PING");
    assert_int_equal(replies, 2); /* never before redis_command returned */
    wait_replies(3);
    assert_int_equal(last_err.sys, ECONNREFUSED); /* certainly not */
    server = redis_start(dir, port, NULL);
    wait_state(true);
    redis_command(R, on_reply, NULL, "SET after 1");
    wait_replies(4);
    assert_int_equal(last_err.code, ERR_OK);
}

static void a_silent_server_is_given_up_in_time(void **state)
{
    redis_free(R);
    R = redis_new(L, &(struct redis_config){.address = address, .timeout_ms = 1000});
    redis_on_state(R, on_state, NULL);
    wait_state(true);
    replies = 0;
    kill(server, SIGSTOP);
    int64_t t = clock_mono_us();
    redis_command(R, on_reply, NULL, "PING");
    wait_replies(1);
    kill(server, SIGCONT);
    assert_int_equal(last_err.code, ERR_UNAVAILABLE);
    assert_in_range(clock_mono_us() - t, 900000, 30000000);
    wait_state(true);
}

static void users_log_in_and_wrong_passwords_do_not(void **state)
{
    redis_command(R, on_reply, NULL, "ACL SETUSER api on >secret ~api:* +@all -role");
    wait_replies(1);
    redis_free(R);
    R = redis_new(L, &(struct redis_config){.address = address, .user = "api", .password = "secret"});
    redis_on_state(R, on_state, NULL);
    wait_state(true); /* though it may not ask for ROLE */
    redis_command(R, on_reply, NULL, "GET other");
    wait_replies(2);
    assert_non_null(strstr(last_err.msg, "NOPERM"));
    redis_free(R);
    R = redis_new(L, &(struct redis_config){.address = address, .user = "api", .password = "wrong"});
    redis_command(R, on_reply, NULL, "PING");
    wait_replies(3);
    assert_int_equal(last_err.sys, ECONNREFUSED);
    assert_false(redis_connected(R));
}

static void free_from_reply(const redisReply *reply, const struct err *e, void *data)
{
    on_reply(reply, e, data);
    redis_free(R);
    R = NULL;
}

static void the_client_may_be_freed_inside_a_reply(void **state)
{
    redis_command(R, free_from_reply, NULL, "PING");
    redis_command(R, on_reply, NULL, "PING");
    redis_command(R, on_reply, NULL, "PING");
    wait_replies(3);
    assert_int_equal(last_err.code, ERR_CANCELLED);
}

/* ---- what a server says ---- */

/* Asks a server beside the loop; the caller frees the answer, which is NULL when there is none. */
static redisReply *ask(int at, const char *command)
{
    redisContext *c = redisConnect("127.0.0.1", at);
    redisReply *r = c && !c->err ? redisCommand(c, command) : NULL;
    if (c)
        redisFree(c);
    return r;
}

static bool replica_is_online(int at)
{
    redisReply *r = ask(at, "INFO replication");
    bool online = r && r->str && strstr(r->str, "state=online");
    freeReplyObject(r);
    return online;
}

static bool replica_is_promotable(int at)
{
    redisReply *r = ask(at, "SENTINEL replicas main");
    bool plain = false, linked = false;
    if (r && r->type == REDIS_REPLY_ARRAY && r->elements == 1)
        for (size_t i = 0; i + 1 < r->element[0]->elements; i += 2) {
            const char *key = r->element[0]->element[i]->str, *value = r->element[0]->element[i + 1]->str;
            plain = plain || (!strcmp(key, "flags") && !strcmp(value, "slave"));
            linked = linked || (!strcmp(key, "master-link-status") && !strcmp(value, "ok"));
        }
    freeReplyObject(r);
    return plain && linked;
}

static bool a_follower_waits(int at)
{
    redisReply *r = ask(at, "CLIENT LIST");
    bool waits = r && r->str && strstr(r->str, "cmd=xread");
    freeReplyObject(r);
    return waits;
}

/* ---- stream ---- */

static char seen[4000];
static int entries, gaps, entries_awaited;
static void on_entry(const char *id, const redisReply *fields, void *data)
{
    entries++;
    if (strlen(seen) < 3000)
        snprintf(seen + strlen(seen), 32, "%.20s ", fields->element[1]->str);
    if (entries >= entries_awaited)
        loop_stop(L);
}

static void on_gap(void *data)
{
    gaps++;
    loop_stop(L);
}

static void add(const char *value)
{
    replies = 0;
    redis_command(R, on_reply, NULL, "XADD ev * v %s", value);
    wait_replies(1);
    if (last_err.code != ERR_OK)
        fail_msg("adding %s: %s", value, last_err.msg);
}

static void wait_entries(int n)
{
    entries_awaited = n;
    while (entries < n)
        loop_run(L);
}

static void streams_are_followed_over_the_death_of_the_server(void **state)
{
    static const char *const aof[] = {"--appendonly", "yes", NULL};
    redis_free(R);
    redis_stop(server);
    server = redis_start(dir, port, aof);
    setup(state);
    add("old");
    struct redis_config cfg = {.address = address, .timeout_ms = 20000};
    struct redis_stream *s = redis_stream_follow(L, &cfg, "ev", "0-0", on_entry, on_gap, NULL);
    wait_entries(1);
    add("a");
    wait_entries(2);
    redis_stop(server);
    wait_state(false);
    server = redis_start(dir, port, aof);
    wait_state(true);
    add("b");
    wait_entries(3);
    assert_int_equal(gaps, 1);
    assert_string_equal(seen, "old a b ");
    redis_stream_free(s);
    /* From the end, and when the stream has lost its data. */
    seen[0] = '\0';
    entries = gaps = 0;
    s = redis_stream_follow(L, &cfg, "ev", "$", on_entry, on_gap, NULL);
    while (!a_follower_waits(port)) { /* what is added before it asked is not for it */
        replies = 0;
        redis_command(R, on_reply, NULL, "PING");
        wait_replies(1);
    }
    add("c");
    wait_entries(1);
    assert_string_equal(seen, "c ");
    redis_stream_free(s);
}

/* ---- Sentinel ---- */

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void sentinel_leads_to_the_new_master(void **state)
{
    redis_free(R);
    int ports[2] = {free_port(), free_port()}, sentinel_port = free_port();
    char sub[2][64], text[512], conf[80], number[16];
    pid_t pids[2], sentinel;
    for (int i = 0; i < 2; i++) {
        snprintf(sub[i], sizeof sub[i], "%s/r%d", dir, i);
        snprintf(text, sizeof text, "mkdir -p %s", sub[i]);
        assert_int_equal(system(text), 0);
        snprintf(number, sizeof number, "%d", ports[0]);
        const char *const replica[] = {"--replicaof", "127.0.0.1", number, "--repl-diskless-sync-delay",
                                       "0",           NULL};
        const char *const master[] = {"--repl-diskless-sync-delay", "0", NULL};
        pids[i] = redis_start(sub[i], ports[i], i ? replica : master);
    }
    /* Sentinel asks a master for its replicas when it meets it and then every 10 s, and promotes none that it
     * has not seen: it starts when the replica is in step, and is asked what it knows. */
    for (int i = 0; i < 1200 && !replica_is_online(ports[0]); i++)
        usleep(50000);
    assert_true(replica_is_online(ports[0]));
    snprintf(conf, sizeof conf, "%s/sentinel.conf", dir);
    snprintf(text, sizeof text,
             "sentinel monitor main 127.0.0.1 %d 1\nsentinel down-after-milliseconds main 3000\n"
             "sentinel failover-timeout main 6000\nport %d\nbind 127.0.0.1\n",
             ports[0], sentinel_port);
    write_text(conf, text);
    const char *const sentinel_args[] = {conf, "--sentinel", NULL};
    sentinel = redis_start(dir, sentinel_port, sentinel_args);
    for (int i = 0; i < 1200 && !replica_is_promotable(sentinel_port); i++)
        usleep(50000);
    assert_true(replica_is_promotable(sentinel_port));
    char where[80];
    snprintf(where, sizeof where, "sentinel:main@127.0.0.1:1,127.0.0.1:%d", sentinel_port);
    R = redis_new(L, &(struct redis_config){.address = where, .timeout_ms = 10000});
    redis_on_state(R, on_state, NULL);
    wait_state(true);
    replies = 0;
    redis_command(R, on_reply, NULL, "SET k before");
    redis_command(R, on_reply, NULL, "WAIT 1 9000");
    wait_replies(2);
    assert_int_equal(last_int, 1);
    redis_stop(pids[0]);
    wait_state(false);
    wait_state(true);
    replies = 0;
    redis_command(R, on_reply, NULL, "SET k after");
    redis_command(R, on_reply, NULL, "GET k");
    wait_replies(2);
    assert_string_equal(last_text, "after");
    redis_stop(pids[1]);
    redis_stop(sentinel);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(int argc, char **argv)
{
    if (getenv("CUBE_TEST_DEBUG"))
        log_init("cube", LOG_DEBUG);
    L = loop_new();
    if (!mkdtemp(dir))
        return 1;
    port = free_port();
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    server = redis_start(dir, port, NULL);
    const struct CMUnitTest tests[] = {
        T(commands_are_pipelined),
        T(scripts_are_loaded_when_needed),
        T(a_dead_server_fails_commands_and_its_return_is_found),
        T(a_silent_server_is_given_up_in_time),
        T(users_log_in_and_wrong_passwords_do_not),
        T(the_client_may_be_freed_inside_a_reply),
        T(streams_are_followed_over_the_death_of_the_server),
    };
    const struct CMUnitTest slow[] = {T(sentinel_leads_to_the_new_master)};
    bool sentinel = argc > 1 && strcmp(argv[1], "sentinel") == 0;
    int failed =
        sentinel ? cmocka_run_group_tests(slow, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
    redis_stop(server);
    loop_free(L);
    char text[80];
    snprintf(text, sizeof text, "rm -rf %s", dir);
    return system(text) != 0 || failed;
}
