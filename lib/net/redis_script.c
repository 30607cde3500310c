/* Owns the sending of scripts; invariant: a script runs once per redis_eval: EVAL follows only the answer
 * NOSCRIPT, which says that EVALSHA did nothing. */
#include "lib/net/redis_impl.h"

#include "lib/base/ids.h"

#include <openssl/sha.h>
#include <string.h>

static void send_form(struct redis_request *q, const char *verb, const char *body, size_t n)
{
    _cleanup_buf_ struct buf b = {0};
    buf_printf(&b, "*%d\r\n", 2 + q->tail_items);
    redis_put_bulk(&b, verb, strlen(verb));
    redis_put_bulk(&b, body, n);
    buf_append(&b, q->tail.data, q->tail.len);
    if (b.failed || q->tail.failed)
        redis_request_fail_soon(q);
    else
        redis_send(q->redis, q, b.data, b.len);
}

void redis_eval(struct redis *r, struct redis_script *s, redis_reply_cb cb, void *data, int nkeys,
                const char **keys, int nargs, const char **args, const size_t *arg_lens)
{
    if (!s->sha1[0]) {
        uint8_t raw[SHA_DIGEST_LENGTH];
        SHA1((const uint8_t *)s->text, strlen(s->text), raw);
        hex_encode(raw, sizeof raw, s->sha1);
    }
    struct redis_request *q = redis_request_new(r, cb, data, 0);
    if (r->state != REDIS_READY) {
        redis_request_fail_soon(q);
        return;
    }
    char count[16];
    snprintf(count, sizeof count, "%d", nkeys);
    q->script = s;
    q->tail_items = 1 + nkeys + nargs;
    redis_put_bulk(&q->tail, count, strlen(count));
    for (int i = 0; i < nkeys; i++)
        redis_put_bulk(&q->tail, keys[i], strlen(keys[i]));
    for (int i = 0; i < nargs; i++)
        redis_put_bulk(&q->tail, args[i], arg_lens ? arg_lens[i] : strlen(args[i]));
    send_form(q, "EVALSHA", s->sha1, 40);
}

bool redis_script_retry(struct redis_request *q, const redisReply *reply)
{
    struct redis_script *s = q->script;
    if (!s || q->redis->freed || strncmp(reply->str, "NOSCRIPT", 8) != 0)
        return false;
    q->script = NULL;
    q->deadline_ms = 0;
    send_form(q, "EVAL", s->text, strlen(s->text));
    return true;
}
