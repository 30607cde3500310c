/* Copies and cuts of scatter lists; every bound is the list itself. */
#include "node/vmm/iov.h"

#include <stdint.h>
#include <string.h>

size_t iov_read(const struct iovec *iov, unsigned n, size_t off, void *to, size_t len)
{
    size_t done = 0;

    for (unsigned i = 0; i < n && done < len; i++) {
        if (off >= iov[i].iov_len) {
            off -= iov[i].iov_len;
            continue;
        }
        size_t part = iov[i].iov_len - off;
        if (part > len - done)
            part = len - done;
        memcpy((uint8_t *)to + done, (const uint8_t *)iov[i].iov_base + off, part);
        done += part;
        off = 0;
    }
    return done;
}

size_t iov_write(const struct iovec *iov, unsigned n, size_t off, const void *from, size_t len)
{
    size_t done = 0;

    for (unsigned i = 0; i < n && done < len; i++) {
        if (off >= iov[i].iov_len) {
            off -= iov[i].iov_len;
            continue;
        }
        size_t part = iov[i].iov_len - off;
        if (part > len - done)
            part = len - done;
        memcpy((uint8_t *)iov[i].iov_base + off, (const uint8_t *)from + done, part);
        done += part;
        off = 0;
    }
    return done;
}

unsigned iov_slice(const struct iovec *iov, unsigned n, size_t off, size_t len, struct iovec *out)
{
    unsigned k = 0;

    for (unsigned i = 0; i < n && len; i++) {
        if (off >= iov[i].iov_len) {
            off -= iov[i].iov_len;
            continue;
        }
        size_t part = iov[i].iov_len - off;
        if (part > len)
            part = len;
        out[k++] = (struct iovec){(uint8_t *)iov[i].iov_base + off, part};
        len -= part;
        off = 0;
    }
    return k;
}
