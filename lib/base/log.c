/* Owns the log line; invariant: one line is one write of valid JSON, whatever bytes the message holds. */
#include "lib/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *prog_name = "cube";
static enum log_level least_level = LOG_INFO;
static const char *const level_names[] = {"debug", "info", "warn", "error"};

struct line {
    char data[4096];
    size_t len;
};

void log_init(const char *prog, enum log_level least)
{
    prog_name = prog;
    least_level = least;
}

bool log_level_parse(const char *s, enum log_level *out)
{
    for (unsigned i = 0; i < sizeof level_names / sizeof *level_names; i++) {
        if (strcmp(s, level_names[i]) == 0) {
            *out = (enum log_level)i;
            return true;
        }
    }
    return false;
}

/* Room for the closing brace and newline is always kept. */
static void put(struct line *l, const char *s, size_t n)
{
    size_t room = sizeof l->data - 8 - l->len;
    if (n > room)
        n = room;
    memcpy(l->data + l->len, s, n);
    l->len += n;
}

static void put_escaped(struct line *l, const char *s)
{
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        char esc[8];
        if (sizeof l->data - 8 - l->len < sizeof esc + 1)
            return; /* never half an escape */
        if (c == '"' || c == '\\') {
            esc[0] = '\\';
            esc[1] = (char)c;
            put(l, esc, 2);
        } else if (c < 0x20 || c >= 0x7f) {
            put(l, esc, (size_t)snprintf(esc, sizeof esc, "\\u%04x", c));
        } else {
            put(l, s, 1);
        }
    }
}

static void put_field(struct line *l, const char *name, const char *value)
{
    if (!value || !*value || sizeof l->data - 8 - l->len < 64)
        return;
    put(l, ",\"", 2);
    put(l, name, strlen(name));
    put(l, "\":\"", 3);
    put_escaped(l, value);
    put(l, "\"", 1);
}

void log_line(enum log_level level, const struct log_about *about, const char *fmt, ...)
{
    if (level < least_level)
        return;
    struct line l = {.len = 0};
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    struct tm tm;
    gmtime_r(&ts.tv_sec, &tm);
    char head[96], msg[2048];
    size_t n = strftime(head, sizeof head, "{\"ts\":\"%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(head + n, sizeof head - n, ".%03ldZ\",\"level\":\"%s\"", ts.tv_nsec / 1000000,
                          level_names[level]);
    put(&l, head, n);
    put_field(&l, "prog", prog_name);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    if (about && about->sandbox)
        put_field(&l, "sandbox", about->sandbox);
    if (about && about->gen) {
        n = (size_t)snprintf(head, sizeof head, ",\"gen\":%llu", (unsigned long long)about->gen);
        put(&l, head, n);
    }
    if (about && about->trace)
        put_field(&l, "trace", about->trace);
    if (about && about->err && about->err->code != ERR_OK) {
        put_field(&l, "error_code", err_code_name(about->err->code));
        put_field(&l, "error", about->err->msg);
    }
    put_field(&l, "msg", msg);
    l.data[l.len++] = '}';
    l.data[l.len++] = '\n';
    ssize_t r = write(STDERR_FILENO, l.data, l.len);
    (void)r; /* nowhere left to report to */
}
