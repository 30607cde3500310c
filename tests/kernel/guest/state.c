/* state: processor state that the kernel keeps per thread survives context switches, signals and fork: GS
 * base, FS base, and the vector registers up to AVX-512. argv[1]: seconds. */
#include <asm/prctl.h>
#include <immintrin.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static void on_alarm(int sig)
{
    (void)sig;
    __asm__ volatile("vpxor %%xmm0,%%xmm0,%%xmm0; vpxor %%xmm9,%%xmm9,%%xmm9" ::: "xmm0", "xmm9");
}

static uint64_t gs_word(void)
{
    uint64_t v;

    __asm__ volatile("mov %%gs:8, %0" : "=r"(v));
    return v;
}

static void gs_loop(uint64_t mark, double seconds)
{
    uint64_t *area = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned long base;
    time_t until = time(NULL) + (time_t)seconds + 1;

    area[1] = mark;
    CHECK(syscall(SYS_arch_prctl, ARCH_SET_GS, area) == 0, "ARCH_SET_GS");
    while (time(NULL) < until) {
        for (int i = 0; i < 1000; i++)
            CHECK(gs_word() == mark, "GS base lost in process %d", getpid());
        sched_yield();
        CHECK(syscall(SYS_arch_prctl, ARCH_GET_GS, &base) == 0 && base == (uintptr_t)area,
              "ARCH_GET_GS says %lx", base);
        pid_t pid = fork();
        int status;
        if (pid == 0)
            _exit(gs_word() == mark ? 0 : 1);
        waitpid(pid, &status, 0);
        CHECK(status == 0, "the child of fork has another GS base");
    }
    _exit(0);
}

__attribute__((target("avx2"))) static void avx_loop(int seed, double seconds)
{
    time_t until = time(NULL) + (time_t)seconds + 1;
    struct itimerval timer = {{0, 1000}, {0, 1000}};

    setitimer(ITIMER_REAL, &timer, NULL);
    while (time(NULL) < until) {
        for (int i = 0; i < 200; i++) {
            __m256i a = _mm256_set1_epi32(seed + i), b = _mm256_set1_epi32(~(seed + i));
            __asm__ volatile("" : "+x"(a), "+x"(b));
            for (volatile int spin = 0; spin < 500; spin++)
                __asm__ volatile("" : "+x"(a), "+x"(b));
            __m256i x = _mm256_xor_si256(a, b);
            CHECK(_mm256_movemask_epi8(_mm256_cmpeq_epi32(x, _mm256_set1_epi32(-1))) == -1, "AVX state lost");
        }
        sched_yield();
    }
    _exit(0);
}

__attribute__((target("avx512f"))) static void avx512_loop(int seed, double seconds)
{
    time_t until = time(NULL) + (time_t)seconds + 1;
    struct itimerval timer = {{0, 1000}, {0, 1000}};

    setitimer(ITIMER_REAL, &timer, NULL);
    while (time(NULL) < until) {
        uint32_t in[16], low[16], high[16], mask = 0;
        for (int i = 0; i < 16; i++)
            in[i] = (uint32_t)(seed * 1000 + i);
        /* zmm20 and k3 exist only in the state that AVX-512 adds. */
        __asm__ volatile("vmovdqu32 %4, %%zmm5; vmovdqu32 %4, %%zmm20; kmovw %5, %%k3\n\t"
                         "mov $200000, %%ecx; 1: dec %%ecx; jnz 1b\n\t"
                         "vmovdqu32 %%zmm5, %0; vmovdqu32 %%zmm20, %1; kmovw %%k3, %2"
                         : "=m"(low), "=m"(high), "=r"(mask), "=m"(in)
                         : "m"(in), "r"(0xa5a5)
                         : "rcx", "cc", "memory");
        CHECK(!memcmp(in, low, 64) && !memcmp(in, high, 64) && mask == 0xa5a5, "AVX-512 state lost");
        sched_yield();
    }
    _exit(0);
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 2;
    int started = 0, status;
    struct sigaction sa = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};

    sigaction(SIGALRM, &sa, NULL);
    for (int i = 0; i < 3; i++, started++)
        if (fork() == 0)
            gs_loop(0x1234567800000000 + (uint64_t)i, seconds);
    if (__builtin_cpu_supports("avx2"))
        for (int i = 0; i < 2; i++, started++)
            if (fork() == 0)
                avx_loop(i + 1, seconds);
    if (__builtin_cpu_supports("avx512f"))
        for (int i = 0; i < 2; i++, started++)
            if (fork() == 0)
                avx512_loop(i + 1, seconds);
    for (int i = 0; i < started; i++) {
        wait(&status);
        CHECK(status == 0, "a worker ended with %x", status);
    }
    printf("avx2 %d, avx512f %d\n", !!__builtin_cpu_supports("avx2"), !!__builtin_cpu_supports("avx512f"));
    return 0;
}
