/* What the /files handlers share: users, paths and errors. */
#include "guest/envd/files.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "guest/envd/conn.h"
#include "guest/envd/request_user.h"
#include "guest/envd/state.h"

int files_user(struct conn *c, const char *username, struct user *out)
{
    char name[256];
    if (!username || !*username) {
        if (request_basic_user(&c->req->http, name, sizeof(name)) < 0) {
            conn_error(c, 401, "malformed Authorization header");
            return -1;
        }
        username = name;
    }
    if (state_user(username, out) == 0)
        return 0;
    conn_error(c, 401, "error looking up user '%s': %s", *username ? username : state.default_user,
               errno == ENOENT ? "unknown user" : strerror(errno));
    return -1;
}

static int status_of(const struct err *e)
{
    switch (e->sys) {
    case ENOENT:
        return 404;
    case EACCES:
    case EPERM:
    case EROFS:
        return 403;
    case EISDIR:
    case ENOTDIR:
    case EINVAL:
    case ELOOP:
    case ENAMETOOLONG:
    case ENXIO:
        return 400;
    case ENOSPC:
    case EDQUOT:
        return 507;
    case 0:
        return err_code_http(e->code);
    default:
        return 500;
    }
}

void files_error(struct conn *c, const struct err *e)
{
    conn_error(c, status_of(e), "%s", e->msg);
}
