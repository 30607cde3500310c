/* memory: page tables under torture. Several processes map, protect, move, copy on write and drop pages of
 * known content and check every byte. argv[1]: seconds. */
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { PAGES = 64, PAGE = 4096 };

static void fill(uint64_t *p, uint64_t mark)
{
    for (int i = 0; i < PAGE / 8; i++)
        p[i] = mark + (uint64_t)i;
}

static void verify(const uint64_t *p, uint64_t mark, const char *when)
{
    for (int i = 0; i < PAGE / 8; i++)
        CHECK(p[i] == mark + (uint64_t)i, "wrong data %s", when);
}

static void torture(unsigned seed, double seconds)
{
    time_t until = time(NULL) + (time_t)seconds + 1;
    int pipes[2];

    CHECK(pipe2(pipes, O_CLOEXEC) == 0, "pipe");
    for (uint64_t mark = (uint64_t)seed << 32; time(NULL) < until; mark += 1000) {
        char *area = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(area != MAP_FAILED, "mmap");
        for (int i = 0; i < PAGES; i++)
            fill((uint64_t *)(area + i * PAGE), mark + (uint64_t)i);
        CHECK(mprotect(area, PAGES * PAGE, PROT_READ) == 0, "mprotect");
        pid_t pid = fork();
        if (pid == 0) { /* copy on write in the child must not show in the parent */
            mprotect(area, PAGES * PAGE, PROT_READ | PROT_WRITE);
            for (int i = 0; i < PAGES; i += 3)
                fill((uint64_t *)(area + i * PAGE), ~mark);
            _exit(0);
        }
        CHECK(mprotect(area, PAGES * PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect back");
        char *moved = mremap(area, PAGES * PAGE, 2 * PAGES * PAGE, MREMAP_MAYMOVE);
        CHECK(moved != MAP_FAILED, "mremap");
        int status;
        waitpid(pid, &status, 0);
        CHECK(status == 0, "child: %x", status);
        for (int i = 0; i < PAGES; i++)
            verify((uint64_t *)(moved + i * PAGE), mark + (uint64_t)i, "after fork and mremap");
        CHECK(madvise(moved, PAGE, MADV_DONTNEED) == 0, "madvise");
        for (int i = 0; i < PAGE; i++)
            CHECK(moved[i] == 0, "a dropped page is not zero");
        CHECK(write(pipes[1], moved + PAGE, PAGE) == PAGE, "write");
        CHECK(read(pipes[0], moved, PAGE) == PAGE, "read"); /* the kernel writes into an unmapped page */
        verify((uint64_t *)moved, mark + 1, "through a pipe");
        munmap(moved, 2 * PAGES * PAGE);
    }
    _exit(0);
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 2;
    int status;

    for (unsigned i = 0; i < 4; i++)
        if (fork() == 0)
            torture(i + 1, seconds);
    for (int i = 0; i < 4; i++) {
        wait(&status);
        CHECK(status == 0, "a worker ended with %x", status);
    }
    puts("ok");
    return 0;
}
