/* Owns the 64 bytes in front of every stream from the ingress to a relay, and the 16 bytes back; invariant:
 * what `preface_decode` accepts, `preface_encode` writes again byte for byte (given the ticket). */
#include "lib/net/preface.h"

#include "lib/net/crypto.h"

#include <string.h>

static const char magic[4] = {'C', 'B', 'R', '1'};

enum {
    AT_VERSION = 4,
    AT_FLAGS = 5,
    AT_PORT = 6,
    AT_SANDBOX = 8,
    AT_GEN = 32,
    AT_EXPIRY = 40,
    AT_NONCE = 44,
    AT_MAC = 48
};

static void put(uint8_t *to, uint64_t v, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--, v >>= 8)
        to[i] = (uint8_t)v;
}

static uint64_t get(const uint8_t *from, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v = v << 8 | from[i];
    return v;
}

static void mac(const uint8_t *bytes, const uint8_t ticket[32], uint8_t out[16])
{
    uint8_t whole[32];
    hmac_sha256(ticket, 32, bytes, AT_MAC, whole);
    memcpy(out, whole, 16);
}

void preface_encode(const struct preface *p, const uint8_t ticket[32], uint8_t out[PREFACE_LEN])
{
    memset(out, 0, PREFACE_LEN);
    memcpy(out, magic, sizeof magic);
    out[AT_VERSION] = 1;
    out[AT_FLAGS] = p->flags;
    put(out + AT_PORT, p->port, 2);
    memcpy(out + AT_SANDBOX, p->sandbox, strnlen(p->sandbox, sizeof p->sandbox));
    put(out + AT_GEN, p->gen, 8);
    put(out + AT_EXPIRY, p->expiry_s, 4);
    put(out + AT_NONCE, p->nonce, 4);
    mac(out, ticket, out + AT_MAC);
}

bool preface_decode(const uint8_t in[PREFACE_LEN], struct preface *out)
{
    if (memcmp(in, magic, sizeof magic) != 0 || in[AT_VERSION] != 1)
        return false;
    const char *id = (const char *)in + AT_SANDBOX;
    size_t n = strnlen(id, sizeof out->sandbox);
    if (!id_sandbox_valid(id, n))
        return false;
    for (size_t i = n; i < sizeof out->sandbox; i++)
        if (id[i] != 0)
            return false;
    memset(out, 0, sizeof *out);
    out->flags = in[AT_FLAGS];
    out->port = (uint16_t)get(in + AT_PORT, 2);
    memcpy(out->sandbox, id, n);
    out->gen = get(in + AT_GEN, 8);
    out->expiry_s = (uint32_t)get(in + AT_EXPIRY, 4);
    out->nonce = (uint32_t)get(in + AT_NONCE, 4);
    return true;
}

enum preface_status preface_check(const uint8_t in[PREFACE_LEN], const uint8_t ticket[32], uint32_t now_s)
{
    uint8_t want[16];
    mac(in, ticket, want);
    if (!secret_equal(want, in + AT_MAC, sizeof want))
        return PREFACE_BAD_MAC;
    uint32_t expiry = (uint32_t)get(in + AT_EXPIRY, 4);
    if (expiry < now_s || expiry - now_s > PREFACE_MAX_AHEAD_S)
        return PREFACE_BAD_MAC;
    return PREFACE_OK;
}

void preface_answer_encode(enum preface_status status, uint64_t gen, uint8_t out[PREFACE_ANSWER_LEN])
{
    memset(out, 0, PREFACE_ANSWER_LEN);
    memcpy(out, magic, sizeof magic);
    out[4] = (uint8_t)status;
    put(out + 8, gen, 8);
}

bool preface_answer_decode(const uint8_t in[PREFACE_ANSWER_LEN], enum preface_status *status, uint64_t *gen)
{
    if (memcmp(in, magic, sizeof magic) != 0 || in[4] > PREFACE_LIMIT || in[5] || in[6] || in[7])
        return false;
    *status = (enum preface_status)in[4];
    *gen = get(in + 8, 8);
    return true;
}
