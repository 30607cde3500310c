/* Snapshot and restore of a real guest: memory, disk, timers and vsock go on; deltas chain; damage is
 * refused. */
#include "tests/vmm/harness.h"

#include "node/vmm/memfile.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static void expect(int fd, const char *question, const char *answer)
{
    const char *got = ask(fd, "%s", question);

    if (strcmp(got, answer))
        FAIL("%s: got \"%s\", expected \"%s\"", question, got, answer);
}

static void restore(struct guest *g, const struct snapshot_files *f)
{
    struct err e = {0};

    guest_spawn(g, 256, 1);
    OK(guest_restore(g, f, &e, NULL), e);
}

/* A template: booted, memory filled, a file written, then frozen and saved whole. */
static char file_sum[64];
static void make_template(void)
{
    Cube__Vmm__V1__SnapshotDone done;
    struct err e = {0};
    struct guest g;

    guest_spawn(&g, 256, 1);
    guest_boot(&g, "base.layer");
    int fd = guest_dial(&g, 0, NULL);
    expect(fd, "dirty 8", "ok");
    strcpy(file_sum, ask(fd, "write /data/a 12 7"));
    expect(fd, "ping", "pong");
    OK(guest_snapshot(&g, "base", false, false, &done, &e), e);
    CHECK(done.frozen);
    printf("full snapshot: %llu pages in %lld us\n", (unsigned long long)done.pages,
           (long long)done.frozen_us);
    copy_file(in_tmp("base.layer"), in_tmp("base.layer.copy"));
    guest_end(&g);
    close(fd);
}

static void clones_go_on(void)
{
    struct guest g[4];

    for (int i = 0; i < 4; i++) {
        char layer[32];
        snprintf(layer, sizeof layer, "clone%d.layer", i);
        copy_file(in_tmp("base.layer.copy"), in_tmp(layer));
        restore(&g[i], &(struct snapshot_files){
                           .state = "base.state", .memory = "base.mem", .layer = strdup(layer)});
    }
    for (int i = 0; i < 4; i++) {
        int fd = guest_dial(&g[i], 49983, NULL);
        expect(fd, "check", "good 8");
        expect(fd, "sum /data/a", file_sum);
        char sum[64];
        strcpy(sum, ask(fd, "write /data/b 3 %d", i + 100));
        expect(fd, "sum /data/b", sum);
        close(fd);
    }
    for (int i = 0; i < 4; i++)
        guest_end(&g[i]);
}

/* Pause and resume again and again: each round a delta on top, memory and files as they were. */
static void chain(void)
{
    const char *deltas[5] = {NULL};
    char sum[64] = "";
    struct err e = {0};

    copy_file(in_tmp("base.layer.copy"), in_tmp("chain.layer"));
    for (int round = 0; round < 5; round++) {
        struct snapshot_files f = {.state = "base.state", .memory = "base.mem", .layer = "chain.layer"};
        char name[32], state[40], path[40];
        Cube__Vmm__V1__SnapshotDone done;
        struct guest g;

        memcpy(f.deltas, deltas, sizeof f.deltas);
        if (round) {
            snprintf(state, sizeof state, "round%d.state", round - 1);
            f.state = state;
        }
        restore(&g, &f);
        int fd = guest_dial(&g, 8080, NULL);
        snprintf(path, sizeof path, "good %d", round ? round + 1 : 8);
        expect(fd, "check", path);
        if (round)
            expect(fd, "sum /data/c", sum);
        CHECK(!strcmp(ask(fd, "dirty %d", round + 2), "ok"));
        strcpy(sum, ask(fd, "write /data/c %d %d", round + 1, round));
        snprintf(name, sizeof name, "round%d", round);
        OK(guest_snapshot(&g, name, true, false, &done, &e), e);
        printf("round %d: %llu pages in %lld us\n", round, (unsigned long long)done.pages,
               (long long)done.frozen_us);
        CHECK(done.pages > (unsigned)(round + 2) * 256 && done.pages < 16000);
        guest_kill(&g); /* what is saved must be enough */
        close(fd);
        snprintf(name, sizeof name, "round%d.mem", round);
        deltas[round] = strdup(name);
        if (round == 3) { /* four deltas: merge them into one */
            int fds[4], out = file_new("merged.mem");
            for (int i = 0; i < 4; i++)
                fds[i] = open(in_tmp(deltas[i]), O_RDONLY | O_CLOEXEC);
            OK(memfile_merge(fds, 4, 256ull << 20, out, &e), e);
            for (int i = 0; i < 4; i++)
                close(fds[i]);
            close(out);
            memset(deltas, 0, sizeof deltas);
            deltas[0] = "merged.mem";
        }
    }
}

