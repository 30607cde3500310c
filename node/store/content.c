/* Owns reading and copying of artifact bytes. Invariant: a hash is remembered only for the exact file that
 * was read (device, inode, size, modification time), and only after it was read to its end. */
#include "node/store/content.h"

#include "lib/base/buf.h"
#include "lib/base/cleanup.h"
#include "lib/base/ids.h"
#include "node/store/store.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#define CHUNK (1 << 20)
#define BLOCK (64 << 10) /* unit of the hash: docs/storage-format.md */
#define CACHE_FILE "import.cache"
#define CACHE_MAX (256u << 10)
#define KNOWN_SLOTS 1024

struct identity {
    uint64_t dev, ino;
    int64_t size, mtime_ns;
};
static struct known {
    struct identity id;
    char hash[65];
} known[KNOWN_SLOTS]; /* a direct-mapped cache: a collision only costs one more reading */
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;

static int identify(int fd, struct identity *id, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(e, ERR_INTERNAL, "looking at a file to hash");
    *id = (struct identity){.dev = st.st_dev,
                            .ino = st.st_ino,
                            .size = st.st_size,
                            .mtime_ns = st.st_mtim.tv_sec * 1000000000ll + st.st_mtim.tv_nsec};
    return 0;
}

static bool identity_equal(const struct identity *a, const struct identity *b)
{
    return a->dev == b->dev && a->ino == b->ino && a->size == b->size && a->mtime_ns == b->mtime_ns;
}

static void cleanup_digest(EVP_MD_CTX **c)
{
    EVP_MD_CTX_free(*c);
}

static bool is_zero(const char *p, size_t n)
{
    static const char zeros[BLOCK];
    return memcmp(p, zeros, n) == 0;
}

