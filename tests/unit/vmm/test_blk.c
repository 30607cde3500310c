/* The disk: random requests against a model, refusals, flush, discard, rate limit; the layer file across
 * processes. */
#include "lib/base/clock.h"
#include "node/vmm/blk.h"
#include "tests/unit/vmm/driver.h"

#include <linux/virtio_mmio.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define DISK (3u * LAYER_CHUNK + 5 * 512) /* the last chunk is a short one */
#define BASE (2u * LAYER_CHUNK + 1024)    /* and the base ends inside a chunk */

struct fixture {
    struct driver d;
    struct worker w;
    struct blk b;
    int base, layer;
    uint8_t model[DISK];
};

static struct fixture f;

static int memfile(const char *name, size_t size)
{
    int fd = memfd_create(name, MFD_CLOEXEC);

    assert_true(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    return fd;
}

static void attach(uint64_t bytes_per_s, uint64_t ops_per_s)
{
    struct layer l;
    struct err e = {0};

    assert_int_equal(blk_init(&f.b, &f.d.mem, &f.w, &e), 0);
    assert_int_equal(layer_open(&l, dup(f.base), dup(f.layer), DISK, "base-1", &e), 0);
    blk_attach(&f.b, &l, "root", bytes_per_s, ops_per_s);
    driver_start(&f.d, &f.b.dev, 0, 16);
}

static int setup(void **state)
{
    struct err e = {0};

    driver_ram(&f.d);
    assert_int_equal(worker_init(&f.w, &e), 0);
    f.base = memfile("base", BASE);
    f.layer = memfile("layer", 0);
    memset(f.model, 0, sizeof f.model);
    for (unsigned i = 0; i < BASE; i++)
        f.model[i] = (uint8_t)(i * 7 + i / 512);
    assert_int_equal(pwrite(f.base, f.model, BASE, 0), BASE);
    attach(0, 0);
    return 0;
}

static int teardown(void **state)
{
    blk_free(&f.b);
    close(f.base);
    close(f.layer);
    driver_ram_free(&f.d);
    return 0;
}

/* One request with its data in `parts` pieces; returns the status byte. */
static uint8_t request(uint32_t type, uint64_t sector, void *data, uint32_t len, unsigned parts)
{
    uint64_t head_at, buf_at, status_at;
    struct virtio_blk_outhdr h = {.type = type, .sector = sector};
    bool in = type == VIRTIO_BLK_T_IN || type == VIRTIO_BLK_T_GET_ID;
    struct part p[12];
    unsigned n = 0;
    uint16_t head;
    uint32_t used;

    head_at = 0x2000000; /* far above the queues */
    status_at = 0x2001000;
    buf_at = 0x2002000;
    memcpy(driver_at(&f.d, head_at), &h, sizeof h);
    if (!in && len)
        memcpy(driver_at(&f.d, buf_at), data, len);
    p[n++] = (struct part){head_at, sizeof h, false};
    for (uint32_t done = 0; done < len;) {
        uint32_t step = parts > 1 && len - done > 512 ? (len - done) / 2 / 512 * 512 : len - done;
        p[n++] = (struct part){buf_at + done, step, in};
        done += step;
        parts = parts > 1 ? parts - 1 : 1;
    }
    p[n++] = (struct part){status_at, 1, true};
    *(uint8_t *)driver_at(&f.d, status_at) = 0xee;
    driver_add(&f.d, 0, p, n);
    driver_kick(&f.d, 0);
    if (!driver_used(&f.d, 0, &head, &used))
        return 0xfe;
    if (in && len)
        memcpy(data, driver_at(&f.d, buf_at), len);
    return *(uint8_t *)driver_at(&f.d, status_at);
}

static void check_all(void)
{
    static uint8_t got[DISK];

    assert_int_equal(request(VIRTIO_BLK_T_IN, 0, got, DISK, 4), VIRTIO_BLK_S_OK);
    assert_memory_equal(got, f.model, DISK);
}

static void test_model(void **state)
{
    static uint8_t data[DISK], got[DISK];

    srand(3);
    check_all();
    for (int i = 0; i < 2000; i++) {
        uint32_t sectors = 1 + (uint32_t)rand() % (rand() % 4 ? 8 : DISK / 512);
        uint32_t at = (uint32_t)rand() % (DISK / 512);
        if (at + sectors > DISK / 512)
            sectors = DISK / 512 - at;
        uint32_t len = sectors * 512;
        int what = rand() % 10;

        if (what < 5) {
            for (uint32_t k = 0; k < len; k++)
                data[k] = (uint8_t)rand();
            assert_int_equal(request(VIRTIO_BLK_T_OUT, at, data, len, 3), VIRTIO_BLK_S_OK);
            memcpy(f.model + at * 512ul, data, len);
        } else if (what < 8) {
            assert_int_equal(request(VIRTIO_BLK_T_IN, at, got, len, 3), VIRTIO_BLK_S_OK);
            assert_memory_equal(got, f.model + at * 512ul, len);
        } else if (what < 9) {
            struct virtio_blk_discard_write_zeroes z = {.sector = at, .num_sectors = sectors};
            assert_int_equal(request(VIRTIO_BLK_T_WRITE_ZEROES, 0, &z, sizeof z, 1), VIRTIO_BLK_S_OK);
            memset(f.model + at * 512ul, 0, len);
        } else {
            assert_int_equal(request(VIRTIO_BLK_T_FLUSH, 0, NULL, 0, 1), VIRTIO_BLK_S_OK);
            /* Another process sees the same disk. */
            blk_free(&f.b);
            attach(0, 0);
        }
    }
    check_all();
}

static void test_refused(void **state)
{
    uint8_t data[4096] = {0};
    struct virtio_blk_discard_write_zeroes z = {.sector = DISK / 512, .num_sectors = 1};

    assert_int_equal(request(VIRTIO_BLK_T_IN, DISK / 512, data, 512, 1), VIRTIO_BLK_S_IOERR);
    assert_int_equal(request(VIRTIO_BLK_T_IN, DISK / 512 - 1, data, 1024, 1), VIRTIO_BLK_S_IOERR);
    assert_int_equal(request(VIRTIO_BLK_T_OUT, UINT64_MAX, data, 512, 1), VIRTIO_BLK_S_IOERR);
    assert_int_equal(request(VIRTIO_BLK_T_OUT, UINT64_MAX / 512, data, 512, 1), VIRTIO_BLK_S_IOERR);
    assert_int_equal(request(VIRTIO_BLK_T_OUT, 0, data, 100, 1), VIRTIO_BLK_S_IOERR);
    assert_int_equal(request(VIRTIO_BLK_T_DISCARD, 0, &z, sizeof z, 1), VIRTIO_BLK_S_IOERR);
    assert_int_equal(request(VIRTIO_BLK_T_DISCARD, 0, &z, 7, 1), VIRTIO_BLK_S_IOERR);
    assert_int_equal(request(99, 0, data, 512, 1), VIRTIO_BLK_S_UNSUPP);
    assert_int_equal(request(VIRTIO_BLK_T_GET_ID, 0, data, 20, 1), VIRTIO_BLK_S_OK);
    assert_string_equal((char *)data, "root");
    check_all();
    /* No header, no status: the device stops. */
    struct part p = {0x100000, 8, false};
    driver_add(&f.d, 0, &p, 1);
    driver_kick(&f.d, 0);
    assert_true(driver_read(&f.d, VIRTIO_MMIO_STATUS) & 0x40);
}

static void test_sparse(void **state)
{
    uint8_t sector[512];
    struct stat st;

    memset(sector, 5, sizeof sector);
    assert_int_equal(request(VIRTIO_BLK_T_OUT, 200, sector, 512, 1), VIRTIO_BLK_S_OK);
    assert_int_equal(f.b.disk.chunks, 1);
    assert_int_equal(request(VIRTIO_BLK_T_FLUSH, 0, NULL, 0, 1), VIRTIO_BLK_S_OK);
    assert_int_equal(fstat(f.layer, &st), 0);
    assert_true(st.st_blocks * 512 < 3 * (long)LAYER_CHUNK);
    /* A whole chunk that is discarded gives its space back. */
    struct virtio_blk_discard_write_zeroes z = {.sector = 128, .num_sectors = 128};
    assert_int_equal(request(VIRTIO_BLK_T_WRITE_ZEROES, 0, &z, sizeof z, 1), VIRTIO_BLK_S_OK);
    long before = st.st_blocks;
    assert_int_equal(fstat(f.layer, &st), 0);
    assert_true(st.st_blocks < before);
}

/* A write that the disk's limit cuts short is an error, and what it left is never read. */
static void test_cut_short(void **state)
{
    static uint8_t data[LAYER_CHUNK];
    struct rlimit before, cut;
    struct virtio_blk_discard_write_zeroes z = {.sector = 0, .num_sectors = LAYER_CHUNK / 512};

    memset(data, 5, sizeof data);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    cut = (struct rlimit){f.b.disk.data_off + LAYER_CHUNK / 2, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &cut), 0);
    assert_int_equal(request(VIRTIO_BLK_T_OUT, 0, data, sizeof data, 1), VIRTIO_BLK_S_IOERR);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    check_all();
    assert_int_equal(request(VIRTIO_BLK_T_WRITE_ZEROES, 0, &z, sizeof z, 1), VIRTIO_BLK_S_OK);
    memset(f.model, 0, LAYER_CHUNK);
    check_all();
}

