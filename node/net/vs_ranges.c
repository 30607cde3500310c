/* Owns the table of ranges that are not the public internet (RFC 6890 and its registry) and the reading of
 * ranges. */
#include "node/net/vs_ranges.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 169.254.169.254, where clouds keep credentials, lies in 169.254/16. */
const char *const vs_always_denied[] = {
    "0.0.0.0/8",     "10.0.0.0/8",      "100.64.0.0/10",  "127.0.0.0/8",    "169.254.0.0/16",
    "172.16.0.0/12", "192.0.0.0/24",    "192.0.2.0/24",   "192.88.99.0/24", "192.168.0.0/16",
    "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4",    "240.0.0.0/4",
};
const size_t vs_always_denied_count = sizeof vs_always_denied / sizeof *vs_always_denied;

int vs_cidr_parse(const char *s, struct vs_cidr *out, struct err *e)
{
    char text[20];
    const char *slash = strchr(s, '/');
    size_t n = slash ? (size_t)(slash - s) : strlen(s);
    unsigned long bits = 32;
    if (slash) {
        char *end;
        bits = strtoul(slash + 1, &end, 10);
        if (slash[1] < '0' || slash[1] > '9' || *end || end - slash > 3 || bits > 32)
            return err_set(e, ERR_INVALID, "'%.40s' is no address range", s);
    }
    struct in_addr a;
    if (n >= sizeof text)
        return err_set(e, ERR_INVALID, "'%.40s' is no IPv4 address", s);
    memcpy(text, s, n);
    text[n] = '\0';
    if (inet_pton(AF_INET, text, &a) != 1)
        return err_set(e, ERR_INVALID, "'%.40s' is no IPv4 address", s);
    uint32_t mask = bits ? ~0u << (32 - bits) : 0;
    if (ntohl(a.s_addr) & ~mask)
        return err_set(e, ERR_INVALID, "'%.40s' has bits outside its prefix", s);
    *out = (struct vs_cidr){.ip = a.s_addr, .bits = (uint8_t)bits};
    return 0;
}

static int longest_match(uint32_t ip, const char *text, int best)
{
    struct vs_cidr c;
    if (vs_cidr_parse(text, &c, NULL) < 0)
        return best;
    uint32_t mask = c.bits ? ~0u << (32 - c.bits) : 0;
    return ((ntohl(ip) ^ ntohl(c.ip)) & mask) == 0 && c.bits > best ? c.bits : best;
}

bool vs_range_denied(uint32_t ip, const char *opened)
{
    int denied = -1, open = -1;
    for (size_t i = 0; i < vs_always_denied_count; i++)
        denied = longest_match(ip, vs_always_denied[i], denied);
    while (denied >= 0 && *opened) {
        char one[32];
        size_t n = strcspn(opened, ",");
        snprintf(one, sizeof one, "%.*s", (int)n, opened);
        open = longest_match(ip, one, open);
        opened += n + (opened[n] == ',');
    }
    return denied >= 0 && open < denied;
}
