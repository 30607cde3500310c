/* The operator's authentication service may answer anything: the first two bytes are the status, the rest its
 * body. Whoever is let in has a team, and only a 200 lets in. The same bytes are read as the URL of the
 * service. */
#include "api/callback_answer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    /* Statuses that matter are common. */
    static const int often[] = {200, 200, 200, 401, 403, 500};
    int status = data[0] < 250 ? often[data[0] % 6] : data[0] << 8 | data[1];
    struct err e = {0};
    char team[CALLBACK_TEAM_MAX + 1];
    bool admin = false;
    memset(team, 'x', sizeof team);
    if (callback_read(status, (const char *)data + 2, size - 2, team, &admin, &e) == 0) {
        if (status != 200 || !*team || strnlen(team, sizeof team) > CALLBACK_TEAM_MAX || e.code)
            abort();
    } else if (*team || admin || !e.msg[0] || (e.code != ERR_UNAVAILABLE && status != 401 && status != 403)) {
        abort();
    }
    char *url = malloc(size - 1);
    struct callback_url u;
    memcpy(url, data + 2, size - 2);
    url[size - 2] = 0;
    e = (struct err){0};
    if (callback_parse(url, &u, &e) == 0 && *url && (!*u.host || u.path[0] != '/' || !u.port))
        abort();
    free(url);
    return 0;
}