/* A running guest is saved and goes on; the copy and the original both live. */
static void live(void)
{
    struct err e = {0};
    struct guest a, b;

    copy_file(in_tmp("base.layer.copy"), in_tmp("live.layer"));
    restore(&a, &(struct snapshot_files){.state = "base.state", .memory = "base.mem", .layer = "live.layer"});
    int fd = guest_dial(&a, 49983, NULL);
    expect(fd, "dirty 5", "ok");
    OK(guest_snapshot(&a, "live", true, false, NULL, &e), e);
    copy_file(in_tmp("live.layer"), in_tmp("live2.layer"));
    simple(&a, CUBE__VMM__V1__REQUEST__OP_THAW);
    expect(fd, "check", "good 5"); /* the old connection lives on */
    expect(fd, "dirty 6", "ok");
    restore(&b,
            &(struct snapshot_files){
                .state = "live.state", .memory = "base.mem", .deltas = {"live.mem"}, .layer = "live2.layer"});
    int fd2 = guest_dial(&b, 49983, NULL);
    expect(fd2, "check", "good 5");
    expect(fd, "check", "good 6");
    OK(guest_snapshot(&a, "live2", true, true, NULL, &e), e);
    expect(fd, "check", "good 6");
    close(fd);
    close(fd2);
    guest_end(&a);
    guest_end(&b);
}

/* A whole image of a restored guest needs nothing of what that one was made of. */
static void full_again(void)
{
    struct err e = {0};
    struct guest g;

    copy_file(in_tmp("live2.layer"), in_tmp("again.layer"));
    restore(&g,
            &(struct snapshot_files){
                .state = "live.state", .memory = "base.mem", .deltas = {"live.mem"}, .layer = "again.layer"});
    int fd = guest_dial(&g, 49983, NULL);
    expect(fd, "check", "good 5");
    expect(fd, "dirty 7", "ok");
    OK(guest_snapshot(&g, "again", false, false, NULL, &e), e);
    guest_kill(&g);
    close(fd);
    restore(&g,
            &(struct snapshot_files){.state = "again.state", .memory = "again.mem", .layer = "again.layer"});
    fd = guest_dial(&g, 49983, NULL);
    expect(fd, "check", "good 7");
    guest_end(&g);
    close(fd);
}

static uint64_t resident(struct guest *g)
{
    Cube__Vmm__V1__Request q = CUBE__VMM__V1__REQUEST__INIT;
    Cube__Vmm__V1__GetStats s = CUBE__VMM__V1__GET_STATS__INIT;
    Cube__Vmm__V1__Reply *r;
    struct err e = {0};

    q.op_case = CUBE__VMM__V1__REQUEST__OP_GET_STATS;
    q.get_stats = &s;
    OK(vmm_call(&g->c, &q, NULL, 0, &r, &e), e);
    uint64_t bytes = r->stats->rss_bytes;
    vmm_reply_free(r);
    return bytes;
}

/* What the guest frees goes back to the host, and is not in the next delta. */
static void memory_returns(void)
{
    Cube__Vmm__V1__SnapshotDone done;
    struct err e = {0};
    struct guest g;

    copy_file(in_tmp("base.layer.copy"), in_tmp("returns.layer"));
    restore(&g,
            &(struct snapshot_files){.state = "base.state", .memory = "base.mem", .layer = "returns.layer"});
    int fd = guest_dial(&g, 49983, NULL);
    expect(fd, "dirty 100", "ok");
    uint64_t full = resident(&g), now = full;
    CHECK(full > 100u << 20);
    expect(fd, "drop", "ok");
    int64_t end = now_us() + 30000000; /* the guest reports two seconds after it freed */
    while ((now = resident(&g)) > full - (80u << 20) && now_us() < end)
        usleep(100000);
    printf("resident: %llu MiB with 100 MiB in use, %llu MiB after they were freed\n",
           (unsigned long long)full >> 20, (unsigned long long)now >> 20);
    CHECK(now <= full - (80u << 20));
    OK(guest_snapshot(&g, "returns", true, false, &done, &e), e);
    CHECK(done.memory_bytes < 40u << 20);
    guest_end(&g);
    close(fd);
}

