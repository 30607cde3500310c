/* Lists of buffers. */
#pragma once

#include <stddef.h>
#include <sys/uio.h>

/* Copies between a list of buffers and a flat one, from byte `off` of the list; return how many bytes were
 * copied. */
size_t iov_read(const struct iovec *iov, unsigned n, size_t off, void *to, size_t len);
size_t iov_write(const struct iovec *iov, unsigned n, size_t off, const void *from, size_t len);
/** Describes bytes [off, off+len) of a list in `out` (room for n entries); returns the number of entries. */
unsigned iov_slice(const struct iovec *iov, unsigned n, size_t off, size_t len, struct iovec *out);
