/* Owns the questions about what is known in cube.yaml; the list itself is generated (config_schema.py). */
#include "lib/net/config_cluster.h"
#include "lib/net/config_impl.h"

#include <string.h>

bool config_section_known(const char *section)
{
    for (const struct config_known *k = config_schema; k->section; k++)
        if (strcmp(k->section, section) == 0)
            return true;
    return false;
}

const struct config_known *config_key_known(const char *section, const char *key)
{
    for (const struct config_known *k = config_schema; k->section; k++)
        if (k->key && strcmp(k->section, section) == 0 && strcmp(k->key, key) == 0)
            return k;
    return NULL;
}

/* Number of single-character edits between two short words (Levenshtein), or `limit` when there are more. */
static int distance(const char *a, const char *b, int limit)
{
    size_t n = strlen(a), m = strlen(b);
    int row[64];
    if (m >= 64 || n >= 64)
        return limit;
    for (size_t j = 0; j <= m; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[m] < limit ? row[m] : limit;
}

const char *config_key_near(const char *section, const char *key)
{
    const char *best = NULL;
    int least = 3; /* two typos at most */
    for (const struct config_known *k = config_schema; k->section; k++) {
        if (!k->key || strcmp(k->section, section) != 0)
            continue;
        int d = distance(key, k->key, least);
        if (d < least) {
            least = d;
            best = k->key;
        }
    }
    return best;
}

int config_cell_check(const char *section, const char *cell, struct err *e)
{
    if (strlen(cell) != 1 || !strchr("0123456789abcdefghijklmnopqrstuvwxyz", *cell))
        return err_set(e, ERR_INVALID, "%s.cell must be one of 0-9a-z, not \"%s\"", section, cell);
    return 0;
}
