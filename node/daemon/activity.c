/* Owns the asking. Invariant: a relay that is away or says nonsense changes nothing; figures of another
 * generation are ignored. */
#include "node/daemon/activity.h"

#include "lib/base/buf.h"
#include "lib/base/clock.h"
#include "lib/net/fiber.h"
#include "node/daemon/sandbox.h"
#include "node/daemon/vm_files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ASK_MS 1000
#define ANSWER_MS 2000
#define ANSWER_MAX (1u << 20)

static void forget(struct sandbox *sb, void *data)
{
    (void)data;
    sb->open_streams = 0;
}

static void apply(struct node *n, const char *line)
{
    char id[24];
    unsigned long long gen, bytes;
    unsigned open;
    long long idle;
    if (sscanf(line, "%23s %llu %u %llu %lld", id, &gen, &open, &bytes, &idle) != 5)
        return;
    struct sandbox *sb = sandbox_find(n, id);
    if (!sb || sb->gen != gen || sb->state != SB_STATE(RUNNING))
        return;
    if (idle < 0)
        return; /* no byte ever: opened ahead of need */
    sb->open_streams = open;
    int64_t at = open ? clock_realtime_ms() : clock_realtime_ms() - idle;
    if (at > sb->last_activity_ms) {
        sb->last_activity_ms = at;
        sb->changed = true;
    }
    if (open && !*sb->awake) {
        sb->awake = "stream";
        sb->changed = true;
    } else if (!open && strcmp(sb->awake, "stream") == 0) {
        sb->awake = "";
        sb->changed = true;
    }
}

static bool ask(const char *run_dir, struct buf *out)
{
    char path[512];
    snprintf(path, sizeof path, "%s/relay", run_dir);
    int dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int fd = dir < 0 ? -1 : socket_connect_at(dir, "activity.sock", NULL);
    if (dir >= 0)
        close(dir);
    if (fd < 0)
        return false;
    int64_t end = clock_mono_us() + ANSWER_MS * 1000;
    bool whole = false;
    while (!whole && out->len < ANSWER_MAX && buf_reserve(out, 4096)) {
        ssize_t n = recv(fd, out->data + out->len, 4096, MSG_DONTWAIT);
        if (n > 0)
            out->len += (size_t)n;
        else if (n == 0)
            whole = true;
        else if (errno != EAGAIN && errno != EINTR)
            break;
        else if (clock_mono_us() >= end || !fiber_wait_readable(fd, ANSWER_MS))
            break;
    }
    close(fd);
    return whole;
}

static void asker(void *arg)
{
    struct node *n = arg;
    while (!n->stopping) {
        fiber_sleep(ASK_MS);
        if (!n->ready || sandbox_live_count(n) == 0)
            continue;
        struct buf text = {0};
        if (ask(n->cfg.run_dir, &text)) {
            sandbox_each(n, forget, NULL);
            char *save = NULL;
            buf_cstr(&text);
            for (char *line = text.data ? strtok_r(text.data, "\n", &save) : NULL; line;
                 line = strtok_r(NULL, "\n", &save))
                apply(n, line);
        }
        buf_free(&text);
    }
}

void activity_start(struct node *n)
{
    fiber_spawn(asker, n);
}
