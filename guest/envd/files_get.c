/* Downloads. One job opens the file, decides the answer and sends it with sendfile until the socket is full;
 * then the loop waits for room. Invariant: exactly the announced number of bytes is sent, or the connection
 * is closed. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#include "guest/envd/accept.h"
#include "guest/envd/conn.h"
#include "guest/envd/content_type.h"
#include "guest/envd/files.h"
#include "guest/envd/fs.h"
#include "guest/envd/fs_path.h"
#include "guest/envd/jobs.h"
#include "guest/envd/oplog.h"
#include "guest/envd/signature.h"
#include "guest/envd/state.h"

#define SMALL (64 * 1024)       /* read and sent together with the head */
#define TURN ((size_t)32 << 20) /* bytes before the worker serves somebody else */
#define STALL_MS (600 * 1000)
#define UNSIZED_MAX ((size_t)4 << 20) /* files that say 0 bytes but have content (/proc) */
#define ROOM_MS 2
#define GZIP_CHUNK (32 * 1024)

enum progress { GOING, WAITING, FINISHED, BROKEN, REFUSED };

struct download {
    struct job job;
    struct conn *c;
    struct user user;
    char path[PATH_MAX];
    int fd;
    struct stat st;
    enum encoding encoding;
    enum progress progress;
    int status; /* 412; 416: err.msg is the size; 0: the refusal is in err */
    struct err err;
    struct buf out; /* head, content of unsized files, gzip chunks */
    size_t out_off;
    off_t at;
    uint64_t left; /* bytes of the file from `at` on */
    z_stream z;
    bool z_on, z_done;
};

static void download_free(struct download *d)
{
    if (d->fd >= 0)
        close(d->fd);
    if (d->z_on)
        deflateEnd(&d->z);
    buf_free(&d->out);
    free(d);
}

