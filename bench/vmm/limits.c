/* `vmm-limits`: the ways of restoring that were considered, side by side in one run, so that the choice can
 * be checked on any host: where RAM comes from, page size, working set, device threads, and userfaultfd. */
#include "bench/vmm/clones.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096u
#define FAULT_PAGES 1500u /* about what a create touches */
#define PINGS_MAX 2000u

struct variant {
    const char *handover, *own_mib, *memory;
    bool working_set, one_thread;
};

/* A copy whose page cache is of 4 KiB pages: large folios come only from large writes. */
static void copy_in_pages(const char *from, int to)
{
    static uint8_t page[PAGE];
    int fd = open(from, O_RDONLY | O_CLOEXEC);
    struct stat st;

    CHECK(fd >= 0 && fstat(fd, &st) == 0 && ftruncate(to, st.st_size) == 0);
    for (off_t off = 0; (off = lseek(fd, off, SEEK_DATA)) >= 0 && off < st.st_size; off += PAGE)
        CHECK(pread(fd, page, PAGE, off) == PAGE && pwrite(to, page, PAGE, off) == PAGE);
    close(fd);
}

/* The program under its own name, or one that adds options to it. */
static const char *with_options(const char *name, const char *options)
{
    FILE *f = fopen(in_tmp(name), "we");

    CHECK(f);
    fprintf(f, "#!/bin/sh\nexec '%s' %s \"$@\"\n", vmm_program, options);
    fclose(f);
    CHECK(chmod(in_tmp(name), 0700) == 0);
    return strdup(in_tmp(name));
}

static void restores(const struct variant *v, unsigned n, struct series *handover, struct series *own_mib)
{
    struct snapshot_files f = {.state = "base.state",
                               .memory = v->memory,
                               .layer = "clone.layer",
                               .working_set = v->working_set ? "ws" : NULL};
    char path[64];

    for (unsigned i = 0; i <= n; i++) {
        struct guest g;

        copy_file(in_tmp("base.layer"), in_tmp("clone.layer"));
        guest_spawn(&g, GUEST_MIB, 1);
        usleep(2000);
        double ms = restore_and_ask(&g, &f, NULL, NULL);
        snprintf(path, sizeof path, "/proc/%d/smaps_rollup", g.c.pid);
        double kib = file_number(path, "Anonymous:");
        if (i) { /* the first one warms up */
            series_add(handover, ms);
            series_add(own_mib, kib / 1024);
        }
        guest_end(&g);
    }
}

/* How long a ping waits while the same guest writes to its disk. */
static void pings_beside_writes(struct series *s)
{
    struct snapshot_files f = {
        .state = "base.state", .memory = "base.mem", .layer = "clone.layer", .working_set = "ws"};
    struct guest g;
    int writer;

    copy_file(in_tmp("base.layer"), in_tmp("clone.layer"));
    guest_spawn(&g, GUEST_MIB, 1);
    restore_and_ask(&g, &f, NULL, &writer);
    int fd = guest_dial(&g, 49983, NULL);
    static const char line[] = "write /data/f 48 1\n";
    CHECK(write(writer, line, sizeof line - 1) == (ssize_t)(sizeof line - 1));
    struct pollfd p = {writer, POLLIN, 0};
    for (unsigned i = 0; i < PINGS_MAX && poll(&p, 1, 0) == 0; i++) {
        int64_t t0 = now_us();
        CHECK(!strcmp(ask(fd, "ping"), "pong"));
        series_add(s, (double)(now_us() - t0) / 1000);
    }
    close(fd);
    close(writer);
    guest_end(&g);
}

/* A third of the pages is written, the rest read; they lie apart, as a guest's do. */
static double touch(volatile uint8_t *p, uint64_t bytes)
{
    uint64_t step = bytes / FAULT_PAGES / PAGE * PAGE;
    unsigned sum = 0;
    int64_t t0 = now_us();

    for (unsigned i = 0; i < FAULT_PAGES; i++)
        if (i % 3 == 0)
            p[i * step] = 1;
        else
            sum += p[i * step];
    return (double)(now_us() - t0) / FAULT_PAGES + (double)(sum & 0);
}

struct handler {
    int uffd, file;
    uint8_t *base;
};

