/* registers: a storm of timer signals hits a loop that keeps known values in every general register, in the
 * flags and in the red zone. A return to user mode that loses one of them shows at once. argv[1]: seconds,
 * argv[2]: signal period in µs. */
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static volatile sig_atomic_t hits;

static void on_alarm(int sig)
{
    (void)sig;
    hits++;
    /* Use every caller-saved register, as a real handler would. */
    __asm__ volatile("xor %%eax,%%eax; xor %%ecx,%%ecx; xor %%edx,%%edx; xor %%esi,%%esi; xor %%edi,%%edi\n\t"
                     "xor %%r8,%%r8; xor %%r9,%%r9; xor %%r10,%%r10; xor %%r11,%%r11" ::
                         : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "cc");
}

/* Returns 0 when all values survived `rounds` rounds; else the number of the register that did not. */
__attribute__((naked, noinline)) static long spin(long rounds __attribute__((unused)))
{
    __asm__("push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n\t"
            "mov %rdi, %rax\n\t"
            "mov $0x1111111111111111, %rbx; mov $0x2222222222222222, %rcx; mov $0x3333333333333333, %rdx\n\t"
            "mov $0x4444444444444444, %rsi; mov $0x5555555555555555, %rdi; mov $0x6666666666666666, %rbp\n\t"
            "mov $0x7777777777777777, %r8;  mov $0x0888888888888888, %r9;  mov $0x0999999999999999, %r10\n\t"
            "mov $0x0aaaaaaaaaaaaaaa, %r11; mov $0x0bbbbbbbbbbbbbbb, %r12; mov $0x0ccccccccccccccc, %r13\n\t"
            "mov $0x0ddddddddddddddd, %r14; mov $0x0eeeeeeeeeeeeeee, %r15\n\t"
            "movq %r11, -8(%rsp)\n\t"  /* red zone */
            "movq %rax, -64(%rsp)\n\t" /* counter, in the red zone too */
            "1: std; stc\n\t"
            "nop; nop; nop; nop; nop; nop; nop; nop\n\t"
            "jnc 90f\n\t"
            "pushfq; pop %rax; cld; test $0x400, %eax; jz 91f\n\t"
            "movq %r11, -8(%rsp)\n\t" /* the push used the red zone */
            "movabs $0x1111111111111111, %rax; cmp %rax, %rbx; mov $1, %eax; jne 99f\n\t"
            "movabs $0x2222222222222222, %rax; cmp %rax, %rcx; mov $2, %eax; jne 99f\n\t"
            "movabs $0x3333333333333333, %rax; cmp %rax, %rdx; mov $3, %eax; jne 99f\n\t"
            "movabs $0x4444444444444444, %rax; cmp %rax, %rsi; mov $4, %eax; jne 99f\n\t"
            "movabs $0x5555555555555555, %rax; cmp %rax, %rdi; mov $5, %eax; jne 99f\n\t"
            "movabs $0x6666666666666666, %rax; cmp %rax, %rbp; mov $6, %eax; jne 99f\n\t"
            "movabs $0x7777777777777777, %rax; cmp %rax, %r8; mov $7, %eax; jne 99f\n\t"
            "movabs $0x0888888888888888, %rax; cmp %rax, %r9; mov $8, %eax; jne 99f\n\t"
            "movabs $0x0999999999999999, %rax; cmp %rax, %r10; mov $9, %eax; jne 99f\n\t"
            "movabs $0x0aaaaaaaaaaaaaaa, %rax; cmp %rax, %r11; mov $10, %eax; jne 99f\n\t"
            "movabs $0x0bbbbbbbbbbbbbbb, %rax; cmp %rax, %r12; mov $11, %eax; jne 99f\n\t"
            "movabs $0x0ccccccccccccccc, %rax; cmp %rax, %r13; mov $12, %eax; jne 99f\n\t"
            "movabs $0x0ddddddddddddddd, %rax; cmp %rax, %r14; mov $13, %eax; jne 99f\n\t"
            "movabs $0x0eeeeeeeeeeeeeee, %rax; cmp %rax, %r15; mov $14, %eax; jne 99f\n\t"
            "cmp %r11, -8(%rsp); mov $15, %eax; jne 99f\n\t"
            "decq -64(%rsp)\n\t"
            "jnz 1b\n\t"
            "xor %eax, %eax\n\t"
            "jmp 99f\n\t"
            "90: mov $16, %eax; jmp 99f\n\t"
            "91: mov $17, %eax\n\t"
            "99: cld; pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx; ret");
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 2;
    long period = argc > 2 ? atol(argv[2]) : 100;
    struct sigaction sa = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval timer = {{0, period}, {0, period}};
    struct timespec start, now;
    /* In a denser storm a loop hardly gets on, three instructions per signal on a loaded host: 500 turns took
     * 10 s. */
    long rounds = 0, turns = period < 50 ? 100 : 20000;

    sigaction(SIGALRM, &sa, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        long bad = spin(turns);
        CHECK(bad == 0, "register %ld changed after %d signals", bad, (int)hits);
        for (int i = 0; i < 50; i++)
            CHECK(syscall(SYS_getppid) > 0, "getppid");
        rounds++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - start.tv_sec) + (double)(now.tv_nsec - start.tv_nsec) / 1e9 < seconds);
    CHECK(hits > 3, "only %d signals", (int)hits);
    printf("%ld rounds, %d signals\n", rounds, (int)hits);
    return 0;
}
