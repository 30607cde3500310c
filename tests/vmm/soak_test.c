/* Pause, kill and resume at random moments under load, again and again: every answer must be right. Argument
 * after the usual three: seconds (default 20). Each cycle restores from what the last one saved, with deltas
 * merged when there are four. */
#include "tests/vmm/harness.h"

#include "node/vmm/memfile.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GUEST_MIB 256u
#define LOADERS 3

static struct guest g;
static pthread_rwlock_t guest_lock = PTHREAD_RWLOCK_INITIALIZER; /* written while the guest is exchanged */
static atomic_bool stopping;
static atomic_uint checked;

/* A connection that a pause breaks is no fault; wrong bytes are. */
static void load_echo(int fd, unsigned *seed)
{
    static __thread uint8_t out[65536], in[65536];
    size_t bytes = 1000 + (size_t)rand_r(seed) % 60000;
    char line[40];
    int n = snprintf(line, sizeof line, "echo %zu\n", bytes);

    for (size_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)rand_r(seed);
    if (write(fd, line, (size_t)n) != n || write(fd, out, bytes) != (ssize_t)bytes)
        return;
    for (size_t done = 0; done < bytes;) {
        ssize_t r = read(fd, in + done, bytes - done);
        if (r <= 0)
            return;
        done += (size_t)r;
    }
    if (memcmp(in, out, bytes))
        FAIL("wrong bytes came back");
    checked++;
}

static void reply_line(int fd, char *line, size_t room)
{
    size_t n = 0;

    while (n < room - 1 && read(fd, line + n, 1) == 1 && line[n] != '\n')
        n++;
    line[n] = 0;
}

/* Writes a file and reads it again through the disk. */
static void load_file(int fd, unsigned *seed)
{
    static unsigned serial; /* a command of a broken connection may run on: never the same file again */
    char line[80], a[64], b[64];
    int n = snprintf(line, sizeof line, "write /data/f%u %u %u\n", ++serial % 20,
                     1 + (unsigned)rand_r(seed) % 3, (unsigned)rand_r(seed));

    if (write(fd, line, (size_t)n) != n)
        return;
    reply_line(fd, a, sizeof a);
    n = snprintf(line, sizeof line, "sum /data/f%u\n", serial % 20);
    if (write(fd, line, (size_t)n) != n)
        return;
    reply_line(fd, b, sizeof b);
    if (!a[0] || !b[0])
        return;
    if (strcmp(a, b))
        FAIL("file %u: %s was written, %s is there", serial % 20, a, b);
    checked++;
}

static void *loader(void *arg)
{
    unsigned which = (unsigned)(uintptr_t)arg, seed = which * 77 + 1;

    while (!stopping) {
        pthread_rwlock_rdlock(&guest_lock);
        int fd = guest_dial(&g, 49983, NULL);
        pthread_rwlock_unlock(&guest_lock);
        for (int i = 0; i < 20 && !stopping; i++) {
            if (which == 0)
                load_file(fd, &seed);
            else
                load_echo(fd, &seed);
        }
        close(fd);
    }
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    return (*(const int64_t *)a > *(const int64_t *)b) - (*(const int64_t *)a < *(const int64_t *)b);
}

int main(int argc, char **argv)
{
    int64_t seconds = argc > 4 ? atoi(argv[4]) : 20, answers[10000], slowest = 0;
    const char *deltas[4] = {NULL};
    unsigned cycles = 0, chain = 0, seed = 5;
    pthread_t t[LOADERS];
    struct err e = {0};

    harness_start(argc, argv, "soak");
    guest_spawn(&g, GUEST_MIB, 1);
    guest_boot(&g, "soak.layer");
    int fd = guest_dial(&g, 49983, NULL);
    CHECK(!strcmp(ask(fd, "dirty 8"), "ok"));
    close(fd);
    OK(guest_snapshot(&g, "base", false, true, NULL, &e), e);
    /* Start from a restored guest, so that deltas are possible. */
    OK(guest_snapshot(&g, "base", false, false, NULL, &e), e);
    guest_kill(&g);
    guest_spawn(&g, GUEST_MIB, 1);
    OK(guest_restore(
           &g, &(struct snapshot_files){.state = "base.state", .memory = "base.mem", .layer = "soak.layer"},
           &e, NULL),
       e);
    for (unsigned i = 0; i < LOADERS; i++)
        CHECK(pthread_create(&t[i], NULL, loader, (void *)(uintptr_t)i) == 0);
    int64_t end = now_us() + seconds * 1000000;
    while ((now_us() < end || cycles < 4 || checked < 11) && cycles < 10000) {
        char name[32];

        usleep(20000 + (unsigned)rand_r(&seed) % 400000);
        pthread_rwlock_wrlock(&guest_lock);
        snprintf(name, sizeof name, "c%u", cycles);
        OK(guest_snapshot(&g, name, true, false, NULL, &e), e);
        guest_kill(&g);
        snprintf(name, sizeof name, "c%u.mem", cycles);
        deltas[chain++] = strdup(name);
        struct snapshot_files f = {.memory = "base.mem", .layer = "soak.layer"};
        if (chain == 4) {
            int in[4], out = file_new("merged.new");
            for (unsigned i = 0; i < 4; i++)
                in[i] = open(in_tmp(deltas[i]), O_RDONLY | O_CLOEXEC);
            OK(memfile_merge(in, 4, (uint64_t)GUEST_MIB << 20, out, &e), e);
            for (unsigned i = 0; i < 4; i++) {
                close(in[i]);
                unlink(in_tmp(deltas[i]));
            }
            close(out);
            memset(deltas, 0, sizeof deltas);
            snprintf(name, sizeof name, "merged%u", cycles);
            CHECK(rename(in_tmp("merged.new"), in_tmp(name)) == 0);
            deltas[0] = strdup(name);
            chain = 1;
        }
        memcpy(f.deltas, deltas, sizeof deltas);
        snprintf(name, sizeof name, "c%u.state", cycles);
        f.state = name;
        guest_spawn(&g, GUEST_MIB, 1);
        int64_t t0 = now_us();
        OK(guest_restore(&g, &f, &e, NULL), e);
        fd = guest_dial(&g, 49983, NULL);
        if (strcmp(ask(fd, "check"), "good 8"))
            FAIL("memory differs after cycle %u", cycles);
        answers[cycles] = now_us() - t0;
        if (answers[cycles] > slowest)
            slowest = answers[cycles];
        pthread_rwlock_unlock(&guest_lock);
        close(fd);
        cycles++;
    }
    stopping = true;
    for (unsigned i = 0; i < LOADERS; i++)
        pthread_join(t[i], NULL);
    guest_end(&g);
    qsort(answers, cycles, sizeof answers[0], by_value);
    printf("soak: %u cycles, %u checks, answer after restore p50 %lld us, max %lld us\n", cycles, checked,
           (long long)answers[cycles / 2], (long long)slowest);
    return 0;
}