static void *pages_serve(void *arg)
{
    static uint8_t page[PAGE] __attribute__((aligned(4096)));
    struct handler *h = arg;
    struct uffd_msg m;

    while (read(h->uffd, &m, sizeof m) == sizeof m && m.event == UFFD_EVENT_PAGEFAULT) {
        uint64_t at = m.arg.pagefault.address & ~(uint64_t)(PAGE - 1);
        struct uffdio_copy c = {.dst = at, .src = (uintptr_t)page, .len = PAGE};
        if (pread(h->file, page, PAGE, (off_t)(at - (uintptr_t)h->base)) != PAGE ||
            ioctl(h->uffd, UFFDIO_COPY, &c) < 0)
            break;
    }
    return NULL;
}

static void faults(struct series *private_map, struct series *populated, struct series *uffd)
{
    int fd = open(in_tmp("small.mem"), O_RDONLY | O_CLOEXEC);
    uint64_t bytes = (uint64_t)GUEST_MIB << 20;

    CHECK(fd >= 0);
    for (int round = 0; round < 5; round++) {
        uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
        CHECK(p != MAP_FAILED);
        series_add(private_map, touch(p, bytes));
        munmap(p, bytes);

        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
        CHECK(p != MAP_FAILED);
        int64_t t0 = now_us();
        for (unsigned i = 0; i < FAULT_PAGES; i++)
            madvise(p + i * (bytes / FAULT_PAGES / PAGE * PAGE), PAGE,
                    i % 3 ? MADV_POPULATE_READ : MADV_POPULATE_WRITE);
        touch(p, bytes);
        series_add(populated, (double)(now_us() - t0) / FAULT_PAGES);
        munmap(p, bytes);

        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(p != MAP_FAILED);
        struct handler h = {
            .uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY), .file = fd, .base = p};
        struct uffdio_api api = {.api = UFFD_API};
        struct uffdio_register r = {.range = {(uintptr_t)p, bytes}, .mode = UFFDIO_REGISTER_MODE_MISSING};
        pthread_t t;
        if (h.uffd < 0 || ioctl(h.uffd, UFFDIO_API, &api) < 0 || ioctl(h.uffd, UFFDIO_REGISTER, &r) < 0 ||
            pthread_create(&t, NULL, pages_serve, &h) != 0)
            return; /* a kernel without it: the metric is left out */
        series_add(uffd, touch(p, bytes));
        pthread_cancel(t);
        pthread_join(t, NULL);
        close(h.uffd);
        munmap(p, bytes);
    }
    close(fd);
}

void bench_limits(unsigned n, bool json)
{
    static const struct variant variants[] = {
        {"handover", "own", "base.mem", true, false},
        {"handover-small-pages", "own-small-pages", "small.mem", true, false},
        {"handover-memfd", "own-memfd", "memfd.mem", true, false},
        {"handover-no-working-set", "own-no-working-set", "base.mem", false, false},
        {"handover-one-thread", "own-one-thread", "base.mem", true, true}};
    enum { VARIANTS = sizeof variants / sizeof variants[0], ALL = 2 * VARIANTS + 5 };
    struct series s[ALL] = {{0}};
    const char *two = with_options("two-threads", "--no-seccomp");
    const char *one = with_options("one-thread", "--no-seccomp --one-thread");
    char target[64];
    int memfd = memfd_create("bench", MFD_CLOEXEC), small = file_new("small.mem");

    CHECK(memfd >= 0);
    copy_in_pages(in_tmp("base.mem"), memfd);
    copy_in_pages(in_tmp("base.mem"), small);
    snprintf(target, sizeof target, "/proc/%d/fd/%d", getpid(), memfd);
    CHECK(symlink(target, in_tmp("memfd.mem")) == 0);
    for (unsigned i = 0; i < VARIANTS; i++) {
        s[i] = (struct series){.metric = variants[i].handover, .unit = "ms"};
        s[VARIANTS + i] = (struct series){.metric = variants[i].own_mib, .unit = "MiB"};
        vmm_program = variants[i].one_thread ? one : two;
        restores(&variants[i], n, &s[i], &s[VARIANTS + i]);
    }
    struct series *rest = &s[2 * VARIANTS];
    rest[0] = (struct series){.metric = "ping-beside-writes", .unit = "ms"};
    rest[1] = (struct series){.metric = "ping-beside-writes-one-thread", .unit = "ms"};
    rest[2] = (struct series){.metric = "fault-private-map", .unit = "µs"};
    rest[3] = (struct series){.metric = "fault-populated", .unit = "µs"};
    rest[4] = (struct series){.metric = "fault-userfaultfd", .unit = "µs"};
    vmm_program = two;
    pings_beside_writes(&rest[0]);
    vmm_program = one;
    pings_beside_writes(&rest[1]);
    faults(&rest[2], &rest[3], &rest[4]);
    close(small);
    report_print("vmm-limits", s, ALL, json);
}