static void flip(const char *name, off_t at)
{
    int fd = open(in_tmp(name), O_RDWR | O_CLOEXEC);
    uint8_t b;

    CHECK(fd >= 0 && pread(fd, &b, 1, at) == 1);
    b ^= 0x10;
    CHECK(pwrite(fd, &b, 1, at) == 1);
    close(fd);
}

static void refused(const char *what, const struct snapshot_files *f)
{
    struct err e = {0};
    struct guest g;

    guest_spawn(&g, 256, 1);
    if (guest_restore(&g, f, &e, NULL) == 0)
        FAIL("%s was accepted", what);
    printf("%s: %s\n", what, e.msg);
    guest_end(&g);
}

static void damage(void)
{
    struct snapshot_files f = {.state = "bad.state", .memory = "base.mem", .layer = "bad.layer"};
    struct stat st;

    copy_file(in_tmp("base.layer.copy"), in_tmp("bad.layer"));
    CHECK(stat(in_tmp("base.state"), &st) == 0);
    static const off_t bits[] = {0, 9, 20, 200, 3000, 9000};
    for (unsigned i = 0; i < 6; i++) {
        copy_file(in_tmp("base.state"), in_tmp("bad.state"));
        flip("bad.state", bits[i]);
        refused("flipped bit in the state", &f);
    }
    copy_file(in_tmp("base.state"), in_tmp("bad.state"));
    CHECK(truncate(in_tmp("bad.state"), st.st_size - 100) == 0);
    refused("truncated state", &f);
    CHECK(truncate(in_tmp("bad.state"), 0) == 0);
    refused("empty state", &f);
    f.state = "base.state";
    copy_file(in_tmp("base.mem"), in_tmp("bad.mem"));
    CHECK(truncate(in_tmp("bad.mem"), 100 << 20) == 0);
    f.memory = "bad.mem";
    refused("truncated memory", &f);
    f.memory = "base.mem";
    f.state = "live.state";
    f.deltas[0] = "bad.delta";
    copy_file(in_tmp("live.mem"), in_tmp("bad.delta"));
    flip("bad.delta", 70);
    refused("flipped bit in a delta's table", &f);
    copy_file(in_tmp("live.mem"), in_tmp("bad.delta"));
    CHECK(truncate(in_tmp("bad.delta"), 9000) == 0);
    refused("truncated delta", &f);
    f = (struct snapshot_files){.state = "base.state", .memory = "base.mem", .layer = "bad.layer"};
    flip("bad.layer", 12);
    refused("flipped bit in the layer's header", &f);
}

/* A snapshot that cannot be written leaves the guest running. */
static void full_disk(void)
{
    Cube__Vmm__V1__Request q = CUBE__VMM__V1__REQUEST__INIT;
    Cube__Vmm__V1__Snapshot s = CUBE__VMM__V1__SNAPSHOT__INIT;
    struct err e = {0};
    struct guest g;

    copy_file(in_tmp("base.layer.copy"), in_tmp("full.layer"));
    restore(&g, &(struct snapshot_files){.state = "base.state", .memory = "base.mem", .layer = "full.layer"});
    int fd = guest_dial(&g, 49983, NULL);
    expect(fd, "ping", "pong");
    int full = open("/dev/full", O_RDWR | O_CLOEXEC);
    int fds[2] = {file_new("x.state"), full};
    s.memory_fd = 1;
    s.delta = true;
    q.op_case = CUBE__VMM__V1__REQUEST__OP_SNAPSHOT;
    q.snapshot = &s;
    CHECK(vmm_call(&g.c, &q, fds, 2, NULL, &e) < 0);
    printf("full disk: %s\n", e.msg);
    expect(fd, "check", "good 8");
    OK(guest_snapshot(&g, "after", true, false, NULL, &e), e);
    guest_end(&g);
    close(fd);
    close(full);
    close(fds[0]);
}

