/* The catalog's journal: several masters append to one file and rewrite it, and what it says stays the same.
 */
#include "lib/base/buf.h"
#include "lib/base/log.h"
#include "master/journal.h"
#include "master/journal_state.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "proto/master.pb-c.h"

static char dir[64], path[128];

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/cube-journal-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/catalog.journal", dir);
    return 0;
}

static int teardown(void **state)
{
    char cmd[128];
    (void)state;
    umount2(dir, MNT_DETACH); /* of the test of a full disk, when it failed */
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    return system(cmd);
}

static struct journal *opened(int64_t growth)
{
    struct err e = {0};
    struct journal *j = journal_open(path, &e);
    assert_non_null(j);
    j->growth = growth;
    return j;
}

static void closed(struct journal *j)
{
    free(j->nodes);
    free(j->path);
    free(j);
}

static void append(struct journal *j, const char *kind, const void *payload, size_t n)
{
    struct err e = {0};
    if (journal_append(j, kind, payload, n, &e) < 0)
        fail_msg("%s", e.msg);
}

static void append_text(struct journal *j, const char *kind, const char *text)
{
    append(j, kind, text, strlen(text));
}

/* A key's entry: its digest, which is its name, and 40 bytes of a record. */
static void append_key(struct journal *j, int writer, int number)
{
    char key[105];
    snprintf(key, sizeof key, "%032d%032d%040d", writer, number, number);
    append(j, "key", key, 104);
}

static void append_team(struct journal *j, const char *id, const char *name)
{
    Cube__Master__V1__Team t = CUBE__MASTER__V1__TEAM__INIT;
    uint8_t bytes[256];
    t.team_id = (char *)id;
    t.name = (char *)name;
    append(j, "team", bytes, cube__master__v1__team__pack(&t, bytes));
}

/* What is alive, one "kind payload" a line, in the order of the file. */
static char *alive(void)
{
    struct journal_state s;
    struct err e = {0};
    struct buf b = {0};
    char id[JOURNAL_ID_LEN + 1];
    journal_state_start(&s);
    assert_int_equal(journal_read(path, id, journal_state_add, &s, &e), 0);
    for (size_t i = 0; i < s.n; i++)
        if (!s.v[i].dead)
            journal_line(&b, s.v[i].kind, s.v[i].payload, s.v[i].n);
    journal_state_free(&s);
    char *text = strdup(buf_cstr(&b));
    buf_free(&b);
    return text;
}

static int64_t file_size(void)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

static void test_rewriting_keeps_what_is_alive(void **state)
{
    (void)state;
    struct journal *j = opened(0); /* not by itself */
    char id[JOURNAL_ID_LEN + 1];
    snprintf(id, sizeof id, "%s", journal_id(j));
    append_team(j, "t1", "first");
    append_team(j, "t2", "other");
    append_team(j, "t1", "second");
    append_text(j, "node", "n1");
    append_text(j, "node", "n2");
    append_text(j, "unnode", "n1");
    append_text(j, "later-version", "what this one does not know");
    append_text(j, "later-version", "what this one does not know"); /* said twice, kept twice */
    for (int i = 0; i < 20; i++)
        append_key(j, 0, i);
    for (int i = 0; i < 20; i++) {
        char digest[65];
        snprintf(digest, sizeof digest, "%032d%032d", 0, i);
        if (i % 2)
            append_text(j, "unkey", digest);
    }
    append_key(j, 0, 3); /* made again after its end */
    /* The writer that dies in its line leaves a torn one. */
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    assert_int_equal(write(fd, "0123", 4), 4);
    close(fd);
    char *before = alive();
    int64_t size = file_size();
    journal_compact(j, size);
    char *after = alive();
    assert_string_equal(before, after);
    assert_true(file_size() < size);
    assert_int_equal((int64_t)strlen(after) + (int64_t)strlen(JOURNAL_HEADER) + JOURNAL_ID_LEN + 1,
                     file_size());
    free(before);
    free(after);
    append_text(j, "node", "n3");
    closed(j);
    j = opened(0);
    assert_string_equal(journal_id(j), id);
    assert_int_equal(j->node_count, 2);
    assert_string_equal(j->nodes[0], "n2");
    assert_string_equal(j->nodes[1], "n3");
    closed(j);
}

