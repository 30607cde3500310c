/* Memory files of snapshots (internal.md §7): a base is a plain sparse image of guest RAM; a delta has sorted
 * extents of pages that differ from what lies below it; a working set lists pages worth mapping before the
 * guest asks. */
#pragma once

#include "lib/base/err.h"

#include <stdint.h>

#define MEMFILE_PAGE 4096ull
#define MEMFILE_VERSION 1u
#define MEMFILE_EXTENTS_MAX (1u << 22)
#define MEMFILE_MAP_MIN (64u << 10) /* shorter extents are copied, longer ones mapped */

/** `offset` and `length` in bytes of guest RAM (host order of the mapping), multiples of a page. In a delta
 * the pages follow each other in the file from `data_off` on, in the order of the extents. In a working set
 * bit 0 of `length` says that the guest wrote there. */
struct mem_extent {
    uint64_t offset, length;
};

/** First bytes of a delta ("CUBEMDL1") and of a working set ("CUBEWST1"); little-endian; extents follow at
 * once. */
struct memfile_header {
    char magic[8];
    uint32_t version, page;
    uint64_t memory_bytes;
    uint64_t nextents;
    uint64_t data_off;  /* of the first page; 0 in a working set */
    uint32_t table_crc; /* CRC-32C of the extents */
    uint32_t crc;       /* of the header before this field */
};

/** A list of extents; zero-initialise, release with `mem_extents_free`. */
struct mem_extents {
    struct mem_extent *v;
    uint64_t n, cap;
};
void mem_extents_free(struct mem_extents *x);
/** Appends, joining with the last one when it continues it and `flag` (bit 0 of length) agrees. -1 when out
 * of memory. */
int mem_extents_add(struct mem_extents *x, uint64_t offset, uint64_t length);
uint64_t mem_extents_bytes(const struct mem_extents *x);

/** Writes header and extent table; returns the offset where the pages go, or -1. */
int64_t memfile_write_table(int fd, bool working_set, uint64_t memory_bytes, const struct mem_extents *x,
                            struct err *e);

/** Reads and checks them: sorted, page-sized, inside `memory_bytes`, and (delta) the file as long as they
 * say. */
int memfile_read_table(int fd, bool working_set, uint64_t memory_bytes, struct mem_extents *x,
                       uint64_t *data_off, struct err *e);

/** Merges `n` deltas (oldest first; at least one) into one of the same meaning. For the node: chains are kept
 * short. */
int memfile_merge(const int *fds, unsigned n, uint64_t memory_bytes, int out_fd, struct err *e);
