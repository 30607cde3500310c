/* Content types of downloads. */
#pragma once

#include <stddef.h>

/** By extension, else by the first bytes of the content. */
const char *content_type_of(const char *name, const void *head, size_t n);
