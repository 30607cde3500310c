/* Page scan: with the PAGEMAP_SCAN call (Linux 6.7), which walks only page tables that exist, or by reading
 * the 8 bytes per page of /proc/self/pagemap (Documentation/admin-guide/mm/pagemap.rst). */
#include "node/vmm/pagescan.h"

#include <errno.h>
#include <linux/types.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* From linux/fs.h of 6.7; Debian 12's headers are older. */
struct scan_arg {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
struct scan_region {
    uint64_t start, end, categories;
};
#define SCAN_CALL _IOWR('f', 16, struct scan_arg)
#define SCAN_FILE (1ull << 2)
#define SCAN_PRESENT (1ull << 3)
#define SCAN_SWAPPED (1ull << 4)
#define SCAN_ZERO (1ull << 5)
#define REGIONS 512

#define MAP_PRESENT (1ull << 63)
#define MAP_SWAPPED (1ull << 62)
#define MAP_FILE (1ull << 61)
#define MAP_CHUNK 4096

static int out_of_memory(struct err *e)
{
    return err_set(e, ERR_INTERNAL, "out of memory");
}

static int scan_fast(int fd, uint64_t base, uint64_t len, enum pagescan_what what, struct mem_extents *out,
                     struct err *e)
{
    struct scan_region r[REGIONS];
    struct scan_arg a = {.size = sizeof a,
                         .start = base,
                         .end = base + len,
                         .vec = (uintptr_t)r,
                         .vec_len = REGIONS,
                         .category_anyof_mask = SCAN_PRESENT | SCAN_SWAPPED,
                         .return_mask = SCAN_FILE};

    if (what == PAGESCAN_OWN)
        a.category_inverted = a.category_mask = SCAN_FILE;
    while (a.start < a.end) {
        int n = ioctl(fd, SCAN_CALL, &a);
        if (n < 0)
            return -1;
        for (int i = 0; i < n; i++) {
            uint64_t own = what == PAGESCAN_TOUCHED && !(r[i].categories & SCAN_FILE);
            if (mem_extents_add(out, r[i].start - base, (r[i].end - r[i].start) | own) < 0)
                return out_of_memory(e);
        }
        a.start = a.walk_end;
    }
    return 0;
}

static int scan_slow(int fd, uint64_t base, uint64_t len, enum pagescan_what what, struct mem_extents *out,
                     struct err *e)
{
    uint64_t word[MAP_CHUNK], pages = len / MEMFILE_PAGE;

    for (uint64_t p = 0; p < pages; p += MAP_CHUNK) {
        uint64_t n = pages - p < MAP_CHUNK ? pages - p : MAP_CHUNK;
        ssize_t got = pread(fd, word, n * 8, (off_t)((base / MEMFILE_PAGE + p) * 8));
        if (got != (ssize_t)(n * 8))
            return err_sys(e, ERR_INTERNAL, "read the page map");
        for (uint64_t i = 0; i < n; i++) {
            bool own = (word[i] & (MAP_PRESENT | MAP_SWAPPED)) && !(word[i] & MAP_FILE);
            bool want = what == PAGESCAN_OWN ? own : word[i] & (MAP_PRESENT | MAP_SWAPPED);
            uint64_t flag = what == PAGESCAN_TOUCHED && own;
            if (want && mem_extents_add(out, (p + i) * MEMFILE_PAGE, MEMFILE_PAGE | flag) < 0)
                return out_of_memory(e);
        }
    }
    return 0;
}

int pagescan(int pagemap_fd, const void *base, uint64_t len, enum pagescan_what what, struct mem_extents *out,
             struct err *e)
{
    if (pagemap_fd < 0)
        return err_set(e, ERR_UNSUPPORTED, "this process has no page map");
    if (scan_fast(pagemap_fd, (uintptr_t)base, len, what, out, e) == 0)
        return 0;
    if (e && e->code)
        return -1;
    out->n = 0;
    return scan_slow(pagemap_fd, (uintptr_t)base, len, what, out, e);
}