static int open_op(void *arg, struct err *e)
{
    struct download *d = arg;
    d->fd = fs_open(d->path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (d->fd < 0 && errno == ENOENT) {
        err_set(e, ERR_NOT_FOUND, "path '%s' does not exist", d->path);
        e->sys = ENOENT;
        return -1;
    }
    if (d->fd < 0 || fstat(d->fd, &d->st) < 0)
        return err_sys(e, ERR_FORBIDDEN, "error opening path '%s'", d->path);
    if (!S_ISREG(d->st.st_mode)) {
        err_set(e, ERR_INVALID,
                S_ISDIR(d->st.st_mode) ? "path '%s' is a directory" : "path '%s' is not a regular file",
                d->path);
        e->sys = EISDIR;
        return -1;
    }
    return 0;
}

static bool parse_http_date(const char *s, time_t *out)
{
    struct tm tm = {0};
    const char *end = strptime(s, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    if (!end || *end)
        return false;
    *out = timegm(&tm);
    return true;
}

static bool digits(const char **s, uint64_t *out)
{
    size_t n = strspn(*s, "0123456789");
    if (!n || n > 18)
        return false;
    *out = strtoull(*s, NULL, 10);
    *s += n;
    return true;
}

/* One byte range. Returns 1 = use [*from, *to], 0 = send everything, -1 = not satisfiable. Several ranges are
 * answered with everything, which RFC 9110 §14.2 allows. */
static int range_parse(const char *h, uint64_t size, uint64_t *from, uint64_t *to)
{
    if (strncasecmp(h, "bytes=", 6) || strchr(h, ','))
        return 0;
    const char *p = h + 6;
    uint64_t n;
    if (*p == '-') {
        p++;
        if (!digits(&p, &n) || *p)
            return 0;
        if (!n || !size)
            return -1;
        *from = n >= size ? 0 : size - n;
        *to = size - 1;
        return 1;
    }
    if (!digits(&p, from) || *p++ != '-')
        return 0;
    *to = size ? size - 1 : 0;
    if (*p) {
        if (!digits(&p, &n) || *p || n < *from)
            return 0;
        if (n < *to)
            *to = n;
    }
    return *from >= size ? -1 : 1;
}

static void disposition(const char *name, char *out, size_t cap)
{
    bool token = *name, ascii = true;
    for (const char *p = name; *p; p++) {
        unsigned char u = (unsigned char)*p;
        ascii = ascii && u >= 32 && u < 127;
        token = token && u > 32 && u < 127 && !strchr("()<>@,;:\\\"/[]?=", *p);
    }
    size_t n;
    if (token) {
        snprintf(out, cap, "inline; filename=%s", name);
        return;
    }
    if (ascii) {
        n = (size_t)snprintf(out, cap, "inline; filename=\"");
        for (const char *p = name; *p && n + 4 < cap; p++) {
            if (*p == '"' || *p == '\\')
                out[n++] = '\\';
            out[n++] = *p;
        }
        snprintf(out + n, cap - n, "\"");
        return;
    }
    n = (size_t)snprintf(out, cap, "inline; filename*=utf-8''");
    for (const char *p = name; *p && n + 4 < cap; p++)
        n += (size_t)snprintf(out + n, cap - n, "%%%02X", (unsigned char)*p);
}

/* We give out no entity tags, so only "*" matches (RFC 9110 §13.1). */
static bool precondition_fails(struct download *d)
{
    const char *match = http_header(&d->c->req->http, "if-match");
    const char *since = http_header(&d->c->req->http, "if-unmodified-since");
    time_t t;
    if (match)
        return strcmp(match, "*") != 0;
    return since && parse_http_date(since, &t) && d->st.st_mtime > t;
}

static bool not_modified(struct download *d)
{
    const char *since = http_header(&d->c->req->http, "if-modified-since");
    const char *none = http_header(&d->c->req->http, "if-none-match");
    time_t t;
    if (none && !strcmp(none, "*"))
        return true;
    return since && !none && parse_http_date(since, &t) && d->st.st_mtime <= t;
}

static bool range_applies(struct download *d)
{
    const char *cond = http_header(&d->c->req->http, "if-range");
    time_t t;
    return !cond || (parse_http_date(cond, &t) && d->st.st_mtime == t);
}

/* Content of files whose size is a lie. */
static void unsized_read(struct download *d, struct buf *content)
{
    while (content->len < UNSIZED_MAX && buf_reserve(content, SMALL)) {
        ssize_t n = read(d->fd, content->data + content->len, SMALL);
        if (n <= 0)
            break;
        content->len += (size_t)n;
    }
}

static void head_make(struct download *d)
{
    struct conn *c = d->c;
    char extra[3000], disp[1500], when[64] = "", range[96] = "", sniff[512];
    const char *name = strrchr(d->path, '/') + 1, *h = http_header(&c->req->http, "range");
    _cleanup_buf_ struct buf content = {0};
    uint64_t size = (uint64_t)d->st.st_size, from = 0, to = 0;
    struct tm tm;
    ssize_t n = pread(d->fd, sniff, sizeof(sniff), 0);
    if (!size && n > 0) {
        unsized_read(d, &content);
        size = content.len;
    }
    if (gmtime_r(&d->st.st_mtime, &tm))
        strftime(when, sizeof(when), "%a, %d %b %Y %H:%M:%S GMT", &tm);
    disposition(name, disp, sizeof(disp));
    int status = 200, part = h && range_applies(d) ? range_parse(h, size, &from, &to) : 0;
    d->left = size;
    if (precondition_fails(d)) {
        d->progress = REFUSED;
        d->status = 412;
        return;
    }
    if (part < 0) {
        d->progress = REFUSED;
        d->status = 416;
        snprintf(d->err.msg, sizeof(d->err.msg), "%llu", (unsigned long long)size);
        return;
    }
    if (part > 0) {
        status = 206;
        d->encoding = ENCODING_IDENTITY;
        d->at = (off_t)from;
        d->left = to - from + 1;
        snprintf(range, sizeof(range), "Content-Range: bytes %llu-%llu/%llu\r\n", (unsigned long long)from,
                 (unsigned long long)to, (unsigned long long)size);
    }
    if (not_modified(d)) {
        status = 304;
        d->left = 0;
        d->encoding = ENCODING_IDENTITY;
    }
    bool gzip = d->encoding == ENCODING_GZIP;
    snprintf(extra, sizeof(extra),
             "Content-Disposition: %s\r\nVary: Accept-Encoding\r\nLast-Modified: %s\r\n%s%s", disp, when,
             gzip ? "Content-Encoding: gzip\r\n" : "Accept-Ranges: bytes\r\n", range);
    conn_head(c, &d->out, status, status == 304 ? NULL : content_type_of(name, sniff, n > 0 ? (size_t)n : 0),
              extra, gzip ? -1 : (int64_t)d->left);
    if (gzip) {
        d->z_on = deflateInit2(&d->z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK;
        d->progress = d->z_on && lseek(d->fd, 0, SEEK_SET) == 0 ? GOING : BROKEN;
        d->left = 0;
        return;
    }
    if (content.len) {
        buf_append(&d->out, content.data + d->at, d->left);
        d->left = 0;
    }
}

/* Compresses the next piece into `out` as one HTTP chunk. */
static enum progress gzip_more(struct download *d)
{
    unsigned char in[GZIP_CHUNK], out[GZIP_CHUNK + 1024];
    char size[24];
    if (d->z_done)
        return FINISHED;
    ssize_t n = read(d->fd, in, sizeof(in));
    if (n < 0)
        return BROKEN;
    buf_reset(&d->out);
    d->out_off = 0;
    d->z.next_in = in;
    d->z.avail_in = (uInt)n;
    int rc;
    do {
        d->z.next_out = out;
        d->z.avail_out = sizeof(out);
        rc = deflate(&d->z, n ? Z_NO_FLUSH : Z_FINISH);
        size_t made = sizeof(out) - d->z.avail_out;
        if (made && d->c->req->http.minor) {
            snprintf(size, sizeof(size), "%zx\r\n", made);
            buf_puts(&d->out, size);
        }
        buf_append(&d->out, out, made);
        if (made && d->c->req->http.minor)
            buf_puts(&d->out, "\r\n");
    } while (d->z.avail_out == 0 || (!n && rc == Z_OK));
    if (!n) {
        d->z_done = true;
        if (d->c->req->http.minor)
            buf_puts(&d->out, "0\r\n\r\n");
    }
    return d->out.failed ? BROKEN : GOING;
}

/* Sends the rest of `out` and then `n` bytes of the file that are in the worker's buffer; a reader that keeps
 * up is not worth a trip through the loop. What the socket does not take is read from the file again later,
 * so that slow readers hold no memory. */
static enum progress gather_send(struct download *d, const char *data, size_t n, size_t *turn)
{
    int sock = d->c->ev.fd;
    while (n || d->out.len > d->out_off) {
        struct iovec v[2] = {{d->out.data ? d->out.data + d->out_off : NULL, d->out.len - d->out_off},
                             {(char *)data, n}};
        struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
        ssize_t sent = sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL | (d->left > n ? MSG_MORE : 0));
        struct pollfd room = {.fd = sock, .events = POLLOUT};
        if (sent < 0 && (errno == EINTR || (errno == EAGAIN && poll(&room, 1, ROOM_MS) > 0)))
            continue;
        if (sent < 0)
            return errno == EAGAIN ? WAITING : BROKEN;
        size_t head = (size_t)sent < v[0].iov_len ? (size_t)sent : v[0].iov_len, body = (size_t)sent - head;
        d->out_off += head;
        data += body;
        n -= body;
        d->at += (off_t)body;
        d->left -= body;
        *turn += (size_t)sent;
    }
    buf_free(&d->out);
    d->out_off = 0;
    return GOING;
}

/* Small files leave together with their head. vsock has no sendpage: the kernel would send the file page by
 * page, a packet of 4 KiB each, while large reads fill its packets. */
static enum progress copy_some(struct download *d, size_t *turn)
{
    size_t want = d->left < JOB_BUFFER ? d->left : JOB_BUFFER;
    char *data = job_buffer();
    ssize_t n = data ? pread(d->fd, data, want, d->at) : -1;
    return n > 0 ? gather_send(d, data, (size_t)n, turn) : BROKEN;
}

static enum progress send_some(struct download *d, size_t *turn)
{
    int sock = d->c->ev.fd;
    if (d->left && (!d->c->local || d->left <= SMALL))
        return copy_some(d, turn);
    if (d->out.len > d->out_off)
        return gather_send(d, NULL, 0, turn);
    if (!d->left)
        return d->z_on ? gzip_more(d) : FINISHED;
    ssize_t n = sendfile(sock, d->fd, &d->at, d->left > (1u << 20) ? 1u << 20 : d->left);
    if (n > 0) {
        d->left -= (uint64_t)n;
        *turn += (size_t)n;
        return GOING;
    }
    struct pollfd room = {.fd = sock, .events = POLLOUT};
    if (n < 0 && errno == EINTR)
        return GOING;
    if (n == 0 || errno != EAGAIN)
        return BROKEN; /* 0: the file became shorter than what was announced */
    return poll(&room, 1, ROOM_MS) > 0 ? GOING : WAITING;
}

static void on_run(struct job *job)
{
    struct download *d = (struct download *)job;
    size_t turn = 0;
    if (d->fd < 0) {
        if (fs_as_user(&d->user, open_op, d, &d->err) < 0) {
            d->progress = REFUSED;
            return;
        }
        head_make(d);
        if (d->progress == REFUSED)
            return;
    }
    do {
        d->progress = send_some(d, &turn);
    } while (d->progress == GOING && turn < TURN);
}

static void on_room(struct conn *c, uint32_t events)
{
    struct download *d = c->user;
    if (events && !(events & (EPOLLERR | EPOLLHUP))) {
        jobs_submit(&d->job);
        return;
    }
    download_free(d);
    conn_response_sent(c, false);
}

static void refused(struct download *d)
{
    struct conn *c = d->c;
    char extra[64];
    conn_attach(c);
    if (d->status == 412) {
        conn_reply(c, 412, NULL, NULL, NULL, 0);
    } else if (d->status == 416) {
        snprintf(extra, sizeof(extra), "Content-Range: bytes */%.20s\r\n", d->err.msg);
        conn_reply(c, 416, "text/plain; charset=utf-8", extra, "invalid range\n", 14);
    } else {
        files_error(c, &d->err);
    }
    download_free(d);
}

static void on_done(struct job *job)
{
    struct download *d = (struct download *)job;
    struct conn *c = d->c;
    switch (d->progress) {
    case GOING:
        jobs_submit(&d->job);
        return;
    case WAITING:
        conn_wait(c, EPOLLOUT, STALL_MS, on_room);
        return;
    case REFUSED:
        refused(d);
        return;
    case FINISHED:
    case BROKEN:
        break;
    }
    bool ok = d->progress == FINISHED;
    if (ok)
        oplog_file("file_read", d->path, NULL, d->st.st_size, d->user.name);
    download_free(d);
    conn_response_sent(c, ok && !c->close_after);
}

void files_get(struct conn *c)
{
    const struct http_req *req = &c->req->http;
    char path[PATH_MAX], username[256];
    struct err e = {0};
    bool bad = false;
    if (signature_check(c, "read") < 0)
        return;
    http_query(req->query, "path", path, sizeof(path), &bad);
    http_query(req->query, "username", username, sizeof(username), &bad);
    if (bad) {
        conn_error(c, 400, "malformed query");
        return;
    }
    struct download *d = calloc(1, sizeof(*d));
    if (!d) {
        conn_error(c, 503, "out of memory");
        return;
    }
    *d = (struct download){.job = {.run = on_run, .done = on_done}, .c = c, .fd = -1};
    d->encoding = accept_encoding(http_header(req, "accept-encoding"));
    bool ok =
        files_user(c, username, &d->user) == 0; /* answers when it fails; after an answer `c` is not ours */
    if (ok && state_path(path, &d->user, d->path, &e) < 0) {
        conn_error(c, 400, "%s", e.msg);
        ok = false;
    }
    if (ok && d->encoding == ENCODING_NONE) {
        conn_error(c, 406, "no acceptable encoding: identity and gzip are supported");
        ok = false;
    }
    if (!ok) {
        free(d);
        return;
    }
    c->user = d;
    conn_detach(c);
    jobs_submit(&d->job);
}
