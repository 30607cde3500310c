/* Owns the decoding of query strings. Invariant: decoded text is never longer than its source and never holds
 * a NUL byte, so all of it lives in one buffer of the caller's. */
#include "api/query.h"

#include "api/route.h"

#include <stdlib.h>
#include <string.h>

int query_parse(struct query *q, const char *raw, size_t n, char *mem, struct err *e)
{
    q->n = 0;
    for (size_t i = 0; i < n;) {
        const char *item = raw + i;
        const char *end = memchr(item, '&', n - i);
        size_t len = end ? (size_t)(end - item) : n - i;
        i += len + 1;
        if (len == 0)
            continue;
        if (q->n == QUERY_MAX)
            return err_set(e, ERR_INVALID, "more than %d query parameters", QUERY_MAX);
        const char *eq = memchr(item, '=', len);
        size_t key_len = eq ? (size_t)(eq - item) : len;
        ssize_t k = percent_decode(item, key_len, true, mem);
        if (k < 0)
            return err_set(e, ERR_INVALID, "a query parameter is not properly percent-encoded");
        q->items[q->n].key = mem;
        mem += k;
        *mem++ = '\0';
        if (!eq) {
            /* The key's NUL, which took the place of the separator, is the empty value too. */
            q->items[q->n++].value = mem - 1;
            continue;
        }
        ssize_t v = percent_decode(eq + 1, len - key_len - 1, true, mem);
        if (v < 0)
            return err_set(e, ERR_INVALID, "a query parameter is not properly percent-encoded");
        q->items[q->n++].value = mem;
        mem += v;
        *mem++ = '\0';
    }
    return 0;
}

const char *query_get(const struct query *q, const char *key)
{
    for (size_t i = 0; i < q->n; i++)
        if (strcmp(q->items[i].key, key) == 0)
            return q->items[i].value;
    return NULL;
}

int query_int(const struct query *q, const char *key, int64_t min, int64_t max, int64_t fallback,
              int64_t *out, struct err *e)
{
    const char *s = query_get(q, key);
    *out = fallback;
    if (!s || !*s)
        return 0;
    size_t digits = strspn(s + (*s == '-'), "0123456789");
    if (digits == 0 || digits > 18 || s[(*s == '-') + digits])
        return err_set(e, ERR_INVALID, "validation error: query parameter '%s' must be an integer", key);
    int64_t v = strtoll(s, NULL, 10);
    if (v < min || v > max)
        return err_set(e, ERR_INVALID, "validation error: query parameter '%s' must be between %lld and %lld",
                       key, (long long)min, (long long)max);
    *out = v;
    return 0;
}

static int two_digits(const char *s, int min, int max, int *out)
{
    if (s[0] < '0' || s[0] > '9' || s[1] < '0' || s[1] > '9')
        return -1;
    *out = (s[0] - '0') * 10 + s[1] - '0';
    return *out < min || *out > max ? -1 : 0;
}

/* Days since 1970-01-01 of a date of the Gregorian calendar, by counting from March so that the leap day ends
 * the year. */
static int64_t days_from_date(int64_t y, int m, int d)
{
    y -= m <= 2;
    int64_t era = y / 400;
    int64_t year_of_era = y - era * 400;
    int64_t day_of_year = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
    return era * 146097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719468;
}

int time_parse(const char *s, int64_t *out_ms)
{
    static const int month_days[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int century, year, month, day, hour, minute, second, off_h = 0, off_m = 0;
    if (strnlen(s, 20) < 20)
        return -1;
    if (two_digits(s, 19, 99, &century) < 0 || two_digits(s + 2, 0, 99, &year) < 0 || s[4] != '-' ||
        two_digits(s + 5, 1, 12, &month) < 0 || s[7] != '-' || two_digits(s + 8, 1, 31, &day) < 0 ||
        day > month_days[month - 1] || (s[10] != 'T' && s[10] != 't' && s[10] != ' ') ||
        two_digits(s + 11, 0, 23, &hour) < 0 || s[13] != ':' || two_digits(s + 14, 0, 59, &minute) < 0 ||
        s[16] != ':' || two_digits(s + 17, 0, 60, &second) < 0)
        return -1;
    const char *p = s + 19;
    int64_t ms = 0;
    if (*p == '.') {
        int scale = 100;
        for (p++; *p >= '0' && *p <= '9'; p++, scale /= 10)
            ms += (*p - '0') * scale;
        if (p == s + 20)
            return -1;
    }
    int sign = *p == '-' ? 1 : -1;
    if (*p == '+' || *p == '-') {
        if (strnlen(p, 7) != 6 || two_digits(p + 1, 0, 23, &off_h) < 0 || p[3] != ':' ||
            two_digits(p + 4, 0, 59, &off_m) < 0)
            return -1;
    } else if ((*p != 'Z' && *p != 'z') || p[1]) {
        return -1;
    }
    int64_t t = days_from_date(century * 100 + year, month, day) * 86400 + hour * 3600 + minute * 60 + second;
    *out_ms = (t + sign * (off_h * 3600 + off_m * 60)) * 1000 + ms;
    return 0;
}

int query_time(const struct query *q, const char *key, int64_t *out_ms, struct err *e)
{
    const char *s = query_get(q, key);
    *out_ms = 0;
    if (!s || !*s)
        return 0;
    if (time_parse(s, out_ms) < 0)
        return err_set(e, ERR_INVALID, "validation error: query parameter '%s' must be an RFC 3339 time",
                       key);
    return 0;
}

static char *unescape(char *s)
{
    ssize_t n = percent_decode(s, strlen(s), true, s);
    if (n < 0)
        return NULL;
    s[n] = '\0';
    return s;
}

int metadata_parse(char *text, struct metadata_filter *out, struct err *e)
{
    static const char bad[] =
        "validation error: query parameter 'metadata' must be key=value pairs, URL-encoded";
    out->n = 0;
    if (!unescape(text))
        return err_set(e, ERR_INVALID, "%s", bad);
    for (char *p = text; p;) {
        char *item = strsep(&p, "&");
        if (!*item)
            continue;
        if (out->n == QUERY_MAX_METADATA)
            return err_set(e, ERR_INVALID, "validation error: more than %d metadata filters",
                           QUERY_MAX_METADATA);
        char *value = item;
        char *key = strsep(&value, "=");
        if (!value || !unescape(key) || !unescape(value) || !*key)
            return err_set(e, ERR_INVALID, "%s", bad);
        out->items[out->n].key = key;
        out->items[out->n++].value = value;
    }
    return 0;
}
