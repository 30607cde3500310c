/* CPU, memory and disk figures of this machine. */
#pragma once

#include <stdint.h>

struct sysinfo_figures {
    uint32_t cpus;
    uint64_t cpu_busy_us, cpu_total_us;      /* since boot, all CPUs together */
    uint64_t mem_total, mem_used, mem_cache; /* bytes; used = total − available */
    uint64_t disk_total, disk_used; /* bytes of `root`; used = total − available (contracts/e2b.md §3) */
};

/** Reads /proc and statfs(root); what cannot be read stays 0. */
void sysinfo_read(const char *root, struct sysinfo_figures *out);
