/* Owns the shape of error answers. Invariant: code and message are always there, and every class of error
 * says what to do about it. */
#include "api/errors.h"

#include "lib/base/jsonw.h"

#include <stdio.h>
#include <string.h>

static const char *remediation(const struct err *e)
{
    if (e->remedy[0])
        return e->remedy;
    switch (e->code) {
    case ERR_UNAUTHENTICATED:
        return "send a valid API key in the header X-API-Key; `cube key create` makes one";
    case ERR_CAPACITY:
        return "delete or pause sandboxes, or add a node; `cube node ls` shows what is taken";
    case ERR_NO_COMPATIBLE_NODE:
        return "`cube node ls` shows the nodes' classes and templates";
    case ERR_UNAVAILABLE:
        return "try again; `cube doctor` tells what is not running";
    case ERR_STORAGE_FULL:
        return "free disk space on the node";
    default:
        return NULL;
    }
}

void error_write(struct buf *out, int status, const struct err *e)
{
    struct jsonw w = jsonw_start(out);
    jsonw_obj(&w);
    jsonw_kint(&w, "code", status);
    jsonw_kstr(&w, "message", e->msg[0] ? e->msg : err_code_name(e->code));
    jsonw_kstr(&w, "error_code", err_code_name(e->code));
    if (e->sys)
        jsonw_kstr(&w, "cause", strerrordesc_np(e->sys));
    if (remediation(e))
        jsonw_kstr(&w, "remediation", remediation(e));
    jsonw_obj_end(&w);
}
