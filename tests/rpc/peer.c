/* Our side of the interoperability test with @grpc/grpc-js: `peer serve KEYS` is a server of every kind of
 * call and prints its port; `peer call KEYS ADDRESS` makes every kind of call and prints one line for each.
 * Messages have one string, field 1. */
#include "lib/net/rpc.h"
#include "proto/master.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef Cube__Master__V1__ListKeysRequest Word;
static const ProtobufCMessageDescriptor *const word_type = &cube__master__v1__list_keys_request__descriptor;

static struct loop *loop;
static struct rpc_creds *creds;

static Word word(const char *s)
{
    Word w = CUBE__MASTER__V1__LIST_KEYS_REQUEST__INIT;
    w.team_id = (char *)s;
    return w;
}

/* ---- server ---- */

static void on_echo(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    rpc_reply(c, in);
}

static void on_fail(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    struct err e = {0};
    err_set(&e, ERR_NOT_FOUND, "no %s: 100%% öde", ((const Word *)in)->team_id);
    rpc_fail(c, &e);
}

static void on_hold(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    /* never answers: the caller's deadline or cancellation ends it */
}

static void on_count(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    int n = atoi(((const Word *)in)->team_id);
    for (int i = 0; i < n; i++) {
        char text[20];
        snprintf(text, sizeof text, "%d", i);
        Word w = word(text);
        rpc_send(c, &w.base);
    }
    rpc_finish(c);
}

struct sum {
    long long bytes;
};

static void on_part(struct rpc_call *c, const ProtobufCMessage *in, void *data)
{
    ((struct sum *)data)->bytes += (long long)strlen(((const Word *)in)->team_id);
}

static void on_parts_end(struct rpc_call *c, void *data)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", ((struct sum *)data)->bytes);
    free(data);
    Word w = word(text);
    rpc_reply(c, &w.base);
}

static void on_sum(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    rpc_on_message(c, on_part, on_parts_end, calloc(1, sizeof(struct sum)));
}

#define METHOD(name, fn, stream)                                                                             \
    {                                                                                                        \
        .path = "/test.Echo/" name, .in = &cube__master__v1__list_keys_request__descriptor,                  \
        .out = &cube__master__v1__list_keys_request__descriptor, .roles = RPC_ROLE_API,                      \
        .client_stream = stream, .start = fn                                                                 \
    }
static const struct rpc_method methods[] = {METHOD("Echo", on_echo, false), METHOD("Fail", on_fail, false),
                                            METHOD("Hold", on_hold, false), METHOD("Count", on_count, false),
                                            METHOD("Sum", on_sum, true),    {0}};

static int serve(void)
{
    struct err e = {0};
    struct rpc_server *s = rpc_server_new(loop, creds);
    rpc_server_add(s, methods, NULL);
    if (rpc_server_listen(s, "127.0.0.1:0", &e) < 0) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    rpc_server_set_serving(s, true);
    printf("%d\n", rpc_server_port(s));
    fflush(stdout);
    loop_run(loop);
    return 0;
}

/* ---- client ---- */

static void done(const char *what, const ProtobufCMessage *m, const struct err *e)
{
    if (e)
        printf("%s error %s %s\n", what, err_code_name(e->code), e->msg);
    else if (m && strlen(((const Word *)m)->team_id) > 100)
        printf("%s bytes %zu\n", what, strlen(((const Word *)m)->team_id));
    else
        printf("%s %s\n", what, m ? ((const Word *)m)->team_id : "end");
    loop_stop(loop);
}

static void on_reply(const ProtobufCMessage *m, const struct err *e, void *data)
{
    done(data, m, e);
}

static int received;
static void on_message(const ProtobufCMessage *m, void *data)
{
    if (atoi(((const Word *)m)->team_id) != received++)
        printf("out of order\n");
}

static void on_end(const struct err *e, void *data)
{
    printf("count %d\n", received);
    done(data, NULL, e);
}

static void on_opened(struct rpc_out *o, void *data)
{
    char part[1001] = "";
    memset(part, 'x', 1000);
    Word w = word(part);
    for (int i = 0; i < 5000; i++)
        rpc_out_send(o, &w.base);
    rpc_out_half_close(o);
}

static void unary(struct rpc_client *c, const char *path, const char *text, int64_t timeout, char *what)
{
    Word w = word(text);
    rpc_unary(c, path, &w.base, word_type, timeout, NULL, on_reply, what);
    loop_run(loop);
}

static int call(const char *address)
{
    struct rpc_client *c = rpc_client_new(loop, creds, address, NULL);
    char *big = malloc(3000001);
    memset(big, 'y', 3000000);
    big[3000000] = '\0';
    unary(c, "/test.Echo/Echo", "hello", 5000, "echo");
    unary(c, "/test.Echo/Echo", big, 5000, "big");
    unary(c, "/test.Echo/Fail", "thing", 5000, "fail");
    unary(c, "/test.Echo/Hold", "x", 200, "hold");
    unary(c, "/test.Echo/None", "x", 5000, "none");
    Word w = word("1000");
    rpc_stream(c, "/test.Echo/Count", &w.base, word_type, 5000, on_message, on_end, "stream");
    loop_run(loop);
    rpc_upload(c, "/test.Echo/Sum", word_type, on_opened, on_reply, "sum");
    loop_run(loop);
    rpc_client_free(c);
    free(big);
    return 0;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    loop = loop_new();
    bool server = argc == 3 && strcmp(argv[1], "serve") == 0;
    if (!server && !(argc == 4 && strcmp(argv[1], "call") == 0)) {
        fprintf(stderr, "usage: peer serve KEYS | peer call KEYS ADDRESS\n");
        return 2;
    }
    creds = rpc_creds_load(&(struct rpc_auth){.role = RPC_ROLE_API, .key_dir = argv[2]}, &e);
    if (!creds) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    return server ? serve() : call(argv[3]);
}