static void test_damaged_layer(void **state)
{
    struct layer l;
    struct err e = {0};
    uint8_t b;

    assert_int_equal(layer_open(&l, dup(f.base), dup(f.layer), DISK + 512, "base-1", &e), -1);
    layer_close(&l);
    assert_int_equal(layer_open(&l, dup(f.base), dup(f.layer), DISK, "base-2", &e), -1);
    layer_close(&l);
    for (off_t at = 0; at < 100; at += 9) {
        assert_int_equal(pread(f.layer, &b, 1, at), 1);
        b ^= 4;
        assert_int_equal(pwrite(f.layer, &b, 1, at), 1);
        assert_int_equal(layer_open(&l, dup(f.base), dup(f.layer), DISK, "base-1", &e), -1);
        layer_close(&l);
        b ^= 4;
        assert_int_equal(pwrite(f.layer, &b, 1, at), 1);
    }
    assert_int_equal(ftruncate(f.layer, 50), 0);
    assert_int_equal(layer_open(&l, dup(f.base), dup(f.layer), DISK, "base-1", &e), -1);
    layer_close(&l);
}

static void test_rate(void **state)
{
    uint8_t data[512] = {0};
    unsigned passed = 0;
    int64_t t0 = clock_mono_us();

    blk_free(&f.b);
    attach(0, 1000);                                      /* a burst of 100, then 1,000 a second */
    while (clock_mono_us() - t0 < 100000 || passed <= 50) /* longer on a machine that does not let us run */
        if (request(VIRTIO_BLK_T_IN, 0, data, 512, 1) == VIRTIO_BLK_S_OK)
            passed++;
        else
            worker_turn(&f.w, 5); /* its timer serves what waited */
    double seconds = (double)(clock_mono_us() - t0) / 1e6;
    assert_true(passed <= 100 + 1000 * seconds + 20);
}

