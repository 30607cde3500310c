/* Messages between a cube-proxy worker and the cube-relay of its own host, over <run>/relay/link.sock
 * (SOCK_SEQPACKET, one message per datagram). Over this "link" the relay hands the guest's descriptor to the
 * proxy, so that the bytes of a stream pass through one process and not two; what the relay checks, limits
 * and reports is the same as for streams over TCP (internal.md §5).
 *
 *   relay → proxy  HELLO   address text of this relay in routes, 64 bytes zero-padded; the first message
 *   proxy → relay  OPEN    stream u64, preface 64
 *   relay → proxy  OPENED  stream u64, answer 16; with the guest's socket (SCM_RIGHTS) when it says ok
 *   proxy → relay  MOVED   n × (stream u64, bytes in u64, bytes out u64): moved since it was last said
 *   proxy → relay  ENDED   stream u64, bytes in u64, bytes out u64; also for an OPEN without an answer
 *   proxy → relay  HELD    stream u64, preface 64: a stream that an earlier relay opened is there still
 *
 * Each begins with "CBL1", version u8 = 1, type u8, n u16 (MOVED: entries; HELD: 1 when a byte has moved;
 * else 0); numbers are big-endian as in the preface. Stream numbers are the proxy's and never used twice on
 * one link. When a link ends, its unanswered OPENs are void and its streams are no longer counted; they live
 * on. */
#pragma once

#include "lib/net/preface.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LINK_ADDRESS_LEN = 64, /* with at least one NUL */
    LINK_MOVED_MAX = 64,
    LINK_UNANSWERED_MAX = 512, /* OPENs; a relay ends a link with more */
    LINK_HEAD_LEN = 8,
    LINK_MSG_MAX = LINK_HEAD_LEN + LINK_MOVED_MAX * 24
};

enum link_type { LINK_HELLO = 1, LINK_OPEN, LINK_OPENED, LINK_MOVED, LINK_ENDED, LINK_HELD };

struct link_moved {
    uint64_t stream, in, out;
};

/** One message; which members count is said above. */
struct link_msg {
    enum link_type type;
    uint64_t stream;
    char address[LINK_ADDRESS_LEN];
    uint8_t preface[PREFACE_LEN];
    uint8_t answer[PREFACE_ANSWER_LEN];
    bool used;                               /* HELD */
    struct link_moved moved[LINK_MOVED_MAX]; /* ENDED: the first */
    uint16_t count;
};

/** Writes at most LINK_MSG_MAX bytes; returns their number. */
size_t link_encode(const struct link_msg *m, uint8_t out[LINK_MSG_MAX]);
/** false: not one of these messages, or not of the length that it says. Checks no preface. */
bool link_decode(const uint8_t *in, size_t n, struct link_msg *m);
