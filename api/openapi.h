/* The OpenAPI 3.0 document of the routes. */
#pragma once

#include "lib/base/buf.h"

/** Appends the whole document, made from the table of routes and the schemas. */
void openapi_write(struct buf *out);
/** The schema with this name as JSON text, or NULL. */
const char *openapi_schema(const char *name);