#define WRITERS 3
#define KEYS 400

static void test_writers_rewrite_under_each_other(void **state)
{
    (void)state;
    closed(opened(0));
    pid_t child[WRITERS];
    for (int w = 0; w < WRITERS; w++) {
        child[w] = fork();
        assert_true(child[w] >= 0);
        if (child[w])
            continue;
        struct journal *j = opened(2048);
        for (int i = 0; i < KEYS; i++) {
            append_key(j, w + 1, i);
            char digest[65];
            snprintf(digest, sizeof digest, "%032d%032d", w + 1, i);
            if (i % 40)
                append_text(j, "unkey", digest);
        }
        closed(j);
        _exit(0);
    }
    for (int w = 0; w < WRITERS; w++) {
        int status;
        assert_int_equal(waitpid(child[w], &status, 0), child[w]);
        assert_int_equal(status, 0);
    }
    struct journal_state s;
    struct err e = {0};
    char id[JOURNAL_ID_LEN + 1];
    int found[WRITERS + 1] = {0};
    journal_state_start(&s);
    assert_int_equal(journal_read(path, id, journal_state_add, &s, &e), 0);
    for (size_t i = 0; i < s.n; i++) {
        if (s.v[i].dead)
            continue;
        int writer, number;
        assert_int_equal(sscanf(s.v[i].name, "%32d%32d", &writer, &number), 2);
        assert_in_range(writer, 1, WRITERS);
        assert_int_equal(number % 40, 0);
        found[writer]++;
    }
    for (int w = 1; w <= WRITERS; w++)
        assert_int_equal(found[w], KEYS / 40);
    journal_state_free(&s);
    /* 30 living keys of some 230 bytes; without the rewriting it were 400 kB. */
    assert_in_range(file_size(), 1, 40000);
    struct stat st;
    char tmp[160];
    snprintf(tmp, sizeof tmp, "%s.new", path);
    assert_int_equal(stat(tmp, &st), -1);
}

/* kill -9 in the middle of appending and rewriting: what was acknowledged is there, and the next one goes on.
 */
static void test_a_writer_is_killed_at_any_moment(void **state)
{
    (void)state;
    enum { ROUNDS = 40 };
    int told = 0;
    closed(opened(0));
    for (int round = 0; round < ROUNDS; round++) {
        int fd[2], number;
        assert_int_equal(pipe(fd), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            struct journal *j = opened(512);
            for (int i = told;; i++) {
                append_text(j, "node", "n1");
                append_key(j, 1, i);
                if (write(fd[1], &i, sizeof i) != sizeof i)
                    _exit(1);
            }
        }
        close(fd[1]);
        for (int i = 0; i <= round % 7; i++) {
            assert_int_equal(read(fd[0], &number, sizeof number), sizeof number);
            told = number + 1;
        }
        usleep((useconds_t)(round * 97 % 1500));
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        while (read(fd[0], &number, sizeof number) == sizeof number)
            told = number + 1;
        close(fd[0]);
        struct journal_state s;
        struct err e = {0};
        char id[JOURNAL_ID_LEN + 1];
        int keys = 0;
        journal_state_start(&s);
        assert_int_equal(journal_read(path, id, journal_state_add, &s, &e), 0);
        for (size_t i = 0; i < s.n; i++)
            keys += !s.v[i].dead && strcmp(s.v[i].kind, "key") == 0;
        journal_state_free(&s);
        assert_in_range(keys, told, told + 1);
        told = keys;
    }
}

static void test_a_link_stays_one(void **state)
{
    (void)state;
    char real[160], buf[160];
    closed(opened(0));
    snprintf(real, sizeof real, "%s/shared", dir);
    assert_int_equal(rename(path, real), 0);
    assert_int_equal(symlink(real, path), 0);
    struct journal *j = opened(256);
    for (int i = 0; i < 40; i++)
        append_text(j, i % 2 ? "unnode" : "node", "n1");
    closed(j);
    assert_true(readlink(path, buf, sizeof buf) > 0);
    assert_true(file_size() < 600);
}

