/* Queues and registers against honest and hostile drivers. */
#include "node/vmm/rng.h"
#include "tests/unit/vmm/driver.h"

#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

struct fixture {
    struct driver d;
    struct worker w;
    struct rng r; /* the simplest device: fills what it is given */
};

static struct fixture f;

static int setup(void **state)
{
    struct err e = {0};

    driver_ram(&f.d);
    assert_int_equal(worker_init(&f.w, &e), 0);
    assert_int_equal(rng_init(&f.r, &f.d.mem, &f.w, &e), 0);
    driver_start(&f.d, &f.r.dev, 0, 8);
    return 0;
}

static int teardown(void **state)
{
    rng_free(&f.r);
    driver_ram_free(&f.d);
    return 0;
}

static void test_serves(void **state)
{
    uint64_t buf = driver_alloc(&f.d, 8192);
    uint16_t head;
    uint32_t len;

    for (int round = 0; round < 50; round++) { /* indexes wrap around the ring */
        struct part p[] = {{buf, 100, true}, {buf + 4096, 200, true}};
        memset(driver_at(&f.d, buf), 0, 8192);
        uint16_t h = driver_add(&f.d, 0, p, 2);
        driver_kick(&f.d, 0);
        assert_true(driver_used(&f.d, 0, &head, &len));
        assert_int_equal(head, h);
        assert_int_equal(len, 300);
        assert_false(driver_used(&f.d, 0, &head, &len));
        uint8_t *bytes = driver_at(&f.d, buf), any = 0;
        for (int i = 0; i < 100; i++)
            any |= bytes[i];
        assert_true(any);
        assert_int_equal(bytes[100], 0);
    }
}

static void test_indirect(void **state)
{
    uint64_t table = driver_alloc(&f.d, 4096), buf = driver_alloc(&f.d, 4096);
    struct vring_desc *t = driver_at(&f.d, table), *desc = driver_at(&f.d, f.d.q[0].desc);
    uint16_t *avail = driver_at(&f.d, f.d.q[0].avail), head;
    uint32_t len;

    t[0] = (struct vring_desc){buf, 50, VRING_DESC_F_WRITE | VRING_DESC_F_NEXT, 1};
    t[1] = (struct vring_desc){buf + 64, 60, VRING_DESC_F_WRITE, 0};
    desc[3] = (struct vring_desc){table, 32, VRING_DESC_F_INDIRECT, 0};
    avail[2] = 3;
    avail[1] = 1;
    driver_kick(&f.d, 0);
    assert_true(driver_used(&f.d, 0, &head, &len));
    assert_int_equal(head, 3);
    assert_int_equal(len, 110);
}