/* The disk grows under a running driver: old data stays, new room reads as zeros and keeps what is written,
 * the driver is told, and the layer opens again with the new size only. */
static void test_grow(void **state)
{
    const uint64_t grown = DISK + 10ull * LAYER_CHUNK;
    uint8_t data[512] = {7}, got[512];
    struct err e = {0};
    struct layer l;
    uint32_t generation = driver_read(&f.d, VIRTIO_MMIO_CONFIG_GENERATION);

    memset(f.model + 512, 9, 512);
    assert_int_equal(request(VIRTIO_BLK_T_OUT, 1, f.model + 512, 512, 1), VIRTIO_BLK_S_OK);
    assert_int_equal(blk_grow(&f.b, DISK - 512, &e), -1);
    assert_int_equal(blk_grow(&f.b, grown + 1, &e), -1);
    assert_int_equal(blk_grow(&f.b, 40ull << 30, &e), -1); /* its bitmap would reach into the data */
    assert_int_equal(driver_read(&f.d, VIRTIO_MMIO_CONFIG_GENERATION), generation);
    assert_int_equal(request(VIRTIO_BLK_T_IN, DISK / 512, got, 512, 1), VIRTIO_BLK_S_IOERR);

    assert_int_equal(blk_grow(&f.b, grown, &e), 0);
    assert_int_equal(f.b.config.capacity, grown / 512);
    assert_int_not_equal(driver_read(&f.d, VIRTIO_MMIO_CONFIG_GENERATION), generation);
    assert_true(driver_read(&f.d, VIRTIO_MMIO_INTERRUPT_STATUS) & VIRTIO_MMIO_INT_CONFIG);
    check_all();
    assert_int_equal(request(VIRTIO_BLK_T_IN, grown / 512 - 1, got, 512, 1), VIRTIO_BLK_S_OK);
    assert_memory_equal(got, (uint8_t[512]){0}, 512);
    assert_int_equal(request(VIRTIO_BLK_T_OUT, grown / 512 - 1, data, 512, 1), VIRTIO_BLK_S_OK);
    assert_int_equal(request(VIRTIO_BLK_T_FLUSH, 0, NULL, 0, 1), VIRTIO_BLK_S_OK);

    assert_int_equal(layer_open(&l, dup(f.base), dup(f.layer), DISK, "base-1", &e), -1);
    layer_close(&l);
    assert_int_equal(layer_open(&l, dup(f.base), dup(f.layer), grown, "base-1", &e), 0);
    struct iovec iov = {got, sizeof got};
    assert_int_equal(layer_read(&l, grown - 512, 512, &iov, 1), 0);
    assert_memory_equal(got, data, 512);
    layer_close(&l);
}

static void test_read_only(void **state)
{
    struct layer l;
    struct err e = {0};
    uint8_t data[512] = {1};

    blk_free(&f.b);
    assert_int_equal(blk_init(&f.b, &f.d.mem, &f.w, &e), 0);
    assert_int_equal(layer_open(&l, dup(f.base), -1, 0, "", &e), 0);
    blk_attach(&f.b, &l, "tools", 0, 0);
    driver_start(&f.d, &f.b.dev, 1ull << VIRTIO_BLK_F_RO,
                 16); /* a driver that ignores that the disk is read-only */
    assert_int_equal(request(VIRTIO_BLK_T_OUT, 0, data, 512, 1), VIRTIO_BLK_S_IOERR);
    assert_int_equal(request(VIRTIO_BLK_T_IN, 0, data, 512, 1), VIRTIO_BLK_S_OK);
    assert_memory_equal(data, f.model, 512);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_model, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sparse, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cut_short, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_layer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rate, setup, teardown),
        cmocka_unit_test_setup_teardown(test_read_only, setup, teardown),
        cmocka_unit_test_setup_teardown(test_grow, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
