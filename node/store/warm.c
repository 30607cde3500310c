/* Page cache of memory images. A clone maps a huge page of its kernel with one fault when the image's page
 * cache has it as one; and whoever reads a page first is charged for it: that must be the node, not the first
 * clone. Only a help: what is not read here is read when needed. */
#include "node/store/content.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HUGE ((off_t)2 << 20)

/* Bytes of data between `at` and `end`. */
static off_t data_between(int fd, off_t at, off_t end)
{
    off_t sum = 0;
    while (at < end) {
        off_t data = lseek(fd, at, SEEK_DATA);
        if (data < 0 || data >= end)
            break;
        off_t hole = lseek(fd, data, SEEK_HOLE);
        at = hole < 0 || hole > end ? end : hole;
        sum += at - data;
    }
    return sum;
}

void content_warm(int fd, bool again)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || st.st_size < HUGE)
        return;
    char *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED)
        return;
    if (again) /* clean pages only: the file was flushed */
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    madvise(p, (size_t)st.st_size, MADV_RANDOM); /* the piece, and not the one behind it, too */
    for (off_t at = 0; at + HUGE <= st.st_size; at += HUGE)
        if (data_between(fd, at, at + HUGE) >= HUGE / 2) { /* as the VMM wrote it: node/vmm/snapshot.c */
            madvise(p + at, (size_t)HUGE, MADV_HUGEPAGE);
            madvise(p + at, (size_t)HUGE, MADV_POPULATE_READ);
        }
    munmap(p, (size_t)st.st_size);
}
