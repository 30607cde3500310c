/* Figures from /proc. */
#include "guest/common/sysinfo.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "lib/base/cleanup.h"

#define JUMP ((uint64_t)32 << 20)
#define JUMP_READS 4
#define JUMP_PAUSE_US 2000

static size_t text_read(const char *path, char *out, size_t cap)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t n = 0;
    while (fd >= 0 && n + 1 < cap) {
        ssize_t r = read(fd, out + n, cap - 1 - n);
        if (r <= 0)
            break;
        n += (size_t)r;
    }
    out[n] = 0;
    return n;
}

static uint64_t kib_of(const char *text, const char *key)
{
    const char *p = strstr(text, key);
    return p ? strtoull(p + strlen(key), NULL, 10) * 1024 : 0;
}

static void cpu_read(struct sysinfo_figures *out)
{
    char text[4096];
    unsigned long long v[8] = {0};
    if (!text_read("/proc/stat", text, sizeof(text)))
        return;
    if (sscanf(text, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5],
               &v[6], &v[7]) < 4)
        return;
    uint64_t tick_us = 1000000 / (uint64_t)sysconf(_SC_CLK_TCK), total = 0;
    for (int i = 0; i < 8; i++)
        total += v[i];
    out->cpu_total_us = total * tick_us;
    out->cpu_busy_us = (total - v[3] - v[4]) * tick_us; /* all but idle and iowait */
}

/* While the kernel reports free pages to the host it takes up to 32 blocks of 4 MiB off its free lists for
 * some milliseconds: an idle guest of 512 MiB seems to use 128 MiB more (seen 4 s after boot, then never
 * again). A jump is looked at again before it is believed. */
static void memory_read(struct sysinfo_figures *out)
{
    static uint64_t before;
    char text[4096];
    for (int i = 0; i < JUMP_READS; i++) {
        if (!text_read("/proc/meminfo", text, sizeof(text)))
            return;
        out->mem_total = kib_of(text, "MemTotal:");
        out->mem_cache = kib_of(text, "\nCached:");
        uint64_t used = out->mem_total - kib_of(text, "MemAvailable:");
        if (!i || used < out->mem_used)
            out->mem_used = used;
        if (!before || out->mem_used < before + JUMP)
            break;
        usleep(JUMP_PAUSE_US);
    }
    before = out->mem_used;
}

void sysinfo_read(const char *root, struct sysinfo_figures *out)
{
    struct statvfs fs;
    *out = (struct sysinfo_figures){.cpus = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN)};
    cpu_read(out);
    memory_read(out);
    if (statvfs(root, &fs) == 0) {
        out->disk_total = (uint64_t)fs.f_blocks * fs.f_frsize;
        out->disk_used = out->disk_total - (uint64_t)fs.f_bavail * fs.f_frsize;
    }
}
