/* mTLS between our own client and server: who is let in, as whom, and whom the client believes. */
#include "check.h"

#include "lib/net/rpc.h"
#include "proto/master.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef Cube__Master__V1__GetRequest Get;
typedef Cube__Master__V1__ListKeysRequest Word;

static struct loop *L;
static char dir[] = "/tmp/L-tls-XXXXXX";
static struct err last;
static char text[200];

static void on_who(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    char who[100];
    snprintf(who, sizeof who, "%s/%s", rpc_role_name(rpc_peer_role(c)), rpc_peer_node(c));
    Word w = CUBE__MASTER__V1__LIST_KEYS_REQUEST__INIT;
    w.team_id = who;
    rpc_reply(c, &w.base);
}

#define WHO(path_, roles_)                                                                                   \
    {                                                                                                        \
        .path = path_, .in = &cube__master__v1__get_request__descriptor,                                     \
        .out = &cube__master__v1__list_keys_request__descriptor, .roles = roles_, .start = on_who            \
    }
static const struct rpc_method methods[] = {WHO("/cube.master.v1.Test/Who", RPC_ROLE_API | RPC_ROLE_NODE),
                                            WHO("/cube.node.v1.Test/Who", RPC_ROLE_ANY),
                                            {0}};

static struct rpc_creds *creds(enum rpc_role role, const char *name)
{
    char ca[80], cert[80], key[80];
    struct err e = {0};
    snprintf(ca, sizeof ca, "%s/ca.pem", dir);
    snprintf(cert, sizeof cert, "%s/%s.pem", dir, name);
    snprintf(key, sizeof key, "%s/%s.key", dir, name);
    struct rpc_creds *c =
        rpc_creds_load(&(struct rpc_auth){.role = role, .ca = ca, .cert = cert, .key = key}, &e);
    if (!c)
        fail_msg("%s", e.msg);
    return c;
}

static void on_reply(const ProtobufCMessage *m, const struct err *e, void *data)
{
    last = e ? *e : (struct err){0};
    snprintf(text, sizeof text, "%s", m ? ((const Word *)m)->team_id : "");
    loop_stop(L);
}

/* One call as this peer; what came of it is in `last` and `text`. */
static void ask(struct rpc_server *s, enum rpc_role role, const char *name, const char *path,
                const char *expect_node)
{
    char address[40];
    Get q = CUBE__MASTER__V1__GET_REQUEST__INIT;
    snprintf(address, sizeof address, "127.0.0.1:%d", rpc_server_port(s));
    struct rpc_creds *own = creds(role, name);
    struct rpc_client *c = rpc_client_new(L, own, address, expect_node);
    rpc_unary(c, path, &q.base, &cube__master__v1__list_keys_request__descriptor, 5000, NULL, on_reply, NULL);
    loop_run(L);
    rpc_client_free(c);
    rpc_creds_free(own);
}

static struct rpc_server *serve(struct rpc_creds *c)
{
    struct err e = {0};
    struct rpc_server *s = rpc_server_new(L, c);
    rpc_server_add(s, methods, NULL);
    if (rpc_server_listen(s, "0.0.0.0:0", &e) < 0) /* with TLS not only loopback */
        fail_msg("%s", e.msg);
    return s;
}

static void certificates_say_who_calls(void **state)
{
    struct rpc_creds *own = creds(RPC_ROLE_MASTER, "master");
    struct rpc_server *s = serve(own);
    ask(s, RPC_ROLE_API, "api", "/cube.master.v1.Test/Who", NULL);
    assert_string_equal(text, "api/");
    ask(s, RPC_ROLE_NODE, "n1", "/cube.master.v1.Test/Who", NULL);
    assert_string_equal(text, "node/n1");
    ask(s, RPC_ROLE_API, "n1", "/cube.master.v1.Test/Who",
        NULL); /* claims what its certificate does not say */
    assert_string_equal(text, "node/n1");
    ask(s, RPC_ROLE_API, "plain", "/cube.master.v1.Test/Who", NULL);
    assert_int_equal(last.code, ERR_UNAUTHENTICATED);
    ask(s, RPC_ROLE_MASTER, "master", "/cube.master.v1.Test/Who", NULL);
    assert_int_equal(last.code, ERR_FORBIDDEN);
    ask(s, RPC_ROLE_API, "stranger", "/cube.master.v1.Test/Who", NULL);
    assert_int_equal(last.code, ERR_UNAVAILABLE);
    rpc_server_free(s);
    rpc_creds_free(own);
}

static void clients_believe_only_the_right_server(void **state)
{
    struct rpc_creds *own = creds(RPC_ROLE_NODE, "n1");
    struct rpc_server *s = serve(own);
    ask(s, RPC_ROLE_API, "api", "/cube.node.v1.Test/Who", "n1");
    assert_string_equal(text, "api/");
    ask(s, RPC_ROLE_API, "api", "/cube.node.v1.Test/Who", "n2");
    assert_int_equal(last.code, ERR_UNAUTHENTICATED);
    ask(s, RPC_ROLE_API, "api", "/cube.master.v1.Test/Who", NULL); /* a node that plays master */
    assert_int_equal(last.code, ERR_UNAUTHENTICATED);
    rpc_server_free(s);
    rpc_creds_free(own);
    own = creds(RPC_ROLE_NODE, "stranger");
    s = serve(own);
    ask(s, RPC_ROLE_API, "api", "/cube.node.v1.Test/Who", NULL);
    assert_int_equal(last.code, ERR_UNAVAILABLE);
    rpc_server_free(s);
    rpc_creds_free(own);
}

int main(int argc, char **argv)
{
    char command[256];
    if (argc < 2 || !mkdtemp(dir))
        return 1;
    snprintf(command, sizeof command, "%s %s", argv[1], dir);
    if (system(command) != 0)
        return 1;
    L = loop_new();
    const struct CMUnitTest tests[] = {cmocka_unit_test(certificates_say_who_calls),
                                       cmocka_unit_test(clients_believe_only_the_right_server)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    loop_free(L);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) != 0 || failed;
}
