/* Where a request goes (contracts/e2b.md §2.4, DESIGN.md §5): a port of a sandbox, the API, or nowhere. Pure:
 * head in, answer out. */
#pragma once

#include "proxy/http1.h"

#include "lib/base/ids.h"

#define ENVD_PORT 49983

enum target_kind { TARGET_SANDBOX, TARGET_API, TARGET_BAD };

struct target {
    enum target_kind kind;
    char sandbox[SANDBOX_ID_LEN + 1]; /* as asked for, cut at the legacy suffix; may be no valid ID */
    uint16_t port;
    bool by_path; /* /sandbox/<id>/<port>/…: the answer gets a sandboxing policy */
    bool by_headers;
    bool internal;     /* an envd path that is not for the ingress: 404 */
    struct str path;   /* what to ask the service for; points into the head */
    const char *wrong; /* TARGET_BAD: the text of the 400 */
};

/** `domain` may be "" (none configured). Only the head's target, authority, Host and the two routing headers
 * are looked at. */
void target_resolve(const struct http_head *m, const char *domain, struct target *out);
