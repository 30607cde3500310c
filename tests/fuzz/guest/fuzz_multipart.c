/* A multipart body gives the same parts whole and in pieces. */
#include "guest/envd/multipart.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

struct sum {
    struct multipart m;
    uint64_t hash;
};

static void mix(struct sum *s, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        s->hash = (s->hash ^ (unsigned char)p[i]) * 1099511628211u;
}

static int on_part(void *arg)
{
    struct sum *s = arg;
    mix(s, s->m.name, strlen(s->m.name) + 1);
    mix(s, s->m.filename, strlen(s->m.filename) + 1);
    return 0;
}

static int on_data(void *arg, const char *p, size_t n)
{
    mix(arg, p, n);
    return 0;
}

static int on_end(void *arg)
{
    mix(arg, "]", 1);
    return 0;
}

static int feed(struct sum *s, const char *type, const char *p, size_t n, size_t step)
{
    memset(s, 0, sizeof(*s));
    s->m.on_part = on_part;
    s->m.on_data = on_data;
    s->m.on_part_end = on_end;
    s->m.arg = s;
    if (!multipart_start(&s->m, type))
        return -1;
    for (size_t at = 0; at < n; at += step)
        if (multipart_feed(&s->m, p + at, n - at < step ? n - at : step) < 0)
            return -2;
    return multipart_complete(&s->m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct sum a, b;
    const uint8_t *eol = memchr(data, '\n', n);
    if (!eol)
        return 0;
    size_t head = (size_t)(eol - data);
    char *type = malloc(head + 1);
    memcpy(type, data, head);
    type[head] = 0;
    const char *body = (const char *)eol + 1;
    size_t len = n - head - 1;
    int ra = feed(&a, type, body, len, len ? len : 1), rb = feed(&b, type, body, len, 1 + n % 5);
    if (ra != rb || (ra >= 0 && a.hash != b.hash))
        abort();
    free(type);
    return 0;
}