/* One hostile set-up of descriptors 0…7; the device must stop and ask for a reset. */
static void expect_broken(void)
{
    uint16_t *avail = driver_at(&f.d, f.d.q[0].avail), head;
    uint32_t len;

    avail[2] = 0;
    avail[1] = 1;
    driver_kick(&f.d, 0);
    assert_false(driver_used(&f.d, 0, &head, &len));
    assert_true(driver_read(&f.d, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_NEEDS_RESET);
    driver_kick(&f.d, 0);
    /* After a reset it works again. */
    driver_start(&f.d, &f.r.dev, 0, 8);
    assert_false(driver_read(&f.d, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_NEEDS_RESET);
    struct part p = {driver_alloc(&f.d, 64), 64, true};
    driver_add(&f.d, 0, &p, 1);
    driver_kick(&f.d, 0);
    assert_true(driver_used(&f.d, 0, &head, &len));
    driver_start(&f.d, &f.r.dev, 0, 8); /* indexes from zero for the next one */
}

static void test_hostile(void **state)
{
    uint64_t ram = f.d.mem.size;
    uint64_t table = driver_alloc(&f.d, 4096);
    struct vring_desc *t = driver_at(&f.d, table);
    const uint16_t W = VRING_DESC_F_WRITE, N = VRING_DESC_F_NEXT, I = VRING_DESC_F_INDIRECT;
    const struct vring_desc bad[] = {
        {ram - 10, 11, W, 0},                /* past the end */
        {ram, 1, W, 0},                      /* outside */
        {UINT64_MAX - 3, 100, W, 0},         /* wraps around */
        {MEM_LOW_MAX, 16, W, 0},             /* the device hole */
        {0x20000, 16, (uint16_t)(W | N), 0}, /* a loop to itself */
        {0x20000, 16, (uint16_t)(W | N), 9}, /* next is no entry */
        {0x20000, 0xffffffff, W, 0},         /* larger than RAM */
        {table, 17, I, 0},                   /* a table of one and a bit */
        {table, 0, I, 0},                    /* no table */
        {table, 16, (uint16_t)(I | N), 1},   /* a table in the middle */
        {ram - 8, 16, I, 0},                 /* a table outside */
        {table, 16 * 1000, I, 0},            /* a table longer than any chain */
    };

    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct vring_desc *desc = driver_at(&f.d, f.d.q[0].desc);
        memset(desc, 0, 128);
        desc[0] = bad[i];
        expect_broken();
    }
    struct vring_desc *desc = driver_at(&f.d, f.d.q[0].desc);
    t[0] = (struct vring_desc){table, 16, I, 0}; /* a table in a table */
    desc[0] = (struct vring_desc){table, 16, I, 0};
    expect_broken();
    desc = driver_at(&f.d, f.d.q[0].desc);
    t[0] = (struct vring_desc){0x20000, 16, (uint16_t)(W | N), 0}; /* a loop in a table */
    desc[0] = (struct vring_desc){table, 64, I, 0};
    expect_broken();
    desc = driver_at(&f.d, f.d.q[0].desc);
    desc[0] = (struct vring_desc){0x20000, 16, (uint16_t)(W | N), 1}; /* readable behind writable */
    desc[1] = (struct vring_desc){0x20000, 16, 0, 0};
    expect_broken();
}

static void test_index_jump(void **state)
{
    uint16_t *avail = driver_at(&f.d, f.d.q[0].avail);

    avail[1] = 9; /* more than the ring holds */
    driver_kick(&f.d, 0);
    assert_true(driver_read(&f.d, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_NEEDS_RESET);
    driver_start(&f.d, &f.r.dev, 0, 8);
    avail = driver_at(&f.d, f.d.q[0].avail);
    avail[2] = 8; /* no such descriptor */
    avail[1] = 1;
    driver_kick(&f.d, 0);
    assert_true(driver_read(&f.d, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_NEEDS_RESET);
}

static void test_registers(void **state)
{
    struct driver *d = &f.d;

    assert_int_equal(driver_read(d, VIRTIO_MMIO_MAGIC_VALUE), 0x74726976);
    assert_int_equal(driver_read(d, VIRTIO_MMIO_VERSION), 2);
    assert_int_equal(driver_read(d, VIRTIO_MMIO_DEVICE_ID), 4);
    /* A queue in use cannot be moved. */
    driver_write(d, VIRTIO_MMIO_QUEUE_SEL, 0);
    uint64_t before = f.r.dev.q[0].desc;
    driver_write(d, VIRTIO_MMIO_QUEUE_DESC_LOW, 0x1234000);
    assert_int_equal(f.r.dev.q[0].desc, before);
    /* Queues that do not exist, odd widths and offsets. */
    driver_write(d, VIRTIO_MMIO_QUEUE_SEL, 77);
    assert_int_equal(driver_read(d, VIRTIO_MMIO_QUEUE_NUM_MAX), 0);
    driver_write(d, VIRTIO_MMIO_QUEUE_READY, 1);
    uint8_t raw[8];
    for (unsigned off = 0; off < VIRTIO_MMIO_SIZE; off++)
        for (unsigned len = 1; len <= 8; len *= 2)
            virtio_mmio_read(d->dev, off, raw, len);
    driver_write(d, VIRTIO_MMIO_QUEUE_NOTIFY, 0xffffffff);
    /* Bad queue set-ups are not accepted. */
    static const struct {
        uint32_t num, desc, avail, used;
    } bad[] = {{0, 0x10000, 0x20000, 0x30000},    {3, 0x10000, 0x20000, 0x30000},
               {16, 0x10000, 0x20000, 0x30000},   {8, 0x10008, 0x20000, 0x30000},
               {8, 0x10000, 0x20001, 0x30000},    {8, 0x10000, 0x20000, 0x30002},
               {8, 0xfffffff0, 0x20000, 0x30000}, {8, 0x10000, 0x3fffffe, 0x30000}};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        driver_write(d, VIRTIO_MMIO_STATUS, 0);
        driver_write(d, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1);
        driver_write(d, VIRTIO_MMIO_DRIVER_FEATURES, 1);
        driver_write(d, VIRTIO_MMIO_STATUS, 11);
        driver_write(d, VIRTIO_MMIO_QUEUE_SEL, 0);
        driver_write(d, VIRTIO_MMIO_QUEUE_NUM, bad[i].num);
        driver_write(d, VIRTIO_MMIO_QUEUE_DESC_LOW, bad[i].desc);
        driver_write(d, VIRTIO_MMIO_QUEUE_AVAIL_LOW, bad[i].avail);
        driver_write(d, VIRTIO_MMIO_QUEUE_USED_LOW, bad[i].used);
        driver_write(d, VIRTIO_MMIO_QUEUE_READY, 1);
        assert_int_equal(driver_read(d, VIRTIO_MMIO_QUEUE_READY), 0);
        driver_write(d, VIRTIO_MMIO_STATUS, 15);
        driver_kick(d, 0);
    }
    /* Features that were not offered, or no VERSION_1: FEATURES_OK does not stick. */
    driver_write(d, VIRTIO_MMIO_STATUS, 0);
    driver_write(d, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 0);
    driver_write(d, VIRTIO_MMIO_DRIVER_FEATURES, 0xffffffff);
    driver_write(d, VIRTIO_MMIO_STATUS, 11);
    assert_int_equal(driver_read(d, VIRTIO_MMIO_STATUS), 3);
    driver_write(d, VIRTIO_MMIO_STATUS, 15);
    assert_int_equal(driver_read(d, VIRTIO_MMIO_STATUS) & 4, 0);
}

/* With EVENT_IDX an interrupt comes only when the driver asked for one at this place of the ring. */
static void test_interrupts(void **state)
{
    struct part p = {driver_alloc(&f.d, 64), 64, true};
    uint16_t *avail = driver_at(&f.d, f.d.q[0].avail), *used_event = &avail[2 + 8];

    *used_event = 2;
    driver_interrupts(&f.d);
    driver_add(&f.d, 0, &p, 1);
    driver_kick(&f.d, 0);
    driver_interrupts(&f.d); /* the first one is always given */
    driver_add(&f.d, 0, &p, 1);
    driver_kick(&f.d, 0);
    assert_int_equal(driver_interrupts(&f.d), 0);
    driver_add(&f.d, 0, &p, 1);
    driver_kick(&f.d, 0);
    assert_int_equal(driver_interrupts(&f.d), 1);
}

/* A driver of the PVM kind finds the change marked in the used flags of queue 0 until it acknowledges it;
 * other drivers find nothing there, as the specification wants. */
static void test_config_change(void **state)
{
    struct virtio_dev *dev = &f.r.dev;
    uint16_t *flags = driver_at(&f.d, f.d.q[0].used);
    uint32_t before = driver_read(&f.d, VIRTIO_MMIO_CONFIG_GENERATION);

    for (int pvm = 0; pvm < 2; pvm++) {
        dev->vendor = pvm ? VIRTIO_VENDOR_PVM : VIRTIO_VENDOR_CUBE;
        driver_interrupts(&f.d);
        virtio_config_changed(dev);
        assert_int_equal(*flags, pvm ? 0x8000 : 0);
        assert_int_equal(driver_interrupts(&f.d), 1);
        assert_true(driver_read(&f.d, VIRTIO_MMIO_INTERRUPT_STATUS) & VIRTIO_MMIO_INT_CONFIG);
        driver_write(&f.d, VIRTIO_MMIO_INTERRUPT_ACK, VIRTIO_MMIO_INT_VRING);
        assert_int_equal(*flags, pvm ? 0x8000 : 0); /* not this one */
        driver_write(&f.d, VIRTIO_MMIO_INTERRUPT_ACK, VIRTIO_MMIO_INT_CONFIG);
        assert_int_equal(*flags, 0);
        assert_false(driver_read(&f.d, VIRTIO_MMIO_INTERRUPT_STATUS) & VIRTIO_MMIO_INT_CONFIG);
    }
    assert_int_equal(driver_read(&f.d, VIRTIO_MMIO_CONFIG_GENERATION), before + 2);
}

static void test_save_load(void **state)
{
    struct part p = {driver_alloc(&f.d, 64), 64, true};
    struct virtio_state s;
    struct err e = {0};
    uint16_t head;
    uint32_t len;

    driver_add(&f.d, 0, &p, 1);
    driver_kick(&f.d, 0);
    virtio_save(&f.r.dev, &s);
    driver_write(&f.d, VIRTIO_MMIO_STATUS, 0);
    assert_int_equal(virtio_load(&f.r.dev, &s, &e), 0);
    driver_add(&f.d, 0, &p, 1);
    driver_kick(&f.d, 0);
    assert_true(driver_used(&f.d, 0, &head, &len) && driver_used(&f.d, 0, &head, &len));
    s.q[0].desc = f.d.mem.size;
    assert_int_equal(virtio_load(&f.r.dev, &s, &e), -1);
    s.acked = ~0ull;
    assert_int_equal(virtio_load(&f.r.dev, &s, &e), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_serves, setup, teardown),
        cmocka_unit_test_setup_teardown(test_indirect, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hostile, setup, teardown),
        cmocka_unit_test_setup_teardown(test_index_jump, setup, teardown),
        cmocka_unit_test_setup_teardown(test_registers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_interrupts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_config_change, setup, teardown),
        cmocka_unit_test_setup_teardown(test_save_load, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
