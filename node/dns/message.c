/* Owns the reading of DNS messages, which come from guests and from the world; invariant: nothing is read
 * behind the message's end, and a name's pointers go strictly backwards, so that reading ends. */
#include "node/dns/message.h"

#include <string.h>

#define HEADER 12
#define FLAG_QR 0x80
#define FLAG_TC 0x02
#define FLAG_RD 0x01
#define FLAG_RA 0x80
#define OPCODE 0x78
#define TYPE_OPT 41
#define POINTERS_MAX 32
#define UDP_MIN 512
#define UDP_MAX 4096

static uint16_t u16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

static uint32_t u32(const uint8_t *p)
{
    return (uint32_t)u16(p) << 16 | u16(p + 2);
}

/* Reads the name at *off into out (may be NULL) and moves *off behind it. */
static bool name_read(const uint8_t *p, size_t n, size_t *off, char *out)
{
    size_t at = *off, len = 0, least = *off;
    bool jumped = false;
    for (int pointers = 0;;) {
        if (at >= n)
            return false;
        uint8_t c = p[at];
        if ((c & 0xc0) == 0xc0) {
            if (at + 1 >= n)
                return false;
            size_t to = (size_t)(c & 0x3f) << 8 | p[at + 1];
            if (!jumped)
                *off = at + 2;
            jumped = true;
            if (to >= least || ++pointers > POINTERS_MAX)
                return false;
            at = least = to;
            continue;
        }
        if (c > 63 || at + 1 + c > n)
            return false;
        if (c == 0)
            break;
        if (len + c + 2 > DNS_NAME_MAX)
            return false;
        for (uint8_t i = 0; i < c; i++) {
            uint8_t b = p[at + 1 + i];
            if (b < 0x21 || b == '.' || b == '\\' || b >= 0x7f)
                return false;
            if (out)
                out[len + i] = (char)(b >= 'A' && b <= 'Z' ? b + 32 : b);
        }
        len += c;
        if (out)
            out[len] = '.';
        len++;
        at += 1 + (size_t)c;
    }
    if (out)
        out[len ? len - 1 : 0] = '\0';
    if (!jumped)
        *off = at + 1;
    return true;
}

bool dns_question_parse(const uint8_t *p, size_t n, struct dns_question *q)
{
    if (n < HEADER || (p[2] & (FLAG_QR | OPCODE)) || u16(p + 4) != 1 || u16(p + 6) || u16(p + 8) ||
        u16(p + 10) > 1)
        return false;
    size_t off = HEADER;
    *q = (struct dns_question){.id = u16(p), .recursion_desired = p[2] & FLAG_RD, .udp_size = UDP_MIN};
    if (!name_read(p, n, &off, q->name) || off + 4 > n)
        return false;
    q->type = u16(p + off);
    q->class = u16(p + off + 2);
    q->end = off + 4;
    if (u16(p + 10) == 1) {
        off = q->end;
        if (!name_read(p, n, &off, NULL) || off + 10 > n || u16(p + off) != TYPE_OPT)
            return false;
        uint16_t size = u16(p + off + 2);
        q->udp_size = size < UDP_MIN ? UDP_MIN : size > UDP_MAX ? UDP_MAX : size;
    }
    return true;
}

bool dns_answer_parse(const uint8_t *p, size_t n, struct dns_answer *a)
{
    *a = (struct dns_answer){0};
    if (n < HEADER || !(p[2] & FLAG_QR))
        return false;
    size_t off = HEADER;
    unsigned questions = u16(p + 4), records = (unsigned)u16(p + 6) + u16(p + 8) + u16(p + 10);
    for (unsigned i = 0; i < questions; i++) {
        if (!name_read(p, n, &off, NULL) || off + 4 > n)
            return false;
        off += 4;
    }
    uint32_t least = UINT32_MAX;
    for (unsigned i = 0; i < records; i++) {
        if (!name_read(p, n, &off, NULL) || off + 10 > n)
            return false;
        uint16_t type = u16(p + off), len = u16(p + off + 8);
        uint32_t ttl = u32(p + off + 4);
        off += 10;
        if (off + len > n)
            return false;
        if (type != TYPE_OPT && ttl < least)
            least = ttl;
        if (type == DNS_TYPE_A) {
            if (len != 4 || a->n_addresses == sizeof a->addresses / sizeof *a->addresses)
                return false;
            memcpy(&a->addresses[a->n_addresses++], p + off, 4);
        }
        off += len;
    }
    a->ttl = least == UINT32_MAX ? 0 : least;
    return true;
}

size_t dns_refusal(const uint8_t *query, const struct dns_question *q, uint8_t rcode, uint8_t *out,
                   size_t cap)
{
    if (q->end > cap)
        return 0;
    memcpy(out, query, q->end);
    out[2] = (uint8_t)(FLAG_QR | (query[2] & FLAG_RD));
    out[3] = (uint8_t)(FLAG_RA | rcode);
    memset(out + 6, 0, 6);
    return q->end;
}
