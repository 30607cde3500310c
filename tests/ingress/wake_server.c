/* cube.lifecycle.v1.Wake for tests: each call is printed as "WAKE id gen"; the test answers on stdin with one
 * line "ok gen took_ms" or "fail error_code text". Usage: wake_server ADDRESS KEY_DIR. */
#include "lib/base/log.h"
#include "lib/net/loop.h"
#include "lib/net/rpc.h"
#include "proto/lifecycle.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct rpc_call *waiting[1024];
static size_t first, last;

static void on_wake(struct rpc_call *c, const ProtobufCMessage *in, void *service)
{
    const Cube__Lifecycle__V1__WakeRequest *r = (const Cube__Lifecycle__V1__WakeRequest *)in;
    waiting[last++ % 1024] = c;
    printf("WAKE %s %" PRIu64 "\n", r->sandbox_id, r->gen_seen);
    fflush(stdout);
}

static void on_line(void *data)
{
    static char text[4096];
    static size_t len;
    ssize_t n = read(0, text + len, sizeof text - 1 - len);
    if (n <= 0)
        _exit(0);
    len += (size_t)n;
    text[len] = 0;
    for (char *eol; (eol = strchr(text, '\n'));) {
        *eol = 0;
        unsigned long long gen, took;
        char code[64], why[128];
        struct rpc_call *c = first < last ? waiting[first++ % 1024] : NULL;
        if (c && sscanf(text, "ok %llu %llu", &gen, &took) == 2) {
            Cube__Lifecycle__V1__WakeReply reply = CUBE__LIFECYCLE__V1__WAKE_REPLY__INIT;
            reply.gen = gen;
            reply.took_ms = (int64_t)took;
            rpc_reply(c, &reply.base);
        } else if (c && sscanf(text, "fail %63s %127[^\n]", code, why) == 2) {
            struct err e = {0};
            err_set(&e, err_code_parse(code), "%s", why);
            rpc_fail(c, &e);
        }
        len -= (size_t)(eol + 1 - text);
        memmove(text, eol + 1, len + 1);
    }
}

int main(int argc, char **argv)
{
    static const struct rpc_method methods[] = {{.path = "/cube.lifecycle.v1.Wake/Wake",
                                                 .in = &cube__lifecycle__v1__wake_request__descriptor,
                                                 .out = &cube__lifecycle__v1__wake_reply__descriptor,
                                                 .roles = RPC_ROLE_PROXY,
                                                 .start = on_wake},
                                                {0}};
    struct err e = {0};
    if (argc != 3)
        return 2;
    log_init("wake-server", LOG_INFO);
    struct loop *l = loop_new();
    struct rpc_auth auth = {.role = RPC_ROLE_LIFECYCLE, .key_dir = argv[2]};
    struct rpc_creds *creds = rpc_creds_load(&auth, &e);
    struct rpc_server *s = creds ? rpc_server_new(l, creds) : NULL;
    if (s)
        rpc_server_add(s, methods, NULL);
    if (s == NULL || rpc_server_listen(s, argv[1], &e) != 0) {
        log_fail(&e, "starting");
        return 1;
    }
    loop_watch_read(l, 0, on_line, NULL);
    puts("ready");
    fflush(stdout);
    loop_run(l);
}
