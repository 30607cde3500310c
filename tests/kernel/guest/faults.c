/* faults: every kind of fault reaches a handler with the right signal, code and address, also on an alternate
 * stack and from instruction pointers that are not canonical. */
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "check.h"

static sigjmp_buf back;
static siginfo_t seen;

static void on_fault(int sig, siginfo_t *info, void *context)
{
    (void)sig;
    (void)context;
    seen = *info;
    siglongjmp(back, 1);
}

#define EXPECT(statement, signal, code, address)                                                             \
    do {                                                                                                     \
        memset(&seen, 0, sizeof(seen));                                                                      \
        if (!sigsetjmp(back, 1)) {                                                                           \
            statement;                                                                                       \
            CHECK(0, "no signal from: %s", #statement);                                                      \
        }                                                                                                    \
        CHECK(seen.si_signo == (signal), "%s: signal %d", #statement, seen.si_signo);                        \
        CHECK(seen.si_code == (code), "%s: code %d", #statement, seen.si_code);                              \
        CHECK((uintptr_t)seen.si_addr == (uintptr_t)(address), "%s: address %p", #statement, seen.si_addr);  \
    } while (0)

static void jump(uint64_t to)
{
    ((void (*)(void))to)();
}

int main(void)
{
    char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static char alternate[65536];
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof(alternate)};
    struct sigaction sa = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
    volatile int zero = 0;

    sigaltstack(&stack, NULL);
    for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++)
        sigaction(signals[i], &sa, NULL);

    mprotect(page + 4096, 4096, PROT_NONE);
    munmap(page, 4096);
    for (volatile int i = 0; i < 5000; i++) {
        EXPECT(*(volatile char *)(page + 123) = 1, SIGSEGV, SEGV_MAPERR, page + 123);
        EXPECT((void)*(volatile char *)(page + 4096), SIGSEGV, SEGV_ACCERR, page + 4096);
    }
    EXPECT((void)*(volatile char *)0xffffffff81000000, SIGSEGV, SEGV_MAPERR, 0xffffffff81000000);
    EXPECT((void)*(volatile char *)0x8000000000000000, SIGSEGV, SI_KERNEL, 0);
    EXPECT(jump(0x8000000000000000), SIGSEGV, SI_KERNEL, 0);
    EXPECT(jump((uint64_t)page + 4096), SIGSEGV, SEGV_ACCERR, page + 4096);
    EXPECT(__asm__ volatile("idivl %0"
                            :
                            : "m"(zero)
                            : "rax", "rdx", "cc"),
           SIGFPE, FPE_INTDIV, (uintptr_t)seen.si_addr);
    EXPECT(__asm__ volatile("ud2"), SIGILL, ILL_ILLOPN, (uintptr_t)seen.si_addr);
    EXPECT(__asm__ volatile("int3"), SIGTRAP, SI_KERNEL, 0);
    EXPECT(__asm__ volatile("mov $8, %%rsp; push %%rax" ::: "memory"), SIGSEGV, SEGV_MAPERR, 0);

    int fd = memfd_create("short", 0);
    CHECK(ftruncate(fd, 0) == 0, "ftruncate");
    char *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    EXPECT((void)*(volatile char *)mapped, SIGBUS, BUS_ADRERR, mapped);
    puts("ok");
    return 0;
}