static void test_what_cannot_be_rewritten_is_kept(void **state)
{
    (void)state;
    char tmp[160];
    struct journal *j = opened(256);
    snprintf(tmp, sizeof tmp, "%s.new", path);
    assert_int_equal(mkdir(tmp, 0700), 0);
    for (int i = 0; i < 40; i++)
        append_key(j, 1, i);
    char *text = alive();
    assert_int_equal(rmdir(tmp), 0);
    append_text(j, "node", "n1");
    closed(j);
    size_t lines = 0;
    for (const char *p = text; (p = strchr(p, '\n')); p++)
        lines++;
    assert_int_equal(lines, 40);
    free(text);
}

/* How many keys the file has, which must be the first ones of writer 1. */
static int keys_alive(void)
{
    struct journal_state s;
    struct err e = {0};
    char id[JOURNAL_ID_LEN + 1];
    int keys = 0, writer, number;
    journal_state_start(&s);
    assert_int_equal(journal_read(path, id, journal_state_add, &s, &e), 0);
    for (size_t i = 0; i < s.n; i++) {
        if (s.v[i].dead || strcmp(s.v[i].kind, "key") != 0)
            continue;
        assert_int_equal(sscanf(s.v[i].name, "%32d%32d", &writer, &number), 2);
        assert_int_equal(number, keys++);
    }
    journal_state_free(&s);
    return keys;
}

static int append_next(struct journal *j, int number, struct err *e)
{
    char key[105];
    snprintf(key, sizeof key, "%032d%032d%040d", 1, number, number);
    memset(e, 0, sizeof *e);
    return journal_append(j, "key", key, 104, e);
}

static int append_node(struct journal *j, const char *kind, struct err *e)
{
    memset(e, 0, sizeof *e);
    return journal_append(j, kind, "n1", 2, e);
}

/* The disk fills up while entries are appended and the file is rewritten: what was acknowledged stays, what
 * was refused does not come back, the error says why, and with room again all goes on. */
static void test_a_full_disk(void **state)
{
    (void)state;
    char tmp[160];
    struct err e = {0};
    struct stat st;
    /* 32 blocks: the journal, the rewritten one beside it, and what fills them up */
    if (mount("none", dir, "tmpfs", 0, "size=128k") < 0)
        skip();
    struct journal *j = opened(4096);
    snprintf(tmp, sizeof tmp, "%s.new", path);
    int told = 0;
    for (int left = 0; left < 40; left++) { /* how much of the last blocks is free when it is filled up */
        char fill[160];
        snprintf(fill, sizeof fill, "%s/fill", dir);
        int fd = open(fill, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        while (write(fd, path, sizeof path) > 0)
            ;
        close(fd);
        int refused = 0;
        for (int i = 0; i < 2000 && !refused; i++) {
            if (i % 3 == left % 3 && told < 100)
                refused = append_next(j, told, &e) < 0 || !++told;
            else
                refused = append_node(j, i % 2 ? "unnode" : "node", &e) < 0;
            if (left % 4 == 3 && i == left % 5) /* rewritten when there is no room for a second file */
                journal_compact(j, file_size());
            assert_int_equal(keys_alive(), told);
        }
        assert_true(refused);
        assert_int_equal(e.code, ERR_STORAGE_FULL);
        assert_non_null(strstr(e.msg, "No space left on device"));
        int64_t size = file_size();
        assert_true(append_next(j, told, &e) < 0);
        assert_int_equal(file_size(), size); /* and nothing half is in it */
        assert_int_equal(keys_alive(), told);
        assert_int_equal(stat(tmp, &st), -1);
        assert_int_equal(unlink(fill), 0);
        assert_int_equal(append_node(j, "unnode", &e), 0);
        assert_int_equal(keys_alive(), told);
    }
    journal_compact(j, file_size());
    assert_int_equal(keys_alive(), told);
    assert_true(told > 20);
    assert_in_range(file_size(), 1, 240 * told + 400);
    closed(j);
    j = opened(0);
    closed(j);
    assert_int_equal(umount(dir), 0);
}

int main(void)
{
    log_init("test", LOG_ERROR + 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_rewriting_keeps_what_is_alive, setup, teardown),
        cmocka_unit_test_setup_teardown(test_writers_rewrite_under_each_other, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_writer_is_killed_at_any_moment, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_link_stays_one, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_cannot_be_rewritten_is_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_full_disk, setup, teardown),
    };
    return cmocka_run_group_tests_name("master-journal", tests, NULL, NULL);
}
