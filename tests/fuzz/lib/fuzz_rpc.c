/* Framing of messages and the fields of trailers. The same bytes, cut in two different ways, must give the
 * same messages. */
#include "lib/net/rpc_impl.h"

#include <stdlib.h>
#include <string.h>

struct seen {
    uint64_t sum;
    size_t count;
};

static bool on_message(const uint8_t *msg, size_t n, void *ctx)
{
    struct seen *s = ctx;
    for (size_t i = 0; i < n; i++)
        s->sum = s->sum * 31 + msg[i];
    s->sum += n;
    s->count++;
    return true;
}

static int feed(const uint8_t *data, size_t n, size_t step, struct seen *s)
{
    struct buf in = {0};
    int r = 0;
    for (size_t at = 0; at < n && r == 0; at += step) {
        struct err e = {0};
        size_t take = n - at < step ? n - at : step;
        r = rpc_inbuf_feed(&in, data + at, take, on_message, s, &e);
        if (r < 0 && e.code == ERR_OK)
            abort();
        if (in.len > RPC_MAX_MESSAGE + 5)
            abort();
    }
    buf_free(&in);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2)
        return 0;
    struct seen whole = {0}, parts = {0};
    int a = feed(data + 1, n - 1, n, &whole), b = feed(data + 1, n - 1, (size_t)data[0] % 16 + 1, &parts);
    if (a != b || whole.sum != parts.sum || whole.count != parts.count)
        abort();

    static const char *const names[] = {"grpc-status", "grpc-message", "cube-remedy", "cube-error-code"};
    const char *name = names[data[0] % 4];
    struct rpc_status s = {.grpc = -1};
    struct err e = {0};
    rpc_status_header(&s, name, strlen(name), (const char *)data + 1, n - 1);
    rpc_status_failed(&s, "/x", &e);
    for (const char *p = e.msg; *p; p++)
        if ((unsigned char)*p < 0x20)
            abort();
    rpc_timeout_parse((const char *)data, n);
    return 0;
}
