/* Uploads. A worker takes the socket over: bytes go from recv straight to the file; chunked framing, gzip and
 * multipart are peeled off on the way when they are there. Invariant: a file appears under its name only when
 * its last byte was written and the body ended as announced. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

#include "guest/envd/conn.h"
#include "guest/envd/files.h"
#include "guest/envd/fs.h"
#include "guest/envd/fs_path.h"
#include "guest/envd/jobs.h"
#include "guest/envd/multipart.h"
#include "guest/envd/oplog.h"
#include "guest/envd/signature.h"
#include "guest/envd/state.h"

#define TURN ((size_t)32 << 20)
#define STALL_MS (120 * 1000)
#define PARTS_MAX 1000
#define METADATA_KEY_MAX 246
#define METADATA_MAX 4096

struct written {
    char *path;
    uint64_t size;
};

enum progress { GOING, WAITING, FINISHED, FAILED, CUT };

struct post {
    struct job job;
    struct conn *c;
    struct user user;
    struct arena arena;
    char query_path[PATH_MAX];
    bool has_path, multipart, gzip, z_on, z_end, open;
    z_stream z;
    struct multipart mp;
    struct upload up;
    char target[PATH_MAX];
    uint64_t size;
    struct pair *metadata;
    size_t n_metadata;
    struct written *files;
    size_t n_files;
    enum progress progress;
    struct err err;
    bool begun;
};

static void post_free(struct post *p)
{
    if (p->open)
        upload_close(&p->up);
    if (p->z_on)
        inflateEnd(&p->z);
    arena_free(&p->arena);
    free(p);
}

static int bad_request(struct post *p, const char *why)
{
    return err_set(&p->err, ERR_INVALID, "%s", why);
}

static int open_op(void *arg, struct err *e)
{
    struct post *p = arg;
    if (p->open)
        upload_close(&p->up);
    int rc = upload_open(&p->up, p->target, &p->user, e);
    p->open = true;
    return rc;
}

static int file_open(struct post *p, const char *path)
{
    if (state_path(path, &p->user, p->target, &p->err) < 0)
        return -1;
    for (size_t i = 0; i < p->n_files; i++)
        if (!strcmp(p->files[i].path, p->target))
            return err_set(&p->err, ERR_INVALID, "you cannot upload multiple files to the same path '%s'",
                           p->target);
    if (p->n_files == PARTS_MAX)
        return bad_request(p, "too many files in one request");
    p->size = 0;
    return fs_as_user(&p->user, open_op, p, &p->err);
}

static int publish_op(void *arg, struct err *e)
{
    struct post *p = arg;
    return upload_publish(&p->up, &p->user, p->metadata, p->n_metadata, e);
}

static int file_finish(struct post *p)
{
    if (fs_as_user(&p->user, publish_op, p, &p->err) < 0)
        return -1;
    upload_close(&p->up);
    p->open = false;
    char *path = arena_strndup(&p->arena, p->target, strlen(p->target));
    if (!path)
        return err_set(&p->err, ERR_INTERNAL, "out of memory");
    p->files[p->n_files++] = (struct written){path, p->size};
    return 0;
}

static int file_write(struct post *p, const char *data, size_t n)
{
    p->size += n;
    return upload_write(&p->up, data, n, &p->err);
}

/* Multipart callbacks. Parts of other names are read and dropped. */
static int on_part(void *arg)
{
    struct post *p = arg;
    if (strcmp(p->mp.name, "file"))
        return 0;
    const char *path = p->has_path ? p->query_path : p->mp.filename;
    if (!*path)
        return bad_request(p, "a file part has no file name and the request has no path");
    return file_open(p, path);
}

static int on_part_data(void *arg, const char *data, size_t n)
{
    struct post *p = arg;
    return p->open ? file_write(p, data, n) : 0;
}

static int on_part_end(void *arg)
{
    struct post *p = arg;
    return p->open ? file_finish(p) : 0;
}

static int plain_take(struct post *p, const char *data, size_t n)
{
    if (!p->multipart)
        return file_write(p, data, n);
    if (multipart_feed(&p->mp, data, n) == 0)
        return 0;
    return p->mp.bad ? bad_request(p, p->mp.bad) : -1;
}

