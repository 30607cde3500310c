/* Owns the syntax of names that clients send. Invariant: what passes here is safe to put into a Redis key, a
 * header or a log line. */
#include "api/names.h"

#include "lib/base/ids.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const char lower_digits[] = "abcdefghijklmnopqrstuvwxyz0123456789";

int sandbox_id_parse(const char *s, char *out, struct err *e)
{
    size_t n = strspn(s, lower_digits);
    const char *rest = s + n;
    if (*rest == '-') {
        size_t client = strspn(rest + 1, lower_digits);
        rest = client ? rest + 1 + client : rest;
    }
    if (n == 0 || *rest)
        return err_set(e, ERR_INVALID, "Invalid sandbox ID");
    if (!id_sandbox_valid(s, n))
        return err_set(e, ERR_NOT_FOUND, "sandbox '%.*s' not found", n > 64 ? 64 : (int)n, s);
    memcpy(out, s, n);
    out[n] = '\0';
    return 0;
}

static bool is_uuid(const char *s)
{
    if (strlen(s) != 36)
        return false;
    for (int i = 0; i < 36; i++)
        if (i == 8 || i == 13 || i == 18 || i == 23 ? s[i] != '-' : !isxdigit((unsigned char)s[i]))
            return false;
    return true;
}

int template_ref_parse(const char *s, char *out, struct err *e)
{
    static const char identifier[] = "abcdefghijklmnopqrstuvwxyz0123456789-_";
    static const char tag_chars[] = "abcdefghijklmnopqrstuvwxyz0123456789-_.";
    while (*s == ' ' || *s == '\t' || *s == '\n' || *s == '\r')
        s++;
    size_t n = strlen(s);
    while (n && strchr(" \t\r\n", s[n - 1]))
        n--;
    if (n == 0)
        return err_set(e, ERR_INVALID, "validation error: 'templateID' must not be empty");
    if (n > TEMPLATE_REF_MAX)
        return err_set(e, ERR_INVALID, "Invalid template reference: longer than %d characters",
                       TEMPLATE_REF_MAX);
    for (size_t i = 0; i < n; i++)
        out[i] = (char)(s[i] >= 'A' && s[i] <= 'Z' ? s[i] | 0x20 : s[i]);
    out[n] = '\0';
    const char *p = out;
    size_t part = strspn(p, identifier);
    if (part && p[part] == '/') {
        p += part + 1;
        part = strspn(p, identifier);
    }
    const char *end = p + part;
    if (part && *end == ':') {
        size_t tag = strspn(end + 1, tag_chars);
        if (tag == 0 || end[1 + tag] || is_uuid(end + 1))
            return err_set(e, ERR_INVALID, "Invalid template reference: bad tag");
        return 0;
    }
    if (part == 0 || *end)
        return err_set(
            e, ERR_INVALID,
            "Invalid template reference: must be [namespace/]alias[:tag] of letters, digits, '-' and '_'");
    return 0;
}

bool template_ref_tagged(const char *ref)
{
    return strchr(ref, ':') != NULL;
}

bool idempotency_key_valid(const char *s, size_t n)
{
    if (n == 0 || n > 255)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9') || s[i] == '-'))
            return false;
    return true;
}

bool name_is_ipv4(const char *s)
{
    struct in_addr a;
    return inet_pton(AF_INET, s, &a) == 1;
}

bool name_is_ip_or_cidr(const char *s)
{
    char host[INET6_ADDRSTRLEN];
    const char *slash = strchr(s, '/');
    size_t n = slash ? (size_t)(slash - s) : strlen(s);
    if (n == 0 || n >= sizeof host)
        return false;
    memcpy(host, s, n);
    host[n] = '\0';
    struct in6_addr a6;
    bool v4 = name_is_ipv4(host);
    if (!v4 && inet_pton(AF_INET6, host, &a6) != 1)
        return false;
    if (!slash)
        return true;
    size_t digits = strspn(slash + 1, "0123456789");
    return digits >= 1 && digits <= 3 && !slash[1 + digits] && atoi(slash + 1) <= (v4 ? 32 : 128);
}

bool name_is_domain(const char *s, bool wildcard)
{
    size_t n = strlen(s);
    if (wildcard && strncmp(s, "*.", 2) == 0)
        s += 2;
    if (n == 0 || n > 128 || !*s)
        return false;
    for (const char *label = s; *label;) {
        size_t len = strcspn(label, ".");
        if (len == 0 || len > 63 || label[0] == '-' || label[len - 1] == '-')
            return false;
        for (size_t i = 0; i < len; i++)
            if (!isalnum((unsigned char)label[i]) && label[i] != '-' && label[i] != '_')
                return false;
        label += len;
        if (*label == '.' && !*++label)
            return false;
    }
    return true;
}

bool name_is_token(const char *s, size_t max)
{
    size_t n = strlen(s);
    if (n == 0 || n > max)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr("!#$%&'*+-.^_`|~", s[i]))
            return false;
    return true;
}
