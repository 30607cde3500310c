/* Owns the reading of a sandbox's network rules. Invariant: what cannot be read is an error and never a wider
 * policy. */
#include "node/net/vs_rules.h"
#include "node/net/vs_ranges.h"

#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define ENTRIES_MAX 100000

static bool looks_like_address(const char *s)
{
    return s[0] && strspn(s, "0123456789./") == strlen(s);
}

static int add_name(struct vs_rules *r, const char *s, struct err *e)
{
    size_t n = strlen(s);
    if (n == 0 || n > 253 || r->n_names == VS_RULES_NAMES_MAX)
        return err_set(e, ERR_INVALID, "network.allowOut: '%.60s' is no name, or there are more than %d", s,
                       VS_RULES_NAMES_MAX);
    char **names = realloc(r->names, (r->n_names + 1) * sizeof *names);
    char *copy = strdup(s);
    if (names)
        r->names = names;
    if (!names || !copy) {
        free(copy);
        return err_set(e, ERR_INTERNAL, "out of memory");
    }
    for (char *p = copy; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    r->names[r->n_names++] = copy;
    return 0;
}

static int read_list(json_t *list, const char *what, struct vs_cidr **out, size_t *n, struct vs_rules *names,
                     struct err *e)
{
    size_t count = json_array_size(list), i;
    json_t *one;
    if (list && !json_is_null(list) && !json_is_array(list))
        return err_set(e, ERR_INVALID, "network.%s is no list", what);
    if (count > ENTRIES_MAX)
        return err_set(e, ERR_TOO_LARGE, "network.%s has more than %d entries", what, ENTRIES_MAX);
    *out = calloc(count + 1, sizeof **out); /* one more for "everything" */
    if (!*out)
        return err_set(e, ERR_INTERNAL, "out of memory");
    json_array_foreach(list, i, one)
    {
        const char *s = json_string_value(one);
        if (!s)
            return err_set(e, ERR_INVALID, "network.%s: entry %zu is no string", what, i);
        if (names && !looks_like_address(s)) {
            if (add_name(names, s, e) < 0)
                return -1;
        } else if (vs_cidr_parse(s, &(*out)[*n], e) < 0) {
            return err_wrap(e, "network.%s", what);
        } else {
            *n += 1;
        }
    }
    return 0;
}

int vs_rules_parse(const char *network_json, bool deny_internet, struct vs_rules *out, struct err *e)
{
    *out = (struct vs_rules){0};
    json_t *o = network_json && *network_json ? json_loads(network_json, JSON_REJECT_DUPLICATES, NULL)
                                              : json_object();
    int rc = json_is_object(o) ? 0 : err_set(e, ERR_INVALID, "the sandbox's network rules cannot be read");
    if (rc == 0)
        rc = read_list(json_object_get(o, "allowOut"), "allowOut", &out->allow, &out->n_allow, out, e);
    if (rc == 0)
        rc = read_list(json_object_get(o, "denyOut"), "denyOut", &out->deny, &out->n_deny, NULL, e);
    json_decref(o);
    if (rc < 0) {
        vs_rules_free(out);
        return -1;
    }
    if (deny_internet)
        out->deny[out->n_deny++] = (struct vs_cidr){0};
    return 0;
}

void vs_rules_free(struct vs_rules *r)
{
    free(r->allow);
    free(r->deny);
    for (size_t i = 0; i < r->n_names; i++)
        free(r->names[i]);
    free(r->names);
    *r = (struct vs_rules){0};
}

bool vs_rules_allows_name(const struct vs_rules *r, const char *name)
{
    for (size_t i = 0; i < r->n_names; i++) {
        const char *p = r->names[i];
        size_t n = strlen(name), m = strlen(p);
        if (strcmp(p, "*") == 0 || strcmp(p, name) == 0)
            return true;
        if (strncmp(p, "*.", 2) == 0 && n > m - 1 && strcmp(name + n - (m - 1), p + 1) == 0)
            return true;
    }
    return false;
}
