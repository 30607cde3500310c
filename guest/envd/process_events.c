/* The events of process streams as bytes. Output goes from the read buffer straight into the socket's buffer:
 * one pass of base64 for JSON, one copy for binary. */
#include <stdio.h>
#include <string.h>

#include "guest/envd/process.h"

static const char *const outputs[] = {"", "stdout", "stderr", "pty"};

static size_t varint_size(size_t v)
{
    size_t n = 1;
    for (; v >= 0x80; v >>= 7)
        n++;
    return n;
}

static char *put_field(char *p, unsigned num, size_t len)
{
    *p++ = (char)(num << 3 | 2);
    for (; len >= 0x80; len >>= 7)
        *p++ = (char)(len | 0x80);
    *p++ = (char)len;
    return p;
}

void event_data(struct rpc *r, unsigned output, const char *p, size_t n)
{
    if (r->codec == CODEC_JSON) {
        char head[64];
        int h = snprintf(head, sizeof(head), "{\"event\":{\"data\":{\"%s\":\"", outputs[output]);
        size_t b64 = base64_length(n);
        char *room = rpc_room(r, (size_t)h + b64 + 4);
        if (!room)
            return;
        memcpy(room, head, (size_t)h);
        base64_encode(p, n, room + h);
        memcpy(room + h + b64, "\"}}}", 4);
    } else {
        size_t data = 1 + varint_size(n) + n, event = 1 + varint_size(data) + data;
        char *room = rpc_room(r, 1 + varint_size(event) + event);
        if (!room)
            return;
        room = put_field(room, 1, event);
        room = put_field(room, 2, data);
        room = put_field(room, output, n);
        memcpy(room, p, n);
    }
    rpc_room_end(r);
}

static void send_event(struct rpc *r, const char *name, uint32_t num,
                       void (*fill)(struct msgw *, const void *), const void *arg)
{
    _cleanup_buf_ struct buf b = {0};
    struct msgw w;
    msgw_start(&w, r->codec, &b);
    msgw_open(&w, "event", 1);
    msgw_open(&w, name, num);
    if (fill)
        fill(&w, arg);
    msgw_close(&w);
    msgw_close(&w);
    msgw_end(&w);
    if (!b.failed)
        rpc_message(r, b.data, b.len);
}

static void fill_start(struct msgw *w, const void *arg)
{
    msgw_u32(w, "pid", 1, *(const uint32_t *)arg);
}

void event_start(struct rpc *r, pid_t pid)
{
    uint32_t v = (uint32_t)pid;
    send_event(r, "start", 1, fill_start, &v);
}

void event_keepalive(struct rpc *r)
{
    send_event(r, "keepalive", 4, NULL, NULL);
}

struct end {
    int code;
    bool by_signal;
};

/* Names as Go's os package prints them: clients and the CLI compare "signal: killed" (contracts/e2b.md §4.3).
 */
static void signal_text(int sig, char *out, size_t cap)
{
    static const char *const names[] = {
        [1] = "hangup",
        [2] = "interrupt",
        [3] = "quit",
        [4] = "illegal instruction",
        [5] = "trace/breakpoint trap",
        [6] = "aborted",
        [7] = "bus error",
        [8] = "floating point exception",
        [9] = "killed",
        [10] = "user defined signal 1",
        [11] = "segmentation fault",
        [12] = "user defined signal 2",
        [13] = "broken pipe",
        [14] = "alarm clock",
        [15] = "terminated",
    };
    if (sig > 0 && sig <= 15)
        snprintf(out, cap, "signal: %s", names[sig]);
    else
        snprintf(out, cap, "signal: signal %d", sig);
}

static void fill_end(struct msgw *w, const void *arg)
{
    const struct end *e = arg;
    char text[64];
    if (e->by_signal)
        signal_text(e->code, text, sizeof(text));
    else
        snprintf(text, sizeof(text), "exit status %d", e->code);
    if (e->by_signal || e->code)
        msgw_s32(w, "exitCode", 1, e->by_signal ? -1 : e->code);
    if (!e->by_signal)
        msgw_bool(w, "exited", 2, true);
    msgw_str(w, "status", 3, text);
    if (e->by_signal || e->code)
        msgw_str(w, "error", 4, text);
}

void event_end(struct rpc *r, int exit_code, bool by_signal)
{
    struct end e = {exit_code, by_signal};
    send_event(r, "end", 3, fill_end, &e);
}
