/* Which pages of a mapping this process has of its own, from /proc/self/pagemap. */
#pragma once

#include "node/vmm/memfile.h"

enum pagescan_what {
    PAGESCAN_OWN,    /* anonymous (also swapped out): written since the file was mapped MAP_PRIVATE */
    PAGESCAN_TOUCHED /* mapped at all; bit 0 of an extent's length: own */
};

/** Appends extents (offsets relative to `base`) of the pages in [base, base+len). */
int pagescan(int pagemap_fd, const void *base, uint64_t len, enum pagescan_what what, struct mem_extents *out,
             struct err *e);
