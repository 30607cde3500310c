/* Trust stores. Each distribution has one file with all trusted certificates, and nearly every program reads
 * that file (OpenSSL and what links it, GnuTLS, curl, Go, Python); ours are a marked section at its end, so
 * that they can be replaced and taken away. A store appears whole (rename), and on a read-only root as a bind
 * mount. Invariant: what is not between our marks is never changed. Node.js brings its own certificates and
 * reads NODE_EXTRA_CA_CERTS, and tools that rebuild the store (update-ca-certificates) find ours in their
 * directory of local ones. */
#include "guest/envd/trust.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/buf.h"
#include "lib/base/cleanup.h"

#define STORE_MAX (8u << 20)
#define BEGIN "# begin: certificates of the platform\n"
#define END "# end: certificates of the platform\n"
#define PEM_BEGIN "-----BEGIN CERTIFICATE-----"
#define PEM_END "-----END CERTIFICATE-----"

/* `create`: made when the directory is there (OpenSSL's default file, which Debian leaves out). */
static const struct {
    const char *path;
    bool create;
} stores[] = {
    {"/etc/ssl/certs/ca-certificates.crt", false},                /* Debian, Alpine */
    {"/etc/pki/tls/certs/ca-bundle.crt", false},                  /* Fedora */
    {"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", false}, /* Fedora */
    {"/etc/ssl/ca-bundle.pem", false},                            /* SUSE */
    {"/etc/ssl/cert.pem", false},                                 /* Alpine */
    {"/usr/lib/ssl/cert.pem", true},                              /* OpenSSL of Debian, so Python's too */
    {TRUST_FILE, true},                                           /* Node.js */
};

/* Directories of local certificates, one file each. */
static const char *const locals[] = {"/usr/local/share/ca-certificates", "/etc/pki/ca-trust/source/anchors"};

bool trust_valid(const char *pem)
{
    static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\r\n";
    int n = 0;
    for (const char *at = pem; (at = strstr(at, PEM_BEGIN)); n++) {
        at += sizeof(PEM_BEGIN) - 1;
        size_t body = strspn(at, base64);
        if (!body || strncmp(at + body, PEM_END, sizeof(PEM_END) - 1))
            return false;
        at += body + sizeof(PEM_END) - 1;
    }
    return n && !strstr(pem, "PRIVATE KEY") && !strstr(pem, BEGIN) && !strstr(pem, END);
}

static int store_read(const char *path, struct buf *out)
{
    struct stat st;
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -1;
    if (!S_ISREG(st.st_mode) || st.st_size > STORE_MAX) {
        errno = EINVAL;
        return -1;
    }
    ssize_t n = buf_reserve(out, (size_t)st.st_size + 1) ? read(fd, out->data, (size_t)st.st_size) : 0;
    out->len = n > 0 ? (size_t)n : 0;
    return n < 0 ? -1 : 0;
}

static void section_remove(struct buf *b)
{
    if (!b->len)
        return;
    char *from = memmem(b->data, b->len, BEGIN, sizeof(BEGIN) - 1);
    char *to = from ? memmem(from, (size_t)(b->data + b->len - from), END, sizeof(END) - 1) : NULL;
    if (!to)
        return;
    to += sizeof(END) - 1;
    memmove(from, to, (size_t)(b->data + b->len - to));
    b->len -= (size_t)(to - from);
}

static int write_new(const char *path, const struct buf *b)
{
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return -1;
    for (size_t at = 0; at < b->len;) {
        ssize_t n = write(fd, b->data + at, b->len - at);
        if (n < 0 && errno != EINTR)
            return -1;
        at += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* On a read-only root a copy in /run is bound over the file; a later call finds the copy writable under its
 * path. */
static int publish(const char *path, size_t index, const struct buf *b)
{
    char temp[PATH_MAX + 16], copy[64];
    snprintf(temp, sizeof(temp), "%s.cube-new", path);
    if (write_new(temp, b) == 0 && rename(temp, path) == 0)
        return 0;
    int sys = errno;
    unlink(temp);
    if (sys == EBUSY)
        return write_new(path, b);
    errno = sys;
    if (sys != EROFS)
        return -1;
    snprintf(copy, sizeof(copy), "/run/e2b/.trust-%zu", index);
    bool bound = access(copy, F_OK) == 0;
    if (write_new(copy, b) < 0)
        return -1;
    return bound ? 0 : mount(copy, path, NULL, MS_BIND, NULL);
}

static int store_update(size_t index, const char *pem)
{
    _cleanup_buf_ struct buf b = {0};
    _cleanup_free_ char *real = realpath(stores[index].path, NULL);
    const char *path = real ? real : stores[index].path;
    if (store_read(path, &b) < 0 && (errno != ENOENT || !stores[index].create))
        return errno == ENOENT || errno == ENOTDIR ? 0 : -1;
    size_t before = b.len;
    section_remove(&b);
    if (!*pem && before == b.len)
        return 0; /* nothing of ours in it */
    if (!*pem && !b.len && stores[index].create && unlink(path) == 0)
        return 0; /* nothing but ours */
    if (*pem) {
        if (b.len && b.data[b.len - 1] != '\n')
            buf_putc(&b, '\n');
        buf_puts(&b, BEGIN);
        buf_puts(&b, pem);
        buf_puts(&b, pem[strlen(pem) - 1] == '\n' ? END : "\n" END);
    }
    errno = ENOMEM;
    int rc = b.failed ? -1 : publish(path, index, &b);
    return rc < 0 && errno == ENOENT && stores[index].create ? 0
                                                             : rc; /* no such directory: no such program */
}

static int local_update(const char *dir, const char *pem)
{
    char path[128];
    struct buf b = {.data = (char *)pem, .len = strlen(pem)};
    snprintf(path, sizeof(path), "%s/cube-platform.crt", dir);
    int rc = *pem ? write_new(path, &b) : unlink(path);
    return rc < 0 && errno != ENOENT && errno != ENOTDIR && errno != EROFS ? -1 : 0;
}

int trust_install(const char *pem, struct err *e)
{
    for (size_t i = 0; i < sizeof(stores) / sizeof(*stores); i++)
        if (store_update(i, pem) < 0)
            return err_sys(e, ERR_INTERNAL, "caBundle: writing the trust store %s", stores[i].path);
    for (size_t i = 0; i < sizeof(locals) / sizeof(*locals); i++)
        if (local_update(locals[i], pem) < 0)
            return err_sys(e, ERR_INTERNAL, "caBundle: writing into %s", locals[i]);
    return 0;
}
