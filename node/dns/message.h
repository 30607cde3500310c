/* DNS messages as far as a forwarder needs them (RFC 1035 §4, RFC 6891): one question in, an answer's
 * addresses and lifetimes out. Every length is checked; compression pointers may only point backwards and at
 * most 32 are followed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DNS_NAME_MAX 256
#define DNS_TYPE_A 1
#define DNS_TYPE_AAAA 28
#define DNS_CLASS_IN 1

struct dns_question {
    uint16_t id;
    bool recursion_desired;
    char name[DNS_NAME_MAX]; /* lower case, without the last dot; "" is the root */
    uint16_t type, class;
    uint16_t udp_size; /* what the asker takes: 512, or the EDNS value, at most 4096 */
    size_t end;        /* offset behind the question */
};

/** Reads a query. False when it is no well-formed query with exactly one question. */
bool dns_question_parse(const uint8_t *p, size_t n, struct dns_question *q);

struct dns_answer {
    uint32_t addresses[32]; /* of A records, network order */
    size_t n_addresses;
    uint32_t ttl; /* the least of all records, seconds; 0 when there is none */
};

/** Walks the records of an answer. False when it is malformed, or holds more than 32 addresses. */
bool dns_answer_parse(const uint8_t *p, size_t n, struct dns_answer *a);

/** Writes an answer without records to `q` with this code (RFC 1035 §4.1.1); returns its length, 0 when it
 * does not fit. */
size_t dns_refusal(const uint8_t *query, const struct dns_question *q, uint8_t rcode, uint8_t *out,
                   size_t cap);

#define DNS_RCODE_SERVFAIL 2
#define DNS_RCODE_NXDOMAIN 3
#define DNS_RCODE_REFUSED 5
