/* Opened templates, kept open between creates: no manifest is parsed and no thread is asked on the way of a
 * create. */
#pragma once

#include "node/template/image.h"

/** Gives an image with descriptors of its own when the template is cached and still what it was (its
 * manifests and files have the same inode, size and modification time); -1 when the caller has to open it. */
int image_cache_get(struct node *n, const char *template_id, struct image *out);

/** Keeps a copy of an image with memory. */
void image_cache_put(struct node *n, const char *template_id, const struct image *img);
