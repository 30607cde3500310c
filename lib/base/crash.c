/* Owns the report of a crash. Invariant: the handler calls only what is safe in a signal handler (no lock, no
 * allocation; libgcc's unwinder finds tables by _dl_find_object), a second fault in it ends the process, and
 * the process ends by the signal that came. */
#include "lib/base/crash.h"

#include "lib/base/clock.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
enum { FATAL = sizeof fatal / sizeof *fatal, MOST_FRAMES = 48 };

void crash_unblock(sigset_t *set)
{
    for (unsigned i = 0; i < FATAL; i++)
        sigdelset(set, fatal[i]);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
void crash_init(const char *prog)
{
    (void)prog;
}
#else
static const char *name;
static const char *file;
static char handler_stack[64 << 10] __attribute__((aligned(16)));

struct text {
    char data[4096];
    size_t len;
};

static void put(struct text *t, const char *s)
{
    for (; *s && t->len < sizeof t->data - 4; s++) {
        bool plain = *s >= 0x20 && *s < 0x7f && *s != '"' && *s != '\\';
        t->data[t->len++] = plain ? *s : '?';
    }
}

static void put_number(struct text *t, uint64_t v, unsigned base)
{
    char digits[24], *at = digits + sizeof digits;
    *--at = 0;
    do
        *--at = "0123456789abcdef"[v % base];
    while ((v /= base) != 0);
    put(t, base == 16 ? "0x" : "");
    put(t, at);
}

static void put_place(struct text *t, const void *pc)
{
    struct dl_find_object found;
    if (_dl_find_object((void *)pc, &found) != 0) {
        put_number(t, (uintptr_t)pc, 16);
        return;
    }
    const char *path = found.dlfo_link_map->l_name, *slash = strrchr(path, '/');
    put(t, *path ? (slash ? slash + 1 : path) : program_invocation_short_name);
    put(t, "+");
    put_number(t, (uintptr_t)pc - found.dlfo_link_map->l_addr, 16);
}

/* The head of a line as lib/base/log.c writes it, up to its message. */
static void begin(struct text *t)
{
    static const char head[] = "{\"ts\":\"", middle[] = "\",\"level\":\"error\",\"prog\":\"",
                      tail[] = "\",\"msg\":\"";
    struct timespec now;
    char when[CLOCK_TEXT_BYTES] = "";
    clock_gettime(CLOCK_REALTIME, &now);
    clock_text(now.tv_sec * 1000 + now.tv_nsec / 1000000, when);
    memcpy(t->data, head, sizeof head - 1);
    t->len = sizeof head - 1;
    put(t, when);
    memcpy(t->data + t->len, middle, sizeof middle - 1);
    t->len += sizeof middle - 1;
    put(t, name);
    memcpy(t->data + t->len, tail, sizeof tail - 1);
    t->len += sizeof tail - 1;
}

static void end(struct text *t, int also)
{
    memcpy(t->data + t->len, "\"}\n", 3);
    t->len += 3;
    ssize_t r = write(STDERR_FILENO, t->data, t->len);
    if (also >= 0)
        r = write(also, t->data, t->len);
    (void)r; /* nowhere left to report to */
}

static void tell_where(int signo, const siginfo_t *si, const greg_t *r, int also)
{
    static const struct {
        const char *name;
        int at;
    } registers[] = {{"rax", REG_RAX}, {"rbx", REG_RBX}, {"rcx", REG_RCX}, {"rdx", REG_RDX}, {"rsi", REG_RSI},
                     {"rdi", REG_RDI}, {"rbp", REG_RBP}, {"rsp", REG_RSP}, {"r8", REG_R8},   {"r12", REG_R12},
                     {"r13", REG_R13}, {"r14", REG_R14}, {"r15", REG_R15}};
    struct text t;
    begin(&t);
    put(&t, "ended by signal ");
    put_number(&t, (uint64_t)signo, 10);
    if (si->si_code > 0) {
        put(&t, ", address ");
        put_number(&t, (uintptr_t)si->si_addr, 16);
    }
    put(&t, ", at ");
    put_place(&t, (void *)r[REG_RIP]);
    for (unsigned i = 0; i < sizeof registers / sizeof *registers; i++) {
        put(&t, i ? " " : ":");
        put(&t, i ? "" : " ");
        put(&t, registers[i].name);
        put(&t, "=");
        put_number(&t, (uint64_t)r[registers[i].at], 16);
    }
    end(&t, also);
}

static void tell_stack(const greg_t *r, int also)
{
    struct text t;
    void *frames[MOST_FRAMES], *top = NULL;
    begin(&t);
    put(&t, "its stack:");
    /* After a call to nowhere the unwinder knows no caller, but the top of the stack is where it came from.
     */
    struct iovec to = {&top, sizeof top}, from = {(void *)r[REG_RSP], sizeof top};
    struct dl_find_object found;
    if (_dl_find_object((void *)r[REG_RIP], &found) != 0 &&
        process_vm_readv(getpid(), &to, 1, &from, 1, 0) > 0) {
        put(&t, " ");
        put_place(&t, top);
    }
    int n = backtrace(frames, MOST_FRAMES), first = 0;
    for (int i = 0; i < n; i++) {
        if (frames[i] == (void *)r[REG_RIP])
            first = i; /* before it: this handler */
    }
    for (int i = first; i < n; i++) {
        put(&t, " ");
        put_place(&t, frames[i]);
    }
    end(&t, also);
}

/* Its action is the default again (SA_RESETHAND): what is returned to faults once more and ends the process.
 */
static void on_fatal(int signo, siginfo_t *si, void *context)
{
    const greg_t *r = ((const ucontext_t *)context)->uc_mcontext.gregs;
    int also = file ? open(file, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY) : -1;
    tell_where(signo, si, r, also);
    tell_stack(r, also);
    if (si->si_code <= 0)
        raise(signo); /* sent, also by abort() */
}

void crash_init(const char *prog)
{
    void *frame;
    name = prog;
    file = getenv("CUBE_CRASH_FILE");
    backtrace(&frame, 1); /* loads the unwinder now */
    sigaltstack(&(stack_t){.ss_sp = handler_stack, .ss_size = sizeof handler_stack}, NULL);
    struct sigaction a = {.sa_sigaction = on_fatal,
                          .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND | SA_NODEFER};
    sigemptyset(&a.sa_mask);
    for (unsigned i = 0; i < FATAL; i++)
        sigaction(fatal[i], &a, NULL);
}
#endif