/* Connections that the guest had at the snapshot end with a reset; its clock went on from where it stood. */
static void old_connections(void)
{
    struct err e = {0};
    struct guest a, b;

    copy_file(in_tmp("base.layer.copy"), in_tmp("old.layer"));
    restore(&a, &(struct snapshot_files){.state = "base.state", .memory = "base.mem", .layer = "old.layer"});
    int fds[20];
    for (int i = 0; i < 20; i++) {
        fds[i] = guest_dial(&a, i % 2 ? 49983 : 0, NULL);
        expect(fds[i], "ping", "pong");
    }
    double t0 = atof(ask(fds[0], "uptime"));
    OK(guest_snapshot(&a, "old", true, false, NULL, &e), e);
    guest_kill(&a);
    restore(&b, &(struct snapshot_files){
                    .state = "old.state", .memory = "base.mem", .deltas = {"old.mem"}, .layer = "old.layer"});
    int fd = guest_dial(&b, 49983, NULL);
    double t1 = atof(ask(fd, "uptime"));
    if (t1 < t0 || t1 > t0 + 5)
        FAIL("uptime went from %f to %f", t0, t1);
    for (int i = 0; i < 20; i++) {
        char c;
        CHECK(read(fds[i], &c, 1) <= 0);
        close(fds[i]);
    }
    close(fd);
    guest_end(&b);
}

static void working_set(void)
{
    Cube__Vmm__V1__Request q = CUBE__VMM__V1__REQUEST__INIT;
    Cube__Vmm__V1__WorkingSet w = CUBE__VMM__V1__WORKING_SET__INIT;
    struct err e = {0};
    struct guest g;

    copy_file(in_tmp("base.layer.copy"), in_tmp("ws.layer"));
    restore(&g, &(struct snapshot_files){.state = "base.state", .memory = "base.mem", .layer = "ws.layer"});
    int fd = guest_dial(&g, 49983, NULL);
    expect(fd, "ping", "pong");
    int ws = file_new("ws");
    q.op_case = CUBE__VMM__V1__REQUEST__OP_WORKING_SET;
    q.working_set = &w;
    OK(vmm_call(&g.c, &q, &ws, 1, NULL, &e), e);
    guest_end(&g);
    close(fd);
    close(ws);
    restore(&g, &(struct snapshot_files){
                    .state = "base.state", .memory = "base.mem", .layer = "ws.layer", .working_set = "ws"});
    fd = guest_dial(&g, 49983, NULL);
    expect(fd, "check", "good 8");
    guest_end(&g);
    close(fd);
}

/* A process that was prepared for another size, two vCPUs, RAM in a file that is mapped shared while the
 * template is made. */
static void other_sizes(void)
{
    Cube__Vmm__V1__SnapshotDone done;
    struct err e = {0};
    struct guest g;

    guest_spawn(&g, 512, 1);
    g.memory_mib = 384;
    g.vcpus = 2;
    g.memory_file = "two.mem";
    guest_boot(&g, "two.layer");
    int fd = guest_dial(&g, 0, NULL);
    expect(fd, "cpus", "2");
    expect(fd, "dirty 30", "ok");
    OK(guest_snapshot(&g, "two", false, false, &done, &e), e);
    CHECK(done.memory_bytes == 384u << 20);
    guest_kill(&g);
    close(fd);
    for (int i = 0; i < 5; i++) {
        copy_file(in_tmp("two.layer"), in_tmp("two2.layer"));
        guest_spawn(&g, i % 2 ? 512 : 384, i % 2 ? 1 : 2);
        g.memory_mib = 384;
        g.vcpus = 2;
        OK(guest_restore(
               &g, &(struct snapshot_files){.state = "two.state", .memory = "two.mem", .layer = "two2.layer"},
               &e, NULL),
           e);
        fd = guest_dial(&g, 49983, NULL);
        expect(fd, "check", "good 30");
        expect(fd, "cpus", "2");
        CHECK(strlen(ask(fd, "write /data/z 4 %d", i)) > 8);
        guest_end(&g);
        close(fd);
    }
    /* A guest of another size than the snapshot's is refused. */
    guest_spawn(&g, 384, 1);
    CHECK(guest_restore(
              &g, &(struct snapshot_files){.state = "two.state", .memory = "two.mem", .layer = "two2.layer"},
              &e, NULL) < 0);
    printf("one vCPU instead of two: %s\n", e.msg);
    guest_end(&g);
}

int main(int argc, char **argv)
{
    harness_start(argc, argv, "snapshot");
    make_template();
    clones_go_on();
    chain();
    live();
    full_again();
    memory_returns();
    damage();
    full_disk();
    old_connections();
    working_set();
    other_sizes();
    printf("snapshot: all good\n");
    return 0;
}
