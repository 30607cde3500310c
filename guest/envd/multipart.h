/* multipart/form-data as a stream (RFC 7578): bytes in, parts out; nothing is collected but a part's header.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define MULTIPART_HEADER_MAX 8192
#define MULTIPART_BOUNDARY_MAX 200

struct multipart {
    char delimiter[MULTIPART_BOUNDARY_MAX + 8]; /* CR LF -- boundary */
    size_t delimiter_len;
    enum { MP_PREAMBLE, MP_AFTER_DELIMITER, MP_HEADER, MP_DATA, MP_END } state;
    char hold[MULTIPART_HEADER_MAX]; /* a part's header, or the beginning of what may be a delimiter */
    size_t held;
    char name[256], filename[4096]; /* of the current part; set when on_part is called */
    bool has_filename;
    /* Each returns 0 to go on, or -1 to stop (multipart_feed then returns -1 without an error of its own). */
    int (*on_part)(void *arg);
    int (*on_data)(void *arg, const char *p, size_t n);
    int (*on_part_end)(void *arg);
    void *arg;
    const char *bad; /* what is wrong with the body, when it is the parser that stopped */
};

/** Takes the boundary out of a Content-Type value; returns false when it is no usable multipart/form-data. */
bool multipart_start(struct multipart *m, const char *content_type);

/** Feeds bytes; returns 0 or -1. */
int multipart_feed(struct multipart *m, const char *p, size_t n);

/** Whether the closing delimiter was seen. */
bool multipart_complete(const struct multipart *m);
