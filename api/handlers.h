/* The handlers of the routes, and what they share. */
#pragma once

#include "api/call.h"
#include "proto/master.pb-c.h"

#define MASTER_SANDBOXES "/cube.master.v1.Sandboxes/"
#define MASTER_CATALOG "/cube.master.v1.Catalog/"
#define MASTER_NODES "/cube.master.v1.Nodes/"

#define ROUTE(id, ...) void handle_##id(struct call *c);
#define MISSING(id, ...)
#include "api/routes.def"
#undef ROUTE
#undef MISSING

/** The sandbox ID of the path; NULL after it ended the call with 400 or 404. */
const char *path_sandbox_id(struct call *c);

/** A reply callback that answers 204. */
void reply_empty(struct call *c, const ProtobufCMessage *m);