static int gzip_take(struct post *p, const char *data, size_t n)
{
    char out[64 * 1024];
    p->z.next_in = (unsigned char *)data;
    p->z.avail_in = (uInt)n;
    while (p->z.avail_in) {
        if (p->z_end) { /* another member follows: RFC 1952 §2.2 */
            inflateReset(&p->z);
            p->z_end = false;
        }
        do {
            p->z.next_out = (unsigned char *)out;
            p->z.avail_out = sizeof(out);
            int rc = inflate(&p->z, Z_NO_FLUSH);
            if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
                return bad_request(p, "malformed gzip body");
            if (plain_take(p, out, sizeof(out) - p->z.avail_out) < 0)
                return -1;
            p->z_end = rc == Z_STREAM_END;
        } while (!p->z_end && p->z.avail_out == 0);
    }
    return 0;
}

static int body_end(struct post *p)
{
    if (p->gzip && !p->z_end)
        return bad_request(p, "the gzip body is cut");
    if (!p->multipart)
        return file_finish(p);
    if (!multipart_complete(&p->mp))
        return bad_request(p, "the multipart body is cut");
    return 0;
}

/* Takes n bytes of the connection; what lies behind the body is left for the next request. */
static enum progress feed(struct post *p, const char *data, size_t n)
{
    struct http_body *body = &p->c->req->body;
    while (n && !body->done) {
        const char *payload;
        size_t len;
        long used = http_body_next(body, data, n, &payload, &len);
        if (used < 0) {
            bad_request(p, "malformed chunked body");
            p->c->close_after = true;
            return FAILED;
        }
        if (len && (p->gzip ? gzip_take(p, payload, len) : plain_take(p, payload, len)) < 0)
            return FAILED;
        data += used;
        n -= (size_t)used;
    }
    if (n)
        buf_append(&p->c->in, data, n);
    if (!body->done)
        return GOING;
    return body_end(p) < 0 ? FAILED : FINISHED;
}

static enum progress receive(struct post *p, size_t *turn)
{
    struct http_body *body = &p->c->req->body;
    size_t want = JOB_BUFFER;
    if (body->kind == BODY_LENGTH && body->left < want)
        want = body->left;
    char *buf = job_buffer();
    if (!buf)
        return CUT;
    ssize_t n = recv(p->c->ev.fd, buf, want, MSG_DONTWAIT);
    if (n > 0) {
        *turn += (size_t)n;
        return feed(p, buf, (size_t)n);
    }
    if (n < 0 && errno == EINTR)
        return GOING;
    if (n == 0 || errno != EAGAIN)
        return CUT;
    struct pollfd poll_in = {.fd = p->c->ev.fd, .events = POLLIN};
    return poll(&poll_in, 1, 2) > 0
               ? GOING
               : WAITING; /* a sender that keeps up is not worth a trip through the loop */
}

static enum progress begin(struct post *p)
{
    struct conn *c = p->c;
    p->files = arena_alloc(&p->arena, (p->multipart ? PARTS_MAX : 1) * sizeof(*p->files));
    p->z_on = p->gzip && inflateInit2(&p->z, 15 + 16) == Z_OK;
    if (!p->files || (p->gzip && !p->z_on)) {
        err_set(&p->err, ERR_UNAVAILABLE, "out of memory");
        return FAILED;
    }
    if (!p->multipart && file_open(p, p->query_path) < 0)
        return FAILED;
    if (c->req->body.done)
        return body_end(p) < 0 ? FAILED : FINISHED;
    struct buf first = c->in; /* what came with the head */
    size_t off = c->in_off;
    c->in = (struct buf){0};
    c->in_off = 0;
    enum progress r = feed(p, first.data + off, first.len - off);
    buf_free(&first);
    return r;
}

static void on_run(struct job *job)
{
    struct post *p = (struct post *)job;
    size_t turn = 0;
    p->progress = p->begun ? GOING : begin(p);
    p->begun = true;
    while (p->progress == GOING && turn < TURN)
        p->progress = receive(p, &turn);
}

static void reply(struct post *p)
{
    _cleanup_buf_ struct buf b = {0};
    struct jsonw w = jsonw_start(&b);
    jsonw_arr(&w);
    for (size_t i = 0; i < p->n_files; i++) {
        oplog_file("file_write", p->files[i].path, NULL, (int64_t)p->files[i].size, p->user.name);
        jsonw_obj(&w);
        jsonw_kstr(&w, "path", p->files[i].path);
        jsonw_kstr(&w, "name", strrchr(p->files[i].path, '/') + 1);
        jsonw_kstr(&w, "type", "file");
        if (p->n_metadata) {
            jsonw_key(&w, "metadata");
            jsonw_obj(&w);
            for (size_t k = 0; k < p->n_metadata; k++)
                jsonw_kstr(&w, p->metadata[k].key, p->metadata[k].value);
            jsonw_obj_end(&w);
        }
        jsonw_obj_end(&w);
    }
    jsonw_arr_end(&w);
    conn_reply(p->c, 200, "application/json; charset=utf-8", NULL, b.data, b.len);
}

