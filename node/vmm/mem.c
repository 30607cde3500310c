/* Owns the mapping of guest RAM. The host address never moves once a memory slot points at it: files are
 * mapped over the reservation with MAP_FIXED, so that KVM's slot (made in advance by a waiting process) stays
 * valid. */
#include "node/vmm/mem.h"

#include <sys/mman.h>
#include <sys/stat.h>

int mem_reserve(struct guest_mem *m, uint32_t mib, struct err *e)
{
    if (mib < 32 || mib > MEM_MAX_MIB)
        return err_set(e, ERR_INVALID, "guest memory of %u MiB: must be 32 to %u", mib, MEM_MAX_MIB);
    uint64_t size = (uint64_t)mib << 20;
    /* Aligned, so that a huge page of the guest can be one of the host and one of its file: a clone then maps
     * the kernel's code with 5 faults instead of 600. */
    uint8_t *p = mmap(NULL, size + MEM_HUGE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return err_sys(e, ERR_CAPACITY, "reserve %u MiB of guest memory", mib);
    uint64_t before = -(uintptr_t)p & (MEM_HUGE - 1);
    if (before)
        munmap(p, before);
    munmap(p + before + size, MEM_HUGE - before);
    *m = (struct guest_mem){.base = p + before, .size = size};
    return 0;
}

void mem_release(struct guest_mem *m)
{
    if (m->base)
        munmap(m->base, m->size);
    *m = (struct guest_mem){0};
}

int mem_map_file(struct guest_mem *m, int fd, bool shared, struct err *e)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return err_sys(e, ERR_INTERNAL, "stat of the memory file");
    if ((uint64_t)st.st_size != m->size)
        return err_set(e, ERR_INVALID, "memory file of %lld bytes for a guest of %llu bytes",
                       (long long)st.st_size, (unsigned long long)m->size);
    void *p = mmap(m->base, m->size, PROT_READ | PROT_WRITE,
                   MAP_FIXED | MAP_NORESERVE | (shared ? MAP_SHARED : MAP_PRIVATE), fd, 0);
    if (p == MAP_FAILED)
        return err_sys(e, ERR_INTERNAL, "map the memory file");
    m->shared = shared;
    m->file_dev = st.st_dev;
    m->file_ino = st.st_ino;
    return 0;
}

void mem_discard(const struct guest_mem *m, void *p, uint64_t len)
{
    uint64_t from = ((uint64_t)(uintptr_t)p + MEM_PAGE - 1) & ~(MEM_PAGE - 1);
    uint64_t to = ((uint64_t)(uintptr_t)p + len) & ~(MEM_PAGE - 1);

    if (from < to)
        madvise((void *)(uintptr_t)from, to - from, m->shared ? MADV_REMOVE : MADV_DONTNEED);
}
