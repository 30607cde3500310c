/* Owns the reading of the authentication service's URL and answers. Invariant: only a 200 whose JSON names a
 * team lets a caller in; what it says of the operator's rights counts only beside that. */
#include "api/callback_answer.h"

#include "lib/net/jsonin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int callback_parse(const char *url, struct callback_url *out, struct err *e)
{
    static const char scheme[] = "http://";
    memset(out, 0, sizeof *out);
    if (!*url)
        return 0;
    if (strncmp(url, scheme, sizeof scheme - 1) != 0)
        return err_set(e, ERR_INVALID, "api.auth_url: must begin with http://");
    const char *host = url + sizeof scheme - 1;
    size_t n = strcspn(host, ":/");
    unsigned long port = 80;
    const char *rest = host + n;
    if (*rest == ':') {
        char *end;
        port = strtoul(rest + 1, &end, 10);
        rest = end;
    }
    if (n == 0 || n >= sizeof out->host || port < 1 || port > 65535 || (*rest && *rest != '/') ||
        strlen(rest) >= sizeof out->path || strpbrk(url, " \t\r\n"))
        return err_set(e, ERR_INVALID, "api.auth_url: must be http://host[:port]/path");
    memcpy(out->host, host, n);
    out->port = (uint16_t)port;
    snprintf(out->path, sizeof out->path, "%s", *rest ? rest : "/");
    return 0;
}

static int away(struct err *e, const char *why)
{
    return err_set(e, ERR_UNAVAILABLE, "asking the authentication service: %s", why);
}

int callback_read(int status, const char *body, size_t n, char team[CALLBACK_TEAM_MAX + 1], bool *admin,
                  struct err *e)
{
    *team = 0;
    *admin = false;
    if (status == 401 || status == 403)
        return err_set(e, status == 401 ? ERR_UNAUTHENTICATED : ERR_FORBIDDEN,
                       "the authentication service refuses this key");
    if (status != 200)
        return err_set(e, ERR_UNAVAILABLE, "asking the authentication service: it answered %d", status);
    struct err why = {0};
    const char *name = NULL;
    bool boss = false;
    _cleanup_json_ json_t *j = jsonin_load_object(body, n, CALLBACK_ANSWER_MAX, &why);
    if (!j || jsonin_need_str(j, "teamID", CALLBACK_TEAM_MAX, &name, &why) < 0 ||
        jsonin_bool(j, "admin", &boss, &why) < 0)
        return away(e, why.msg);
    if (!*name)
        return away(e, "it named no team");
    snprintf(team, CALLBACK_TEAM_MAX + 1, "%s", name);
    *admin = boss;
    return 0;
}
