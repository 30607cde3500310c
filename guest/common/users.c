/* Lookup of users and groups. Invariant: a file is read whole, at most FILE_MAX bytes of it, and a line that
 * is not of the right form is skipped, as getpwnam does. */
#include "guest/common/users.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/cleanup.h"

#define FILE_MAX (1 << 20)

static char *file_read(const char *path, size_t *n)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return NULL;
    size_t cap = 8192, len = 0;
    char *text = malloc(cap);
    while (text) {
        if (len == cap) {
            char *more = cap < FILE_MAX ? realloc(text, cap *= 2) : NULL;
            if (!more)
                break;
            text = more;
        }
        ssize_t r = read(fd, text + len, cap - len);
        if (r <= 0)
            break;
        len += (size_t)r;
    }
    *n = len;
    return text;
}

struct slice {
    const char *p;
    size_t n;
};

/* Splits "a:b:c" of [line, end) into at most `max` fields; returns how many. */
static int fields_split(const char *line, const char *end, struct slice *f, int max)
{
    int k = 0;
    while (k < max) {
        const char *colon = memchr(line, ':', (size_t)(end - line));
        f[k++] = (struct slice){line, (size_t)((colon ? colon : end) - line)};
        if (!colon)
            break;
        line = colon + 1;
    }
    return k;
}

static bool number(struct slice s, uint32_t *out)
{
    uint64_t v = 0;
    if (!s.n || s.n > 10)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
        v = v * 10 + (uint64_t)(s.p[i] - '0');
    }
    *out = (uint32_t)v;
    return v < UINT32_MAX;
}

static bool equals(struct slice s, const char *text)
{
    return s.n == strlen(text) && !memcmp(s.p, text, s.n);
}

static bool copy(char *out, size_t cap, struct slice s)
{
    if (s.n >= cap || memchr(s.p, 0, s.n))
        return false;
    memcpy(out, s.p, s.n);
    out[s.n] = 0;
    return true;
}

bool passwd_find(const char *text, size_t n, const char *name, const uid_t *uid, struct user *out)
{
    const char *end = text + n;
    for (const char *line = text; line < end;) {
        const char *eol = memchr(line, '\n', (size_t)(end - line));
        const char *stop = eol ? eol : end;
        struct slice f[7];
        uint32_t u, g;
        if (fields_split(line, stop, f, 7) == 7 && f[0].n && number(f[2], &u) && number(f[3], &g) &&
            (name ? equals(f[0], name) : u == *uid) && copy(out->name, sizeof(out->name), f[0]) &&
            copy(out->home, sizeof(out->home), f[5]) && copy(out->shell, sizeof(out->shell), f[6])) {
            out->uid = u;
            out->gid = g;
            return true;
        }
        line = stop + 1;
    }
    return false;
}

static bool listed(struct slice members, const char *name)
{
    const char *p = members.p, *end = members.p + members.n;
    while (p < end) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        struct slice one = {p, (size_t)((comma ? comma : end) - p)};
        if (equals(one, name))
            return true;
        p += one.n + 1;
    }
    return false;
}

void group_collect(const char *text, size_t n, struct user *user)
{
    const char *end = text + n;
    user->groups[0] = user->gid;
    user->n_groups = 1;
    for (const char *line = text; line < end && user->n_groups < USER_GROUPS_MAX;) {
        const char *eol = memchr(line, '\n', (size_t)(end - line));
        const char *stop = eol ? eol : end;
        struct slice f[4];
        uint32_t g;
        if (fields_split(line, stop, f, 4) == 4 && number(f[2], &g) && g != user->gid &&
            listed(f[3], user->name))
            user->groups[user->n_groups++] = g;
        line = stop + 1;
    }
}

static bool find(const char *name, const uid_t *uid, struct user *out)
{
    size_t n = 0;
    _cleanup_free_ char *text = file_read("/etc/passwd", &n);
    if (text && passwd_find(text, n, name, uid, out))
        return true;
    bool root = name ? !strcmp(name, "root") : *uid == 0;
    if (!root)
        return false;
    struct user built_in = {.name = "root", .home = "/root", .shell = "/bin/sh"};
    if (access(built_in.home, F_OK) < 0)
        strcpy(built_in.home, "/");
    *out = built_in;
    return true;
}

static void groups_read(struct user *u)
{
    size_t n = 0;
    _cleanup_free_ char *text = file_read("/etc/group", &n);
    group_collect(text ? text : "", text ? n : 0, u);
}

int user_lookup(const char *name, struct user *out)
{
    if (!find(name, NULL, out)) {
        errno = ENOENT;
        return -1;
    }
    groups_read(out);
    return 0;
}

void user_self(struct user *out)
{
    uid_t uid = geteuid();
    if (!find(NULL, &uid, out)) {
        const char *home = getenv("HOME");
        *out = (struct user){.uid = uid, .gid = getegid(), .shell = "/bin/sh"};
        snprintf(out->name, sizeof(out->name), "%u", uid);
        snprintf(out->home, sizeof(out->home), "%s", home && *home == '/' ? home : "/");
    }
    groups_read(out);
}

void user_name(uid_t uid, char *out)
{
    struct user u;
    size_t n = 0;
    _cleanup_free_ char *text = file_read("/etc/passwd", &n);
    if (text && passwd_find(text, n, NULL, &uid, &u))
        snprintf(out, 64, "%s", u.name);
    else
        snprintf(out, 64, uid ? "%u" : "root", uid);
}

void group_name(gid_t gid, char *out)
{
    size_t n = 0;
    _cleanup_free_ char *text = file_read("/etc/group", &n);
    const char *line = text, *end = text + n;
    while (text && line < end) {
        const char *eol = memchr(line, '\n', (size_t)(end - line));
        const char *stop = eol ? eol : end;
        struct slice f[4];
        uint32_t g;
        if (fields_split(line, stop, f, 4) >= 3 && number(f[2], &g) && g == gid && copy(out, 64, f[0]))
            return;
        line = stop + 1;
    }
    snprintf(out, 64, gid ? "%u" : "root", gid);
}
