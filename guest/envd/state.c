/* The daemon's state. Invariant: the token lives only in one locked, undumpable page and is wiped when
 * replaced. */
#include "guest/envd/state.h"

#include <errno.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TOKEN_MAX 4095

struct state state = {.cgroup_user = -1, .cgroup_pty = -1, .cgroup_system = -1};

int state_token_set(const char *token)
{
    static char *page;
    if (!page) {
        page = mmap(NULL, TOKEN_MAX + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) {
            page = NULL;
            return -1;
        }
        mlock(page, TOKEN_MAX + 1); /* refused only by a tight RLIMIT_MEMLOCK of an ordinary user */
        madvise(page, TOKEN_MAX + 1, MADV_DONTDUMP);
    }
    size_t n = token ? strlen(token) : 0;
    if (n > TOKEN_MAX) {
        errno = EINVAL;
        return -1;
    }
    sodium_memzero(page, TOKEN_MAX + 1);
    memcpy(page, token ? token : "", n);
    state.token = n ? page : NULL;
    state.token_len = n;
    return 0;
}

bool state_token_matches(const char *given)
{
    if (!state.token)
        return true;
    if (!given || strlen(given) != state.token_len)
        return false;
    return sodium_memcmp(given, state.token, state.token_len) == 0;
}

static void envs_free(struct pairs *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free((char *)l->v[i].key);
        free((char *)l->v[i].value);
    }
    free(l->v);
    *l = (struct pairs){0};
}

int state_envs_set(const struct pairs *envs)
{
    struct pairs fresh = {.v = calloc(envs->n + 1, sizeof(struct pair))};
    if (!fresh.v)
        return -1;
    for (size_t i = 0; i < envs->n; i++) {
        struct pair p = {strdup(envs->v[i].key), strdup(envs->v[i].value)};
        fresh.v[fresh.n++] = p;
        if (!p.key || !p.value) {
            envs_free(&fresh);
            return -1;
        }
    }
    envs_free(&state.envs);
    state.envs = fresh;
    return 0;
}

void state_envs_each(void (*each)(void *arg, const char *key, const char *value), void *arg)
{
    for (size_t i = 0; i < state.envs.n; i++)
        if (strcmp(state.envs.v[i].key, "E2B_SANDBOX") && strcmp(state.envs.v[i].key, "E2B_SANDBOX_ID") &&
            strcmp(state.envs.v[i].key, "E2B_TEMPLATE_ID"))
            each(arg, state.envs.v[i].key, state.envs.v[i].value);
    each(arg, "E2B_SANDBOX", "true");
    if (state.sandbox_id[0])
        each(arg, "E2B_SANDBOX_ID", state.sandbox_id);
    if (state.template_id[0])
        each(arg, "E2B_TEMPLATE_ID", state.template_id);
}

int state_user(const char *name, struct user *out)
{
    if (!name || !*name)
        name = state.default_user;
    if (*name)
        return user_lookup(name, out);
    if (geteuid() == 0)
        return user_lookup("root", out);
    user_self(out);
    return 0;
}

/* Removes ".", ".." and doubled slashes of an absolute path, without looking at the file system. */
static void path_clean(char *path)
{
    char *out = path;
    const char *in = path;
    while (*in) {
        while (*in == '/')
            in++;
        size_t n = strcspn(in, "/");
        if (!n)
            break;
        if (n == 2 && in[0] == '.' && in[1] == '.') {
            while (out > path && *--out != '/')
                continue;
        } else if (n != 1 || in[0] != '.') {
            *out++ = '/';
            memmove(out, in, n);
            out += n;
        }
        in += n;
    }
    if (out == path)
        *out++ = '/';
    *out = 0;
}

int state_path(const char *path, const struct user *user, char *out, struct err *e)
{
    int n;
    if (!*path && state.default_workdir[0])
        n = snprintf(out, PATH_MAX, "%s", state.default_workdir);
    else if (!*path)
        n = snprintf(out, PATH_MAX, "%s", user->home);
    else if (path[0] == '~' && (!path[1] || path[1] == '/'))
        n = snprintf(out, PATH_MAX, "%s%s", user->home, path + 1);
    else if (path[0] == '~')
        return err_set(e, ERR_INVALID, "cannot expand user-specific home dir in path '%s'", path);
    else if (path[0] == '/')
        n = snprintf(out, PATH_MAX, "%s", path);
    else
        n = snprintf(out, PATH_MAX, "%s/%s", user->home, path);
    if (n < 0 || n >= PATH_MAX)
        return err_set(e, ERR_INVALID, "path is longer than %d bytes", PATH_MAX - 1);
    if (out[0] != '/')
        return err_set(e, ERR_INVALID, "path '%s' is not absolute", out);
    path_clean(out);
    return 0;
}
