/* Memory files: round trip, merge against a model, damage; page scan; the token bucket; the serial port. */
#include "node/vmm/bucket.h"
#include "node/vmm/memfile.h"
#include "node/vmm/pagescan.h"
#include "node/vmm/serial.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define PAGES 200u
#define BYTES (PAGES * 4096ull)

static int file(void)
{
    int fd = memfd_create("f", MFD_CLOEXEC);

    assert_true(fd >= 0);
    return fd;
}

/* A delta with random pages whose bytes are `mark`; the model learns them. */
static int delta_make(uint8_t mark, uint8_t *model)
{
    struct mem_extents x = {0};
    struct err e = {0};
    int fd = file();

    for (unsigned p = 0; p < PAGES; p++)
        if (rand() % 3 == 0) {
            assert_int_equal(mem_extents_add(&x, p * 4096ull, 4096), 0);
            model[p] = mark;
        }
    int64_t off = memfile_write_table(fd, false, BYTES, &x, &e);
    assert_true(off > 0 && off % 4096 == 0);
    for (uint64_t i = 0; i < x.n; i++)
        for (uint64_t k = 0; k < x.v[i].length; k += 4096, off += 4096) {
            uint8_t page[4096];
            memset(page, mark, sizeof page);
            assert_int_equal(pwrite(fd, page, 4096, off), 4096);
        }
    mem_extents_free(&x);
    return fd;
}

static void delta_read(int fd, uint8_t *got)
{
    struct mem_extents x;
    struct err e = {0};
    uint64_t off;

    assert_int_equal(memfile_read_table(fd, false, BYTES, &x, &off, &e), 0);
    for (uint64_t i = 0; i < x.n; i++)
        for (uint64_t k = 0; k < x.v[i].length; k += 4096, off += 4096) {
            uint8_t page[4096];
            assert_int_equal(pread(fd, page, 4096, (off_t)off), 4096);
            got[(x.v[i].offset + k) / 4096] = page[17];
        }
    mem_extents_free(&x);
}

static void test_merge(void **state)
{
    struct err e = {0};

    srand(5);
    for (int round = 0; round < 50; round++) {
        uint8_t model[PAGES] = {0}, got[PAGES] = {0};
        int fds[4], n = 1 + round % 4, out = file();

        for (int i = 0; i < n; i++)
            fds[i] = delta_make((uint8_t)(i + 1), model);
        assert_int_equal(memfile_merge(fds, (unsigned)n, BYTES, out, &e), 0);
        delta_read(out, got);
        assert_memory_equal(got, model, PAGES);
        for (int i = 0; i < n; i++)
            close(fds[i]);
        close(out);
    }
}

static void test_damage(void **state)
{
    uint8_t model[PAGES] = {0};
    struct mem_extents x;
    struct err e = {0};
    uint64_t off;
    int fd = delta_make(1, model);

    for (off_t at = 0; at < 300; at += 7) { /* header and table */
        uint8_t b;
        assert_int_equal(pread(fd, &b, 1, at), 1);
        b ^= 0x40;
        assert_int_equal(pwrite(fd, &b, 1, at), 1);
        assert_int_equal(memfile_read_table(fd, false, BYTES, &x, &off, &e), -1);
        b ^= 0x40;
        assert_int_equal(pwrite(fd, &b, 1, at), 1);
    }
    assert_int_equal(memfile_read_table(fd, true, BYTES, &x, &off, &e), -1);
    assert_int_equal(memfile_read_table(fd, false, BYTES * 2, &x, &off, &e), -1);
    assert_int_equal(ftruncate(fd, lseek(fd, 0, SEEK_END) - 4096), 0);
    assert_int_equal(memfile_read_table(fd, false, BYTES, &x, &off, &e), -1);
    close(fd);
}

/* Of a private mapping of a file: read pages are touched, written ones are own. */
static void test_scan(void **state)
{
    struct mem_extents own = {0}, touched = {0};
    struct err e = {0};
    int fd = file(), map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    volatile uint8_t *p;

    assert_int_equal(ftruncate(fd, BYTES), 0);
    p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    p[10 * 4096] = 1;
    p[11 * 4096] = 1;
    p[50 * 4096] = 1;
    (void)p[150 * 4096];
    assert_int_equal(pagescan(map, (const void *)p, BYTES, PAGESCAN_OWN, &own, &e), 0);
    assert_int_equal(own.n, 2);
    assert_int_equal(own.v[0].offset, 10 * 4096);
    assert_int_equal(own.v[0].length, 2 * 4096);
    assert_int_equal(own.v[1].offset, 50 * 4096);
    assert_int_equal(pagescan(map, (const void *)p, BYTES, PAGESCAN_TOUCHED, &touched, &e), 0);
    bool saw_read = false;
    for (uint64_t i = 0; i < touched.n; i++) {
        uint64_t first = touched.v[i].offset / 4096, end = first + touched.v[i].length / 4096;
        if (first <= 150 && end > 150)
            saw_read = !(touched.v[i].length & 1);
        if (first == 10)
            assert_true(touched.v[i].length & 1);
    }
    assert_true(saw_read);
    mem_extents_free(&own);
    mem_extents_free(&touched);
    assert_int_equal(pagescan(-1, (const void *)p, BYTES, PAGESCAN_OWN, &own, &e), -1);
    close(fd);
    close(map);
}

static void test_bucket(void **state)
{
    struct bucket b;
    uint64_t passed = 0;

    bucket_init(&b, 1000000, 1000, 0);
    for (int64_t us = 0; us < 2000000; us += 100)
        while (bucket_open(&b, us) && passed < 100000000) {
            bucket_take(&b, 3000);
            passed += 3000;
        }
    assert_in_range(passed, 2000000, 2100000 + 3000);
    assert_true(bucket_wait_us(&b) >= 0 && bucket_wait_us(&b) < 10000);
    bucket_init(&b, 0, 0, 0);
    assert_true(bucket_open(&b, 0));
}

static void test_serial(void **state)
{
    struct serial s = {.log_fd = file()};
    static char got[2 << 20];

    for (const char *p = "hello\n"; *p; p++)
        assert_false(serial_write(&s, SERIAL_PORT, (uint8_t)*p));
    assert_int_equal(pread(s.log_fd, got, sizeof got, 0), 6);
    assert_true(serial_write(&s, SERIAL_PORT + 1, 2)); /* "tell me when you are empty" */
    assert_int_equal(serial_read(&s, SERIAL_PORT + 2), 2);
    assert_int_equal(serial_read(&s, SERIAL_PORT + 2),
                     2); /* told until it is no longer asked for (serial.c) */
    assert_false(serial_write(&s, SERIAL_PORT + 1, 0));
    assert_int_equal(serial_read(&s, SERIAL_PORT + 2), 1);
    assert_int_equal(serial_read(&s, SERIAL_PORT + 5), 0x60);
    for (unsigned i = 0; i < 3u << 20; i++) /* a guest that writes for ever */
        serial_write(&s, SERIAL_PORT, 'x');
    assert_in_range(lseek(s.log_fd, 0, SEEK_END), SERIAL_LOG_MAX - 512, SERIAL_LOG_MAX);
    assert_true(s.dropped > 1 << 20);
    close(s.log_fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_merge), cmocka_unit_test(test_damage),
                                       cmocka_unit_test(test_scan), cmocka_unit_test(test_bucket),
                                       cmocka_unit_test(test_serial)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
