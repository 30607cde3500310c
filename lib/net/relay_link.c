/* Owns the form of the messages between a proxy and the relay of its host; invariant: what link_decode
 * accepts, link_encode writes again byte for byte. */
#include "lib/net/relay_link.h"

#include <string.h>

static const uint8_t start[5] = {'C', 'B', 'L', '1', 1};

static uint8_t *put(uint8_t *to, uint64_t v, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--, v >>= 8)
        to[i] = (uint8_t)v;
    return to + bytes;
}

static uint64_t get(const uint8_t **from, int bytes)
{
    uint64_t v = 0;
    while (bytes--)
        v = v << 8 | *(*from)++;
    return v;
}

size_t link_encode(const struct link_msg *m, uint8_t out[LINK_MSG_MAX])
{
    uint8_t *p = out;
    memcpy(p, start, sizeof start);
    p[5] = (uint8_t)m->type;
    put(p + 6, m->type == LINK_MOVED ? m->count : m->type == LINK_HELD && m->used, 2);
    p += LINK_HEAD_LEN;
    switch (m->type) {
    case LINK_HELLO:
        memcpy(p, m->address, LINK_ADDRESS_LEN);
        p += LINK_ADDRESS_LEN;
        break;
    case LINK_OPEN:
    case LINK_HELD:
        p = put(p, m->stream, 8);
        memcpy(p, m->preface, PREFACE_LEN);
        p += PREFACE_LEN;
        break;
    case LINK_OPENED:
        p = put(p, m->stream, 8);
        memcpy(p, m->answer, PREFACE_ANSWER_LEN);
        p += PREFACE_ANSWER_LEN;
        break;
    case LINK_MOVED:
    case LINK_ENDED:
        for (uint16_t i = 0; i < (m->type == LINK_ENDED ? 1 : m->count); i++) {
            p = put(p, m->moved[i].stream, 8);
            p = put(p, m->moved[i].in, 8);
            p = put(p, m->moved[i].out, 8);
        }
        break;
    }
    return (size_t)(p - out);
}

static bool address_take(const uint8_t *p, char out[LINK_ADDRESS_LEN])
{
    size_t n = strnlen((const char *)p, LINK_ADDRESS_LEN);
    for (size_t i = n; i < LINK_ADDRESS_LEN; i++)
        if (p[i] != 0)
            return false;
    memcpy(out, p, LINK_ADDRESS_LEN);
    return n > 0 && n < LINK_ADDRESS_LEN;
}

bool link_decode(const uint8_t *in, size_t n, struct link_msg *m)
{
    if (n < LINK_HEAD_LEN || memcmp(in, start, sizeof start) != 0)
        return false;
    m->type = (enum link_type)in[5];
    const uint8_t *p = in + 6;
    m->count = (uint16_t)get(&p, 2);
    m->used = m->type == LINK_HELD && m->count == 1;
    bool zero = m->count == 0;
    n -= LINK_HEAD_LEN;
    switch (m->type) {
    case LINK_HELLO:
        return zero && n == LINK_ADDRESS_LEN && address_take(p, m->address);
    case LINK_OPEN:
    case LINK_HELD:
        if (n != 8 + PREFACE_LEN || !(zero || m->used))
            return false;
        m->stream = get(&p, 8);
        memcpy(m->preface, p, PREFACE_LEN);
        return true;
    case LINK_OPENED:
        if (n != 8 + PREFACE_ANSWER_LEN || !zero)
            return false;
        m->stream = get(&p, 8);
        memcpy(m->answer, p, PREFACE_ANSWER_LEN);
        return true;
    case LINK_MOVED:
    case LINK_ENDED:
        if (m->type == LINK_MOVED ? zero || m->count > LINK_MOVED_MAX : !zero)
            return false;
        if (n != (zero ? 1u : m->count) * sizeof(struct link_moved))
            return false;
        for (size_t i = 0; i < n / sizeof(struct link_moved); i++) {
            m->moved[i].stream = get(&p, 8);
            m->moved[i].in = get(&p, 8);
            m->moved[i].out = get(&p, 8);
        }
        return true;
    }
    return false;
}