static void on_more(struct conn *c, uint32_t events)
{
    struct post *p = c->user;
    if (events) {
        jobs_submit(&p->job);
        return;
    }
    post_free(p);
    conn_response_sent(c, false);
}

static void on_done(struct job *job)
{
    struct post *p = (struct post *)job;
    struct conn *c = p->c;
    switch (p->progress) {
    case GOING:
        jobs_submit(&p->job);
        return;
    case WAITING:
        conn_wait(c, EPOLLIN | EPOLLRDHUP, STALL_MS, on_more);
        return;
    case CUT:
        post_free(p);
        conn_response_sent(c, false);
        return;
    case FAILED:
        if (p->open)
            upload_close(&p->up); /* nothing of it is visible when the client hears of the failure */
        p->open = false;
        conn_attach(c);
        files_error(c, &p->err);
        break;
    case FINISHED:
        conn_attach(c);
        reply(p);
        break;
    }
    post_free(p);
}

/* X-Metadata-<key>: value. Returns what is wrong, or NULL. */
static const char *metadata_take(struct post *p, const struct http_req *req)
{
    size_t total = 0;
    p->metadata = arena_alloc(&p->arena, HTTP_HEADERS_MAX * sizeof(*p->metadata));
    if (!p->metadata)
        return "out of memory";
    for (int i = 0; i < req->n_headers; i++) {
        const char *name = req->headers[i].name, *value = req->headers[i].value;
        if (strncasecmp(name, "x-metadata-", 11))
            continue;
        size_t n = strlen(name + 11);
        if (!n || n > METADATA_KEY_MAX)
            return "a metadata key must have 1 to 246 bytes";
        for (const char *v = value; *v; v++)
            if (*v < 32 || *v > 126)
                return "metadata values must be printable ASCII";
        total += n + strlen(value);
        char *key = arena_strndup(&p->arena, name + 11, n);
        for (char *k = key; k && *k; k++)
            if (*k >= 'A' && *k <= 'Z')
                *k |= 32;
        char *copy = arena_strndup(&p->arena, value, strlen(value));
        if (!key || !copy || total > METADATA_MAX)
            return "metadata is larger than 4096 bytes";
        p->metadata[p->n_metadata++] = (struct pair){key, copy};
    }
    return NULL;
}

/* Content type and coding. Returns what is wrong, or NULL. */
static const char *format_take(struct post *p, const struct http_req *req)
{
    const char *type = http_header(req, "content-type"), *coding = http_header(req, "content-encoding");
    if (coding && *coding && strcasecmp(coding, "identity") && strcasecmp(coding, "gzip"))
        return "unsupported Content-Encoding: identity and gzip are supported";
    p->gzip = coding && !strcasecmp(coding, "gzip");
    if (type && !strncasecmp(type, "application/octet-stream", 24))
        return p->has_path ? NULL : "path query parameter is required for an octet-stream upload";
    p->multipart = type && multipart_start(&p->mp, type);
    p->mp.on_part = on_part;
    p->mp.on_data = on_part_data;
    p->mp.on_part_end = on_part_end;
    p->mp.arg = p;
    return p->multipart
               ? NULL
               : "unsupported Content-Type: multipart/form-data and application/octet-stream are supported";
}

void files_post(struct conn *c)
{
    const struct http_req *req = &c->req->http;
    char username[256];
    bool bad = false;
    if (signature_check(c, "write") < 0)
        return;
    struct post *p = calloc(1, sizeof(*p));
    if (!p) {
        conn_error(c, 503, "out of memory");
        return;
    }
    p->job = (struct job){.run = on_run, .done = on_done};
    p->c = c;
    p->up.fd = p->up.dirfd = -1;
    http_query(req->query, "username", username, sizeof(username), &bad);
    p->has_path =
        http_query(req->query, "path", p->query_path, sizeof(p->query_path), &bad) && p->query_path[0];
    const char *wrong = bad ? "malformed query" : format_take(p, req);
    if (!wrong)
        wrong = metadata_take(p, req);
    if (wrong)
        conn_error(c, 400, "%s", wrong);
    if (wrong || files_user(c, username, &p->user) < 0) {
        post_free(p);
        return;
    }
    c->user = p;
    conn_detach(c);
    jobs_submit(&p->job);
}
