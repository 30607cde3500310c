/* The first bytes of every stream from the ingress to a node's relay, and the relay's answer (internal.md
 * §5). */
#pragma once

#include "lib/base/ids.h"

#include <stdint.h>

#define PREFACE_LEN 64
#define PREFACE_ANSWER_LEN 16
#define PREFACE_MAX_AHEAD_S 60

enum preface_status {
    PREFACE_OK = 0,
    PREFACE_STALE = 1,
    PREFACE_UNKNOWN = 2,
    PREFACE_PORT_CLOSED = 3,
    PREFACE_NOT_READY = 4,
    PREFACE_BAD_MAC = 5,
    PREFACE_LIMIT = 6,
};

struct preface {
    uint8_t flags;
    uint16_t port;
    char sandbox[24]; /* NUL-padded */
    uint64_t gen;
    uint32_t expiry_s;
    uint32_t nonce;
};

/** Writes the 64 bytes, MAC included. */
void preface_encode(const struct preface *p, const uint8_t ticket[32], uint8_t out[PREFACE_LEN]);
/** Reads the fields; false when magic, version or padding are wrong. Checks no MAC. */
bool preface_decode(const uint8_t in[PREFACE_LEN], struct preface *out);
/** MAC and expiry (`now_s` Unix seconds): PREFACE_OK or PREFACE_BAD_MAC. */
enum preface_status preface_check(const uint8_t in[PREFACE_LEN], const uint8_t ticket[32], uint32_t now_s);

void preface_answer_encode(enum preface_status status, uint64_t gen, uint8_t out[PREFACE_ANSWER_LEN]);
bool preface_answer_decode(const uint8_t in[PREFACE_ANSWER_LEN], enum preface_status *status, uint64_t *gen);
