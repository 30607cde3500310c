/* Users and groups from /etc/passwd and /etc/group, read by ourselves: the guest's programs are static and
 * must not load NSS modules of a root file system that they know nothing about. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define USER_GROUPS_MAX 64

struct user {
    char name[64];
    uid_t uid;
    gid_t gid;
    char home[PATH_MAX];
    char shell[256];
    gid_t groups[USER_GROUPS_MAX]; /* supplementary, the primary one included */
    int n_groups;
};

/** Looks a user up by name, groups too. "root" is always known (a root without /etc/passwd still has uid 0).
 * Returns 0, or -1 with errno: ENOENT = no such user. */
int user_lookup(const char *name, struct user *out);

/** The user running this process, by uid; falls back to a numeric name and $HOME. */
void user_self(struct user *out);

/** Name of a uid or gid, or its number as text. `out` holds 64 bytes. */
void user_name(uid_t uid, char *out);
void group_name(gid_t gid, char *out);

/** Pure parsers of one file's text (fuzzed). Return false when there is no such entry. */
bool passwd_find(const char *text, size_t n, const char *name, const uid_t *uid, struct user *out);
void group_collect(const char *text, size_t n, struct user *user);
