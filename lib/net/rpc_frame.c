/* Owns the framing of messages in DATA (gRPC over HTTP/2: flag u8, length u32, bytes); invariant: no message
 * above RPC_MAX_MESSAGE is ever gathered, in or out. */
#include "lib/net/rpc_impl.h"

#include <string.h>

#define PREFIX 5

/* Room for a message of `n` bytes behind its prefix, which is written. */
static uint8_t *begin(struct rpc_outbuf *o, size_t n, const char *name, struct err *e)
{
    if (n > RPC_MAX_MESSAGE) {
        err_set(e, ERR_TOO_LARGE, "a %s of %zu bytes is larger than a message may be (%u)", name, n,
                RPC_MAX_MESSAGE);
        return NULL;
    }
    if (!buf_reserve(&o->buf, PREFIX + n)) {
        err_set(e, ERR_INTERNAL, "sending a %s: out of memory", name);
        return NULL;
    }
    uint8_t prefix[PREFIX] = {0, (uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n};
    buf_append(&o->buf, prefix, PREFIX);
    uint8_t *at = (uint8_t *)o->buf.data + o->buf.len;
    o->buf.len += n;
    return at;
}

int rpc_outbuf_add(struct rpc_outbuf *o, const ProtobufCMessage *m, struct err *e)
{
    uint8_t *at = begin(o, protobuf_c_message_get_packed_size(m), m->descriptor->name, e);
    if (!at)
        return -1;
    protobuf_c_message_pack(m, at);
    return 0;
}

int rpc_outbuf_add_packed(struct rpc_outbuf *o, const uint8_t *packed, size_t n, struct err *e)
{
    uint8_t *at = begin(o, n, "message", e);
    if (!at)
        return -1;
    if (n)
        memcpy(at, packed, n);
    return 0;
}

size_t rpc_outbuf_take(struct rpc_outbuf *o, uint8_t *to, size_t room)
{
    size_t n = rpc_outbuf_waiting(o);
    if (n > room)
        n = room;
    if (n > 0)
        memcpy(to, o->buf.data + o->sent, n);
    o->sent += n;
    if (o->sent == o->buf.len) {
        o->buf.len = o->sent = 0;
    } else if (o->sent > RPC_LOW_WATER &&
               o->sent > o->buf.len / 2) { /* amortised: each byte moves at most once or so */
        buf_consume(&o->buf, o->sent);
        o->sent = 0;
    }
    return n;
}

/* Bytes of the first message in `data` with its prefix, 0 while unknown, SIZE_MAX on error. */
static size_t whole_size(const uint8_t *data, size_t n, struct err *e)
{
    if (n < PREFIX)
        return 0;
    uint32_t len = (uint32_t)data[1] << 24 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 8 | data[4];
    if (data[0] != 0) {
        err_set(e, ERR_UNSUPPORTED, "the message is compressed; only identity encoding is spoken here");
        return SIZE_MAX;
    }
    if (len > RPC_MAX_MESSAGE) {
        err_set(e, ERR_TOO_LARGE, "the message has %u bytes; at most %u are accepted", len, RPC_MAX_MESSAGE);
        return SIZE_MAX;
    }
    return PREFIX + len;
}

int rpc_inbuf_feed(struct buf *in, const uint8_t *data, size_t n,
                   bool (*got)(const uint8_t *msg, size_t n, void *ctx), void *ctx, struct err *e)
{
    while (n > 0) {
        if (in->len == 0) { /* the usual case: whole messages, straight from the frame */
            size_t whole = whole_size(data, n, e);
            if (whole == SIZE_MAX)
                return -1;
            if (whole > 0 && whole <= n) {
                if (!got(data + PREFIX, whole - PREFIX, ctx))
                    return -1;
                data += whole;
                n -= whole;
                continue;
            }
        }
        size_t whole = whole_size((uint8_t *)in->data, in->len, e);
        if (whole == SIZE_MAX)
            return -1;
        size_t want = (whole ? whole : PREFIX) - in->len;
        size_t take = want < n ? want : n;
        buf_append(in, data, take);
        if (in->failed)
            return err_set(e, ERR_INTERNAL, "receiving a message: out of memory");
        data += take;
        n -= take;
        whole = whole_size((uint8_t *)in->data, in->len, e);
        if (whole == SIZE_MAX)
            return -1;
        if (whole > 0 && whole == in->len) {
            bool more = got((uint8_t *)in->data + PREFIX, whole - PREFIX, ctx);
            in->len = 0;
            if (!more)
                return -1;
        }
    }
    return 0;
}
