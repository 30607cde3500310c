/* The log of a sandbox, whose guest writes what it likes: number per second and bytes on the disk are
 * bounded. */
#include "tests/unit/node/check.h"

#include "lib/base/clock.h"
#include "node/daemon/eventlog.h"
#include "node/daemon/sandbox.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX (512 << 10)
#define LONGEST (16 << 10) /* the longest, all of it escaped */
#define RATE 200

static struct node node;
static struct sandbox sandbox = {.node = &node};

static int setup(void **state)
{
    static char dir[] = "/tmp/cube-eventlog-XXXXXX";
    *state = mkdtemp(dir);
    node.sandboxes_fd = open(dir, O_DIRECTORY | O_CLOEXEC);
    snprintf(sandbox.id, sizeof sandbox.id, "i0eventlog00000000000");
    sandbox.log = eventlog_new(&node, sandbox.id);
    return mkdirat(node.sandboxes_fd, sandbox.id, 0700);
}

static void forget(const char *file)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%s", sandbox.id, file);
    unlinkat(node.sandboxes_fd, path, 0);
}

static int teardown(void **state)
{
    forget("events");
    forget("events.old");
    unlinkat(node.sandboxes_fd, sandbox.id, AT_REMOVEDIR);
    eventlog_free(sandbox.log);
    close(node.sandboxes_fd);
    return rmdir(*state);
}

static off_t size_of(const char *file)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", sandbox.id, file);
    return fstatat(node.sandboxes_fd, path, &st, 0) == 0 ? st.st_size : 0;
}

static size_t entries(const char *search)
{
    Cube__Master__V1__ReadLogRequest req = CUBE__MASTER__V1__READ_LOG_REQUEST__INIT;
    Cube__Master__V1__ReadLogReply reply;
    req.search = (char *)search;
    req.limit = 1000;
    assert_int_equal(eventlog_read(sandbox.log, &req, &reply, NULL), 0);
    size_t n = reply.n_entries;
    eventlog_reply_free(&reply);
    return n;
}

static void a_flood_meets_the_rate(void **state)
{
    Cube__Init__V1__Event ev = CUBE__INIT__V1__EVENT__INIT;
    ev.kind = ev.message = (char *)"flood";
    int64_t first = clock_realtime_ms() / 1000;
    for (int i = 0; i < 5000; i++)
        eventlog_add_guest(&sandbox, &ev);
    int64_t seconds = clock_realtime_ms() / 1000 - first + 1;
    if (seconds < 5) /* else this machine stood still, and they had the time */
        assert_in_range(entries("flood"), RATE, RATE * seconds);
}

static void its_files_have_an_end(void **state)
{
    static char text[1 << 20];
    memset(text, 1, sizeof text - 1); /* each becomes six bytes */
    for (int i = 0; i < 400; i++) {
        eventlog_add(sandbox.log, clock_realtime_ms(), "info", text);
        assert_in_range(size_of("events"), 0, FILE_MAX + LONGEST);
    }
    assert_in_range(size_of("events.old"), FILE_MAX, FILE_MAX + LONGEST);
    assert_true(entries("\1") > FILE_MAX / LONGEST); /* and they are readable */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_flood_meets_the_rate),
                                       cmocka_unit_test(its_files_have_an_end)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
