/* Guest RAM: one contiguous host mapping that the guest sees as up to two ranges of physical addresses. */
#pragma once

#include "lib/base/err.h"

#include <stdint.h>

#define MEM_HUGE (2ull << 20) /* x86-64: one entry of the second level of page tables */
#define MEM_PAGE 4096ull
/** Guest-physical layout (device layout version 1): RAM up to 3 GiB, devices below 4 GiB, the rest of RAM
 * from 4 GiB on. */
#define MEM_LOW_MAX (3ull << 30)
#define MEM_HIGH_START (4ull << 30)
#define MEM_MAX_MIB (64u * 1024)

struct guest_mem {
    uint8_t *base;               /* host address of guest-physical 0 */
    uint64_t size;               /* bytes of RAM, a multiple of 1 MiB */
    bool shared;                 /* backed MAP_SHARED by a file: freed pages need MADV_REMOVE */
    uint64_t file_dev, file_ino; /* which, when `shared` */
};

/** Reserves an address range for `mib` MiB of anonymous RAM. Costs no memory until it is touched. */
int mem_reserve(struct guest_mem *m, uint32_t mib, struct err *e);
void mem_release(struct guest_mem *m);

/** Puts a file under the whole range: MAP_SHARED when the guest's writes must reach the file, else
 * MAP_PRIVATE. */
int mem_map_file(struct guest_mem *m, int fd, bool shared, struct err *e);

/** Host address of `len` bytes at guest-physical `gpa`, or NULL when any of them is not RAM or they straddle
 * the gap. `gpa` and `len` come from the guest and may be anything. */
static inline void *mem_at(const struct guest_mem *m, uint64_t gpa, uint64_t len)
{
    uint64_t low = m->size < MEM_LOW_MAX ? m->size : MEM_LOW_MAX;

    if (gpa < low)
        return len <= low - gpa ? m->base + gpa : NULL;
    if (gpa < MEM_HIGH_START)
        return NULL;
    uint64_t off = gpa - MEM_HIGH_START;
    uint64_t high = m->size - low;
    if (off >= high || len > high - off)
        return NULL;
    return m->base + low + off;
}

/** Gives page-aligned parts of [p, p+len) back to the host; their content is undefined afterwards. */
void mem_discard(const struct guest_mem *m, void *p, uint64_t len);
