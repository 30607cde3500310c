/* Owns <state>/bin. The daemons run as users of their own, who cannot look into the home directory that a
 * checkout may lie in, and a rebuild must not pull a program from under a running cluster: so the cluster
 * runs copies. Invariant: a path below <state>/bin holds a complete program at any time. */
#include "cli/programs.h"
#include "lib/base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

/* Programs that are no daemons: cube-jailer starts cube-vmm from beside itself, `cube down` runs cube-vs. */
static const char *const helpers[] = {"node/vmm/cube-vmm", "node/net/cube-vs"};

void program_path(const struct settings *s, const char *name, char *out, size_t cap)
{
    snprintf(out, cap, "%s/bin/%s", s->state_dir, name);
}

void program_of(const struct settings *s, const struct daemon_spec *d, char *out, size_t cap)
{
    if (d->binary)
        program_path(s, d->name, out, cap);
    else
        snprintf(out, cap, "/usr/bin/redis-server");
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static int copy_bytes(int from, int to, off_t size)
{
    for (off_t at = 0; at < size;) {
        ssize_t n = sendfile(to, from, &at, (size_t)(size - at));
        if (n < 0 && errno != EINTR)
            return -1;
        if (n == 0) {
            errno = EIO;
            return -1;
        }
    }
    return 0;
}

static int install_one(const struct settings *s, const char *binary, struct err *e)
{
    char from[PATH_MAX], to[300], fresh[320];
    snprintf(from, sizeof from, "%s/%s", daemon_build_dir(), binary);
    program_path(s, strrchr(binary, '/') + 1, to, sizeof to);
    snprintf(fresh, sizeof fresh, "%s.new", to);
    _cleanup_close_ int in = open(from, O_RDONLY | O_CLOEXEC);
    struct stat want, have;
    if (in < 0 || fstat(in, &want) < 0)
        return err_sys(e, ERR_NOT_FOUND, "opening %s", from);
    if (stat(to, &have) == 0 && same_file(&want, &have))
        return 0;
    _cleanup_close_ int out = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0755);
    struct timespec times[2] = {want.st_mtim, want.st_mtim};
    if (out < 0 || copy_bytes(in, out, want.st_size) < 0 || fchmod(out, 0755) < 0 ||
        futimens(out, times) < 0 || rename(fresh, to) < 0) {
        err_sys(e, ERR_INTERNAL, "copying %s to %s", from, to);
        unlink(fresh);
        return -1;
    }
    return 0;
}

int programs_install(const struct settings *s, struct err *e)
{
    for (const struct daemon_spec *d = daemon_table; d->name; d++)
        if (d->binary && install_one(s, d->binary, e) < 0)
            return -1;
    for (size_t i = 0; i < sizeof helpers / sizeof *helpers; i++)
        if (install_one(s, helpers[i], e) < 0)
            return -1;
    return 0;
}
