/* A record's hash, an activity line and a list cursor from any bytes. The first byte chooses; fields are
 * separated by NUL. */
#include "master/cursor.h"
#include "master/record.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void record(char *text, size_t n)
{
    redisReply cells[32], *ptrs[32], hash = {.type = REDIS_REPLY_ARRAY, .element = ptrs};
    for (size_t at = 0; at < n && hash.elements < 32;) {
        size_t len = strlen(text + at);
        cells[hash.elements] = (redisReply){.type = REDIS_REPLY_STRING, .str = text + at, .len = len};
        ptrs[hash.elements] = &cells[hash.elements];
        hash.elements++;
        at += len + 1;
    }
    struct record r;
    struct err e = {0};
    if (record_parse(&hash, &r, &e) == 0) {
        struct record_tokens tokens = {0};
        Cube__V1__Sandbox m;
        record_message(&r, &tokens, &m);
        if (cube__v1__sandbox__get_packed_size(&m) == 0)
            abort();
        record_free(&r);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    char *text = malloc(size);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    if (data[0] % 3 == 0) {
        record(text, size);
    } else if (data[0] % 3 == 1) {
        struct record r = {0};
        record_parse_activity(&r, text, size - 1);
        if (strlen(r.awake) >= sizeof r.awake)
            abort();
    } else {
        char member[INDEX_MEMBER_LEN + 1], token[CURSOR_MAX];
        struct err e = {0};
        if (cursor_decode(text, false, member, &e) == 0 && *text) {
            cursor_encode(member, false, token);
            if (strcmp(token, text) != 0)
                abort(); /* what is accepted is what was written */
        }
    }
    free(text);
    return 0;
}
