/* JSON from outside, and our writer: what the parser took as a string, the writer writes so that the parser
 * takes the same again; what the writer makes of any bytes parses. */
#include "lib/base/jsonw.h"
#include "lib/net/jsonin.h"

#include <stdlib.h>
#include <string.h>

static void write_back(const char *s, size_t n, bool same)
{
    _cleanup_buf_ struct buf b = {0};
    struct jsonw w = jsonw_start(&b);
    jsonw_strn(&w, s, n);
    json_t *v = json_loadb(b.data, b.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (!v || (same && (json_string_length(v) != n || memcmp(json_string_value(v), s, n) != 0)))
        abort();
    json_decref(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct err e = {0};
    write_back((const char *)data, n, false);
    json_t *v = jsonin_load_object((const char *)data, n, 65536, &e);
    if (!v) {
        if (e.code != ERR_INVALID && e.code != ERR_TOO_LARGE)
            abort();
        return 0;
    }
    const char *s;
    int64_t i;
    bool b;
    const json_t *child;
    if (jsonin_str(v, "s", 1000, &s, &e) == 1)
        write_back(s, strlen(s), true);
    jsonin_int(v, "i", -5, 5, &i, &e);
    jsonin_bool(v, "b", &b, &e);
    jsonin_obj(v, "o", &child, &e);
    jsonin_arr(v, "a", 3, &child, &e);
    json_decref(v);
    return 0;
}
