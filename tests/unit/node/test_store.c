/* The store: artifacts are whole or absent, damage is noticed, and the manifest's format is what the stored
 * fixture says. */
#include "check.h"

#include "lib/base/buf.h"
#include "node/store/content.h"
#include "node/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define FORMAT_1 FIXTURES "/manifest-1.json"
#define FORMAT_2 FIXTURES "/manifest-2.json"

static char dir[64];
static struct store store;

static int setup(void **state)
{
    struct err e = {0};
    snprintf(dir, sizeof dir, "/tmp/N-store-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    return store_open(dir, &store, &e);
}

static int teardown(void **state)
{
    store_close(&store);
    return tree_remove(AT_FDCWD, dir, NULL);
}

static unsigned entries(const char *where)
{
    char **names;
    size_t n;
    assert_int_equal(store_list(&store, where, &names, &n, NULL), 0);
    store_names_free(names, n);
    return (unsigned)n;
}

static void put(int fd, const char *text)
{
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static struct manifest small(const char *id)
{
    struct manifest m = {.kind = MANIFEST_SNAPSHOT, .guest_protocol = GUEST_PROTOCOL};
    snprintf(m.id, sizeof m.id, "%s", id);
    return m;
}

static int publish(const char *artifact, const char *text, struct err *e)
{
    struct draft d;
    if (draft_open(&store, &d, e) < 0)
        return -1;
    int fd = draft_create(&d, "state", e);
    if (fd < 0)
        return -1;
    put(fd, text);
    close(fd);
    struct manifest m = small("s1");
    assert_int_equal(manifest_add(&m, "state", 0, NULL, e), 0);
    int rc = draft_publish(&d, &m, artifact, e);
    draft_drop(&d);
    return rc;
}

static void published_artifacts_are_complete(void **state)
{
    struct err e = {0};
    assert_int_equal(store_presence(&store, "snap/s1"), MISSING);
    assert_int_equal(publish("snap/s1", "hello", &e), 0);
    assert_int_equal(store_presence(&store, "snap/s1"), PRESENT);
    assert_int_equal(entries("tmp"), 0);
    int fd = store_open_file(&store, "snap/s1", "manifest.json", &e);
    assert_true(fd >= 0);
    char text[4096];
    ssize_t n = read(fd, text, sizeof text);
    close(fd);
    struct manifest m;
    assert_int_equal(manifest_parse(text, (size_t)n, "snap/s1", &m, &e), 0);
    assert_int_equal(m.files[0].size, 5);
    fd = store_open_file(&store, "snap/s1", "state", &e);
    assert_int_equal(content_verify(fd, "state", m.files[0].size, m.files[0].hash, &e), 0);
    close(fd);
    assert_int_equal(store_open_file(&store, "snap/none", "state", &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
}

static void publishing_again_changes_nothing(void **state)
{
    struct err e = {0};
    assert_int_equal(publish("snap/s2", "first", &e), 0);
    assert_int_equal(publish("snap/s2", "second", &e), 0);
    int fd = store_open_file(&store, "snap/s2", "state", &e);
    char text[16] = "";
    assert_int_equal(read(fd, text, sizeof text - 1), 5);
    assert_string_equal(text, "first");
    close(fd);
    assert_int_equal(entries("tmp"), 0);
}

static void unpublished_drafts_vanish(void **state)
{
    struct err e = {0};
    struct draft d;
    assert_int_equal(draft_open(&store, &d, &e), 0);
    close(draft_create(&d, "state", &e));
    assert_int_equal(store_sweep(&store), 0); /* ours is locked */
    assert_int_equal(entries("tmp"), 1);
    close(d.fd); /* as when the process died */
    d.fd = -1;
    assert_int_equal(store_sweep(&store), 1);
    assert_int_equal(entries("tmp"), 0);
}

static void removal_is_idempotent(void **state)
{
    struct err e = {0};
    assert_int_equal(publish("snap/s3", "x", &e), 0);
    assert_int_equal(store_remove(&store, "snap/s3", &e), 0);
    assert_int_equal(store_presence(&store, "snap/s3"), MISSING);
    assert_int_equal(store_remove(&store, "snap/s3", &e), 0);
    assert_int_equal(entries("tmp"), 0);
}

static int file_with(const char *name, off_t size)
{
    int fd = openat(store.fd, name, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, size), 0);
    return fd;
}

/* The hash of docs/storage-format.md, of known content: "abc" = block 0 padded with zeros, then size 3. */
static void the_hash_is_what_the_format_says(void **state)
{
    struct err e = {0};
    char hash[65], other[65];
    int fd = file_with("h", 0);
    assert_int_equal(content_hash(fd, hash, &e), 0);
    /* SHA-256 of eight zero bytes (the size) */
    assert_string_equal(hash, "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc");
    put(fd, "abc");
    assert_int_equal(content_hash(fd, hash, &e), 0);
    assert_string_equal(hash, "091948eb6aeda1782827539580c765d99c2b4897e0874152a6f59ebba1c0bab4");
    close(fd);
    /* A hole and written zeros are the same content. */
    int a = file_with("a", 1 << 20), b = file_with("b", 1 << 20);
    static char zeros[1 << 20];
    assert_int_equal(pwrite(b, zeros, sizeof zeros, 0), (ssize_t)sizeof zeros);
    assert_int_equal(pwrite(a, "x", 1, 300000), 1);
    assert_int_equal(pwrite(b, "x", 1, 300000), 1);
    assert_int_equal(content_hash(a, hash, &e), 0);
    assert_int_equal(content_hash(b, other, &e), 0);
    assert_string_equal(hash, other);
    assert_int_equal(pwrite(a, "y", 1, 300000), 1);
    assert_int_equal(content_hash(a, hash, &e), 0);
    assert_string_not_equal(hash, other);
    close(a);
    close(b);
}

static void damage_is_noticed(void **state)
{
    struct err e = {0};
    char hash[65];
    int fd = file_with("d", 200000);
    assert_int_equal(pwrite(fd, "data", 4, 100000), 4);
    assert_int_equal(content_hash(fd, hash, &e), 0);
    assert_int_equal(content_verify(fd, "d", 200000, hash, &e), 0);
    assert_int_equal(content_verify(fd, "d", 200000, hash, &e), 0); /* remembered */
    struct timespec later[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 2000000000}};
    assert_int_equal(pwrite(fd, "Data", 4, 100000), 4); /* one bit */
    futimens(fd, later);
    assert_int_equal(content_verify(fd, "d", 200000, hash, &e), -1);
    assert_non_null(strstr(e.msg, "damaged"));
    assert_int_equal(ftruncate(fd, 199999), 0);
    assert_int_equal(content_verify(fd, "d", 200000, hash, &e), -1);
    assert_non_null(strstr(e.msg, "199999 bytes"));
    close(fd);
}

static void clones_stay_sparse(void **state)
{
    struct err e = {0};
    char from[65], to[65];
    int a = file_with("from", 64 << 20), b = file_with("to", 0);
    assert_int_equal(pwrite(a, "one", 3, 5 << 20), 3);
    assert_int_equal(pwrite(a, "two", 3, 40 << 20), 3);
    assert_int_equal(content_clone(a, b, &e), 0);
    assert_int_equal(content_hash(a, from, &e), 0);
    assert_int_equal(content_hash(b, to, &e), 0);
    assert_string_equal(from, to);
    struct stat st;
    assert_int_equal(fstat(b, &st), 0);
    assert_int_equal(st.st_size, 64 << 20);
    assert_true(st.st_blocks * 512 < 1 << 20);
    close(a);
    close(b);
}

static void stored(const char *path, char **text, size_t *n)
{
    struct err e = {0};
    assert_int_equal(file_read(AT_FDCWD, path, MANIFEST_MAX_BYTES, text, n, &e), 0);
}

static void both_formats_are_readable(void **state)
{
    struct err e = {0};
    size_t n, n2;
    char *text, *text2;
    struct manifest m, m2;
    stored(FORMAT_1, &text, &n);
    stored(FORMAT_2, &text2, &n2);
    assert_int_equal(manifest_parse(text, n, "fixture", &m, &e), 0);
    assert_int_equal(m.kind, MANIFEST_SNAPSHOT);
    assert_string_equal(m.sandbox, "i0abcdefghijklmnopqrs");
    assert_int_equal(m.file_count, 5);
    assert_int_equal(manifest_find(&m, "delta-0")->size, 1052672);
    assert_int_equal(manifest_parse(text2, n2, "fixture", &m2, &e), 0);
    struct buf out = {0};
    manifest_write(&m, &out); /* what was read from format 1 is written as format 2, byte by byte */
    assert_int_equal(out.len, n2);
    assert_memory_equal(out.data, text2, n2);
    out.len = 0;
    manifest_write(&m2, &out);
    assert_int_equal(out.len, n2);
    assert_memory_equal(out.data, text2, n2);
    buf_free(&out);
    free(text);
    free(text2);
}

/* A manifest with any bit flipped or cut off anywhere is refused, and so is one without a byte. */
static void every_damage_is_noticed(void **state)
{
    struct err e = {0};
    size_t n;
    char *text;
    struct manifest m;
    stored(FORMAT_2, &text, &n);
    for (size_t i = 0; i < n; i++) {
        for (int bit = 0; bit < 8; bit++) {
            text[i] ^= (char)(1 << bit);
            if (manifest_parse(text, n, "damaged", &m, &e) == 0)
                fail_msg("bit %d of byte %zu is flipped, and it was accepted", bit, i);
            text[i] ^= (char)(1 << bit);
        }
        if (manifest_parse(text, i, "cut", &m, &e) == 0)
            fail_msg("cut to %zu bytes it was accepted", i);
    }
    assert_int_equal(manifest_parse(text, n, "whole", &m, &e), 0);
    free(text);
}

/* In format 1, which has no sum: so that what is wrong with a member is found, and not that the sum differs.
 */
static void expect_refused(const char *from, const char *to, enum err_code code)
{
    struct err e = {0};
    size_t n;
    char *text, changed[8192];
    stored(FORMAT_1, &text, &n);
    assert_non_null(strstr(text, from));
    size_t at = (size_t)(strstr(text, from) - text);
    int len = snprintf(changed, sizeof changed, "%.*s%s%s", (int)at, text, to, text + at + strlen(from));
    struct manifest m;
    if (manifest_parse(changed, (size_t)len, "changed", &m, &e) == 0)
        fail_msg("%s for %s was accepted", to, from);
    assert_int_equal(e.code, code);
    free(text);
}

static void bad_manifests_are_refused(void **state)
{
    expect_refused("\"format\":1", "\"format\":3", ERR_UNSUPPORTED);
    expect_refused("\"format\":1", "\"format\":0", ERR_UNSUPPORTED);
    expect_refused("\"format\":1", "\"format\":2", ERR_INTERNAL); /* without a sum */
    expect_refused("\"format\":1,", "", ERR_INTERNAL);
    expect_refused("\"name\":\"state\"", "\"name\":\"../state\"", ERR_INTERNAL);
    expect_refused("\"name\":\"state\"", "\"name\":\"memory\"", ERR_INTERNAL);
    expect_refused("\"size\":9000", "\"size\":-1", ERR_INTERNAL);
    expect_refused("\"size\":9000", "\"size\":\"9000\"", ERR_INTERNAL);
    expect_refused("1111111111", "111111111", ERR_INTERNAL);
    expect_refused("\"kind\":\"snapshot\"", "\"kind\":\"picture\"", ERR_INTERNAL);
    expect_refused("\"vcpus\":1", "\"vcpus\":-1", ERR_INTERNAL);
    expect_refused("\"id\":\"k3v9", "\"id\":\"k/3v9", ERR_INTERNAL);
    expect_refused("}]}", "}]", ERR_INTERNAL);
    expect_refused("\"format\":1", "\"format\":1,\"format\":1", ERR_INTERNAL);
}

static void another_class_is_refused_with_the_reason(void **state)
{
    struct err e = {0};
    size_t n;
    char *text;
    struct manifest m;
    stored(FORMAT_1, &text, &n);
    assert_int_equal(manifest_parse(text, n, "fixture", &m, &e), 0);
    free(text);
    struct node_class host = m.class;
    assert_int_equal(manifest_check_class(&m, &host, &e), 0);
    snprintf(host.kvm_kind, sizeof host.kvm_kind, "hardware");
    assert_int_equal(manifest_check_class(&m, &host, &e), -1);
    assert_int_equal(e.code, ERR_NO_COMPATIBLE_NODE);
    assert_non_null(strstr(e.msg, "pvm"));
    host = m.class;
    host.cpu_features[0] = 'f';
    assert_int_equal(manifest_check_class(&m, &host, &e), -1);
    host = m.class;
    host.device_layout++;
    assert_int_equal(manifest_check_class(&m, &host, &e), -1);
    m.guest_protocol = GUEST_PROTOCOL + 1;
    assert_int_equal(manifest_check_class(&m, &m.class, &e), -1);
    m.guest_protocol = GUEST_PROTOCOL;
    m.has_memory = false; /* a disk boots anywhere */
    assert_int_equal(manifest_check_class(&m, &host, &e), 0);
}

static void a_full_disk_leaves_nothing(void **state)
{
    struct err e = {0};
    char small_dir[80];
    snprintf(small_dir, sizeof small_dir, "%s/full", dir);
    if (mkdir(small_dir, 0700) < 0 || mount("none", small_dir, "tmpfs", 0, "size=256k") < 0)
        skip(); /* needs root */
    struct store full;
    assert_int_equal(store_open(small_dir, &full, &e), 0);
    struct draft d;
    assert_int_equal(draft_open(&full, &d, &e), 0);
    int from = file_with("big", 1 << 20), fd = draft_create(&d, "memory", &e);
    static char noise[1 << 20];
    memset(noise, 'n', sizeof noise);
    assert_int_equal(pwrite(from, noise, sizeof noise, 0), (ssize_t)sizeof noise);
    assert_int_equal(content_clone(from, fd, &e), -1);
    assert_int_equal(e.code, ERR_STORAGE_FULL);
    close(fd);
    close(from);
    draft_drop(&d);
    char **names;
    size_t n;
    assert_int_equal(store_list(&full, "tmp", &names, &n, &e), 0);
    assert_int_equal(n, 0);
    store_names_free(names, n);
    store_close(&full);
    assert_int_equal(umount(small_dir), 0);
}

static void files_are_replaced_in_one_step(void **state)
{
    struct err e = {0};
    char *text;
    size_t n;
    assert_int_equal(file_replace(store.fd, "r", "old", 3, false, &e), 0);
    assert_int_equal(file_replace(store.fd, "r", "newer", 5, true, &e), 0);
    assert_int_equal(file_read(store.fd, "r", 10, &text, &n, &e), 0);
    assert_string_equal(text, "newer");
    free(text);
    assert_int_equal(file_read(store.fd, "r", 4, &text, &n, &e), -1); /* larger than allowed */
    assert_int_equal(file_read(store.fd, "none", 4, &text, &n, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
}

/* The dense huge page of an image is in the page cache afterwards; the bytes are what they were. */
static void dense_parts_of_an_image_are_read_ahead(void **state)
{
    (void)state;
    char path[] = "warm-XXXXXX", one = 'x';
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    static char block[2 << 20];
    memset(block, 7, sizeof block);
    assert_int_equal(ftruncate(fd, 8 << 20), 0);
    assert_int_equal(pwrite(fd, block, sizeof block, 2 << 20), (ssize_t)sizeof block);
    assert_int_equal(pwrite(fd, &one, 1, 6 << 20), 1);
    assert_int_equal(fsync(fd), 0);
    content_warm(fd, true);
    unsigned char resident[2048];
    void *p = mmap(NULL, 8 << 20, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(p != MAP_FAILED);
    assert_int_equal(mincore(p, 8 << 20, resident), 0);
    for (unsigned i = 512; i < 1024; i++)
        assert_true(resident[i] & 1);
    assert_memory_equal((char *)p + (2 << 20), block, sizeof block);
    munmap(p, 8 << 20);
    assert_int_equal(ftruncate(fd, 100), 0);
    content_warm(fd, true); /* smaller than one: nothing to do */
    content_warm(-1, true);
    close(fd);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_artifacts_are_complete),
        cmocka_unit_test(publishing_again_changes_nothing),
        cmocka_unit_test(unpublished_drafts_vanish),
        cmocka_unit_test(removal_is_idempotent),
        cmocka_unit_test(the_hash_is_what_the_format_says),
        cmocka_unit_test(damage_is_noticed),
        cmocka_unit_test(clones_stay_sparse),
        cmocka_unit_test(both_formats_are_readable),
        cmocka_unit_test(every_damage_is_noticed),
        cmocka_unit_test(bad_manifests_are_refused),
        cmocka_unit_test(another_class_is_refused_with_the_reason),
        cmocka_unit_test(a_full_disk_leaves_nothing),
        cmocka_unit_test(files_are_replaced_in_one_step),
        cmocka_unit_test(dense_parts_of_an_image_are_read_ahead),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
