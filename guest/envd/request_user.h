/* The user named by a request's Basic authorization (contracts/e2b.md §2.3: "user:" with an empty password).
 */
#pragma once

#include "guest/envd/http.h"

/** Copies the name, "" when there is no Basic authorization. Returns 0, or -1 when the header is malformed.
 */
int request_basic_user(const struct http_req *req, char *out, size_t cap);
