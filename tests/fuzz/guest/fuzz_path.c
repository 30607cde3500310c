/* Paths, passwd and group files, Accept-Encoding, content types: a resolved path is absolute and has no "."
 * or ".." left. */
#include "guest/envd/accept.h"
#include "guest/envd/content_type.h"
#include "guest/envd/state.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct user u = {.home = "/home/user", .name = "user"};
    char *text = malloc(n + 1), out[PATH_MAX];
    struct err e;
    memcpy(text, data, n);
    text[n] = 0;
    if (state_path(text, &u, out, &e) == 0) {
        size_t len = strlen(out);
        if (out[0] != '/' || strstr(out, "//") || strstr(out, "/../") || strstr(out, "/./") ||
            (len > 2 && !strcmp(out + len - 3, "/..")))
            abort();
    }
    accept_encoding(text);
    content_type_of(text, text, n);
    passwd_find((const char *)data, n, "user", NULL, &u);
    group_collect((const char *)data, n, &u);
    if (u.n_groups < 1 || u.n_groups > USER_GROUPS_MAX)
        abort();
    free(text);
    return 0;
}