/* One data extent, widened to whole blocks. */
static int hash_range(EVP_MD_CTX *c, int fd, off_t at, off_t end, char *chunk, struct err *e)
{
    while (at < end) {
        size_t want =
            end - at < CHUNK ? (size_t)(end - at) : CHUNK; /* not beyond: each block is hashed once */
        ssize_t n = pread(fd, chunk, want, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(e, ERR_INTERNAL, "reading a file to hash it");
        if (n == 0)
            return 0;
        if (n % BLOCK)
            memset(chunk + n, 0, (size_t)(BLOCK - n % BLOCK)); /* the last block is padded with zeros */
        for (ssize_t i = 0; i < n; i += BLOCK) {
            if (is_zero(chunk + i, BLOCK))
                continue;
            uint64_t index = htobe64((uint64_t)(at + i) / BLOCK);
            EVP_DigestUpdate(c, &index, sizeof index);
            EVP_DigestUpdate(c, chunk + i, BLOCK);
        }
        at += n - n % BLOCK + (n % BLOCK ? BLOCK : 0);
    }
    return 0;
}

static int hash_data(EVP_MD_CTX *c, int fd, off_t size, char *chunk, struct err *e)
{
    for (off_t at = 0; at < size;) {
        off_t data = lseek(fd, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            return 0; /* only a hole is left */
        if (data < 0)
            return err_sys(e, ERR_INTERNAL, "looking for data to hash");
        off_t hole = lseek(fd, data, SEEK_HOLE);
        off_t from = data - data % BLOCK, to = hole < 0 ? size : hole + (BLOCK - hole % BLOCK) % BLOCK;
        if (from < at)
            from = at;
        if (hash_range(c, fd, from, to, chunk, e) < 0)
            return -1;
        at = to;
    }
    return 0;
}

int content_hash(int fd, char out[65], struct err *e)
{
    EVP_MD_CTX *c __attribute__((cleanup(cleanup_digest))) = EVP_MD_CTX_new();
    _cleanup_free_ char *chunk = malloc(CHUNK + BLOCK);
    struct stat st;
    if (!c || !chunk || !EVP_DigestInit_ex(c, EVP_sha256(), NULL))
        return err_set(e, ERR_INTERNAL, "out of memory for a hash");
    if (fstat(fd, &st) < 0)
        return err_sys(e, ERR_INTERNAL, "looking at a file to hash");
    if (hash_data(c, fd, st.st_size, chunk, e) < 0)
        return -1;
    uint64_t size = htobe64((uint64_t)st.st_size);
    EVP_DigestUpdate(c, &size, sizeof size);
    unsigned char digest[32];
    EVP_DigestFinal_ex(c, digest, NULL);
    hex_encode(digest, 32, out);
    return 0;
}

int content_hash_cached(int dir, int fd, char out[65], struct err *e)
{
    struct identity id;
    if (identify(fd, &id, e) < 0)
        return -1;
    char key[128];
    int key_len = snprintf(key, sizeof key, "%llu %llu %lld %lld ", (unsigned long long)id.dev,
                           (unsigned long long)id.ino, (long long)id.size, (long long)id.mtime_ns);
    _cleanup_free_ char *text = NULL;
    size_t n = 0;
    if (file_read(dir, CACHE_FILE, CACHE_MAX, &text, &n, NULL) == 0)
        for (char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
            if (strncmp(line, key, (size_t)key_len) == 0 &&
                strspn(line + key_len, "0123456789abcdef") == 64) {
                memcpy(out, line + key_len, 64);
                out[64] = 0;
                return 0;
            }
    if (content_hash(fd, out, e) < 0)
        return -1;
    _cleanup_buf_ struct buf b = {0};
    buf_printf(&b, "%s%s\n", key, out);
    if (text && n < CACHE_MAX / 2) /* newest first; an old long file is forgotten */
        buf_append(&b, text, n);
    file_replace(dir, CACHE_FILE, b.data, b.len, false, NULL); /* only a cache */
    return 0;
}

static struct known *known_slot(const struct identity *id)
{
    uint64_t h = (id->ino * 0x9e3779b97f4a7c15ull) ^ id->dev;
    return &known[(h >> 32) % KNOWN_SLOTS];
}

static bool is_known(const struct identity *id, const char *hash)
{
    pthread_mutex_lock(&known_lock);
    struct known *k = known_slot(id);
    bool hit = identity_equal(&k->id, id) && strcmp(k->hash, hash) == 0;
    pthread_mutex_unlock(&known_lock);
    return hit;
}

bool content_known(int fd, const char hash[65])
{
    struct identity id;
    return identify(fd, &id, NULL) == 0 && is_known(&id, hash);
}

void content_trust(int fd, const char hash[65])
{
    struct identity id;
    if (identify(fd, &id, NULL) < 0)
        return;
    pthread_mutex_lock(&known_lock);
    struct known *k = known_slot(&id);
    k->id = id;
    memcpy(k->hash, hash, 65);
    pthread_mutex_unlock(&known_lock);
}

int content_verify(int fd, const char *what, int64_t size, const char hash[65], struct err *e)
{
    struct identity id;
    if (identify(fd, &id, e) < 0)
        return -1;
    if (id.size != size)
        return err_set(e, ERR_INTERNAL, "%s is damaged: %lld bytes, the manifest says %lld", what,
                       (long long)id.size, (long long)size);
    if (is_known(&id, hash))
        return 0;
    char found[65];
    if (content_hash(fd, found, e) < 0)
        return -1;
    if (strcmp(found, hash) != 0)
        return err_set(e, ERR_INTERNAL, "%s is damaged: its hash is %.12s…, the manifest says %.12s…", what,
                       found, hash);
    content_trust(fd, hash);
    return 0;
}

/* For file systems that copy_file_range does not join. */
static ssize_t copy_small(int from, int to, off_t at, size_t want)
{
    char small[65536];
    ssize_t n = pread(from, small, want < sizeof small ? want : sizeof small, at);
    for (ssize_t done = 0; n > 0 && done < n;) {
        ssize_t w = pwrite(to, small + done, (size_t)(n - done), at + done);
        if (w < 0)
            return -1;
        done += w;
    }
    return n;
}

static int copy_range(int from, int to, off_t at, off_t end, struct err *e)
{
    while (at < end) {
        off_t in = at, out = at;
        ssize_t n = copy_file_range(from, &in, to, &out, (size_t)(end - at), 0);
        if (n < 0 && (errno == EXDEV || errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS))
            n = copy_small(from, to, at, (size_t)(end - at));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(e, ERR_INTERNAL, "copying a file");
        if (n == 0)
            return err_set(e, ERR_INTERNAL, "copying a file: it became shorter meanwhile");
        at += n;
    }
    return 0;
}

int content_clone(int from, int to, struct err *e)
{
    if (ioctl(to, FICLONE, from) == 0)
        return 0;
    struct stat st;
    if (fstat(from, &st) < 0)
        return err_sys(e, ERR_INTERNAL, "looking at a file to copy");
    if (ftruncate(to, st.st_size) < 0)
        return err_sys(e, ERR_INTERNAL, "sizing a copy");
    for (off_t at = 0; at < st.st_size;) {
        off_t data = lseek(from, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            return 0; /* only a hole is left */
        if (data < 0)
            return err_sys(e, ERR_INTERNAL, "looking for data to copy");
        off_t hole = lseek(from, data, SEEK_HOLE);
        if (hole < 0)
            hole = st.st_size;
        if (copy_range(from, to, data, hole, e) < 0)
            return -1;
        at = hole;
    }
    return 0;
}
