/* One HTTP/1.1 client connection; the parts of the front share it. */
#pragma once

#include "proxy/proxy.h"

enum front1_state { FRONT_HEAD, FRONT_BUSY, FRONT_RAW, FRONT_LINGER, FRONT_CLOSED };

struct front1 {
    struct dp_io io; /* first */
    struct front_link link;
    struct worker *worker;
    struct share *client;
    struct exchange *x;
    enum front1_state state;
    bool undecided; /* no byte yet: may be h2 */
    bool tls, starting, close_after, answer_done, body_done, chunk_out, raw_in_done, raw_out_done, in_read;
    char *in; /* bytes that nobody takes yet */
    uint32_t in_off, in_len, in_cap;
    uint32_t corked; /* bytes of an answer head that wait in worker->answer_head for company */
    struct http_scan scan;
    enum body_kind body;
    uint64_t left;
    struct chunked chunked;
    int64_t linger_ms; /* when the end was sent */
    int64_t head_ms;   /* when an unfinished head began; 0 = none */
    int64_t active_ms; /* last byte in either direction */
    struct dp_timer timer;
    struct dp_task again, bury;
    char address[46];
};

extern const struct front_ops front1_ops; /* front1_answer.c */

void front1_close(struct front1 *c, bool reset);
/** Reads again, from the loop. */
void front1_again(struct front1 *c);
/** Half-closes and throws away what the client still sends, for a while: closing at once would make its
 * kernel drop the answer. */
void front1_linger(struct front1 *c);
void front1_in_free(struct front1 *c);
/** Keeps bytes that nobody takes yet; false when out of memory. */
bool front1_in_keep(struct front1 *c, const char *p, size_t n);
/** A tunnel ends when both directions have ended and everything is written. */
void front1_raw_check(struct front1 *c);
/** Answers a head that cannot be parsed, of which the bytes at `p` are known, without an exchange of its own.
 */
void front1_refuse(struct front1 *c, enum answer_kind kind, const char *p, size_t n);
/** Whether the back takes body bytes now. */
bool front1_can_feed(const struct front1 *c);
/** Hands body bytes to the back. Returns how many were used; the exchange may be over after it. */
size_t front1_body_feed(struct front1 *c, const char *p, size_t n);
/** `n` bytes of the body were just read at once: sets x->up when the rest is worth moving in bulk. */
void bulk_up_consider(struct front1 *c, size_t n);
/** Moves bytes of the body while x->up is in bulk (or its pipe holds some). false: nothing more can be done
 * now. */
bool bulk_up(struct front1 *c);
/** Bytes at the start of a request (and perhaps of its body). Returns how many were used. */
size_t front1_bytes_take(struct front1 *c, const char *p, size_t n);
