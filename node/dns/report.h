/* cube-dns ↔ cube-node: SEQPACKET on <run>/dns/report.sock, one fixed struct per datagram, host byte order
 * but for addresses. The node says which sandboxes have rules by name; for those an answer waits until the
 * node has opened its addresses, or 100 ms. */
#pragma once

#include <stdint.h>

#define DNS_REPORT_VERSION 1
#define DNS_REPORT_ADDRESSES 32

enum dns_report_op { DNS_WATCH = 1, DNS_UNWATCH = 2, DNS_OPENED = 3, DNS_ANSWERED = 4, DNS_SOCKETS = 5 };

struct dns_report {
    uint8_t version, op; /* WATCH, UNWATCH, OPENED and SOCKETS (with two descriptors: UDP, TCP) from the node;
                            ANSWERED from cube-dns */
    uint16_t n_addresses;
    uint32_t slot;
    uint64_t seq; /* of ANSWERED; repeated in OPENED */
    uint32_t ttl_s;
    uint32_t addresses[DNS_REPORT_ADDRESSES]; /* network order */
    char name[256];
};
