/* Owns the questions to the operator's authentication service. Invariant: whatever the service does (silence,
 * nonsense, too much), a caller is let in only by a 200 whose JSON names a team, and the request ends within
 * callback_timeout. */
#include "api/callback.h"

#include "api/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct callback {
    struct call *call;
    h2o_http1client_t *client;
    struct loop_timer timer;
    callback_answer *answer;
    struct buf request, body;
    h2o_iovec_t out;
    int status;
};

static void release(struct callback *b)
{
    loop_timer_stop(b->call->w->loop, &b->timer);
    b->call->callback = NULL;
    buf_free(&b->request);
    buf_free(&b->body);
}

static void finish(struct callback *b, const char *team, bool admin, const struct err *e)
{
    struct call *c = b->call;
    callback_answer *answer = b->answer;
    release(b);
    answer(c, team, admin, e);
}

static void away(struct callback *b, const char *why)
{
    struct err e = {0};
    err_set(&e, ERR_UNAVAILABLE, "asking the authentication service: %s", why);
    finish(b, NULL, false, &e);
}

static void judge(struct callback *b)
{
    struct err e = {0};
    char team[CALLBACK_TEAM_MAX + 1];
    bool admin = false;
    int rc = callback_read(b->status, b->body.data ? b->body.data : "", b->body.len, team, &admin, &e);
    finish(b, rc == 0 ? team : NULL, admin, rc == 0 ? NULL : &e);
}

static int on_body(h2o_http1client_t *client, const char *err)
{
    struct callback *b = client->data;
    h2o_buffer_t *input = client->sock->input;
    if (err && err != h2o_http1client_error_is_eos) {
        b->client = NULL;
        away(b, err);
        return 0;
    }
    buf_append(&b->body, input->bytes, input->size);
    h2o_buffer_consume(&client->sock->input, input->size);
    if (b->body.len > CALLBACK_ANSWER_MAX) {
        b->client = NULL;
        away(b, "its answer is too long");
        return -1; /* h2o closes the connection */
    }
    if (err) {
        b->client = NULL;
        judge(b);
    }
    return 0;
}

static h2o_http1client_body_cb on_head(h2o_http1client_t *client, const char *err, int minor, int status,
                                       h2o_iovec_t msg, struct st_h2o_header_t *headers, size_t n, int rlen)
{
    struct callback *b = client->data;
    if (err && err != h2o_http1client_error_is_eos) {
        b->client = NULL;
        away(b, err);
        return NULL;
    }
    b->status = status;
    if (!err)
        return on_body;
    b->client = NULL; /* the answer has no body */
    judge(b);
    return NULL;
}

static h2o_http1client_head_cb on_connect(h2o_http1client_t *client, const char *err, h2o_iovec_t **bufs,
                                          size_t *n, int *is_head)
{
    struct callback *b = client->data;
    if (err) {
        b->client = NULL;
        away(b, err);
        return NULL;
    }
    b->out = h2o_iovec_init(b->request.data, b->request.len);
    *bufs = &b->out;
    *n = 1;
    *is_head = 0;
    return on_head;
}

static void on_timeout(struct loop_timer *t)
{
    struct callback *b = H2O_STRUCT_FROM_MEMBER(struct callback, timer, t);
    if (b->client)
        h2o_http1client_cancel(b->client);
    b->client = NULL;
    away(b, "no answer in time");
}

static void write_request(struct callback *b, const char *key)
{
    const struct callback_url *url = &b->call->w->api->auth_url;
    _cleanup_buf_ struct buf body = {0};
    struct jsonw w = jsonw_start(&body);
    jsonw_obj(&w);
    jsonw_kstr(&w, "key", key);
    jsonw_kstr(&w, "method", route_method_name(b->call->route->method));
    jsonw_kstr(&w, "path", b->call->route->pattern);
    jsonw_obj_end(&w);
    buf_printf(&b->request,
               "POST %s HTTP/1.1\r\nhost: %s:%u\r\ncontent-type: application/json\r\nconnection: close\r\n"
               "traceparent: %s\r\ncontent-length: %zu\r\n\r\n",
               url->path, url->host, url->port, b->call->trace, body.len);
    buf_append(&b->request, body.data, body.len);
}

void callback_ask(struct call *c, const char *key, callback_answer *answer)
{
    const struct callback_url *url = &c->w->api->auth_url;
    struct callback *b = call_alloc(c, sizeof *b);
    *b = (struct callback){.call = c, .answer = answer};
    c->callback = b;
    write_request(b, key);
    b->timer.fire = on_timeout;
    loop_timer_start(c->w->loop, &b->timer, c->w->api->auth_timeout_ms);
    h2o_http1client_connect(&b->client, b, &c->w->ctx.proxy.client_ctx,
                            h2o_iovec_init(url->host, strlen(url->host)), url->port, 0, on_connect);
}

void callback_cancel(struct call *c)
{
    struct callback *b = c->callback;
    if (!b)
        return;
    if (b->client)
        h2o_http1client_cancel(b->client);
    release(b);
}
