/* probe: what user mode must not do. Each attempt runs in a child: reads, writes and jumps into the kernel's
 * half, privileged instructions, I/O ports, MSRs, returns to a kernel selector, and jumps into the code that
 * brings a return to user mode (the vDSO stub of CONFIG_PVX_GUEST) with registers of its own choice. An
 * attempt passes when the child dies by a signal (or, for instructions that are harmless, goes on without
 * effect); afterwards the kernel's half must still be out of reach and a file written before must read the
 * same. */
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static int attempts, failures;
static const char *name;

enum outcome { MUST_DIE, MAY_SURVIVE };

/* Runs body in a child and judges its end. A child that hangs is killed by its timer, which also counts as
 * contained. */
static void attempt(const char *what, enum outcome expected, void (*body)(uint64_t), uint64_t arg)
{
    int status;
    pid_t pid;

    name = what;
    attempts++;
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {0, 300000}}, NULL);
        body(arg);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    if (!WIFSIGNALED(status) && expected == MUST_DIE) {
        printf("NOT CONTAINED: %s (%#llx): status %x\n", what, (unsigned long long)arg, status);
        failures++;
    }
}

static void do_read(uint64_t a)
{
    volatile uint8_t v = *(volatile uint8_t *)a;
    (void)v;
}

static void do_write(uint64_t a)
{
    *(volatile uint8_t *)a = 0;
}

static void do_jump(uint64_t a)
{
    ((void (*)(void))a)();
}

/* The return stub pops rcx and r11 from a frame of its own, so a jump there must land in this process's user
 * code or die. */
static void do_stub(uint64_t a)
{
    __asm__ volatile(
        "mov %0, %%rax; mov $0xffffffff81000000, %%rcx; mov $0x3, %%r11d; xor %%esp, %%esp; jmp *%%rax" ::"r"(
            a)
        : "rax", "rcx", "r11", "memory");
}

#define INSTRUCTION(name, text)                                                                              \
    static void name(uint64_t a)                                                                             \
    {                                                                                                        \
        __asm__ volatile(text ::"D"(a) : "rax", "rbx", "rcx", "rdx", "rsi", "memory", "cc");                 \
    }

INSTRUCTION(do_cli, "cli")
INSTRUCTION(do_sti, "sti; nop")
INSTRUCTION(do_hlt, "hlt")
INSTRUCTION(do_in, "mov $0xe9, %%edx; in %%dx, %%al")
INSTRUCTION(do_out, "mov $0xe9, %%edx; mov $1, %%eax; out %%eax, %%dx")
INSTRUCTION(do_reset, "mov $0xfe, %%al; out %%al, $0x64")
INSTRUCTION(do_rdmsr, "mov %%edi, %%ecx; rdmsr")
INSTRUCTION(do_wrmsr, "mov %%edi, %%ecx; xor %%eax, %%eax; xor %%edx, %%edx; wrmsr")
INSTRUCTION(do_read_cr0, "mov %%cr0, %%rax")
INSTRUCTION(do_read_cr3, "mov %%cr3, %%rax")
INSTRUCTION(do_write_cr3, "mov %%rdi, %%cr3")
INSTRUCTION(do_write_cr4, "xor %%eax, %%eax; mov %%rax, %%cr4")
INSTRUCTION(do_read_dr7, "mov %%dr7, %%rax")
INSTRUCTION(do_lgdt, "lgdt (%%rdi)")
INSTRUCTION(do_lidt, "lidt (%%rdi)")
INSTRUCTION(do_lldt, "mov %%edi, %%eax; lldt %%ax")
INSTRUCTION(do_ltr, "mov $0x40, %%eax; ltr %%ax")
INSTRUCTION(do_clts, "clts")
INSTRUCTION(do_wbinvd, "wbinvd")
INSTRUCTION(do_invlpg, "invlpg (%%rdi)")
INSTRUCTION(do_invlpg_cpuid, "invlpg 0xffffffffff4d5650; cpuid")
INSTRUCTION(do_swapgs, "swapgs; mov %%gs:0, %%rax")
INSTRUCTION(do_sysretq, "mov %%rdi, %%rcx; mov $0x202, %%r11d; sysretq")
INSTRUCTION(do_xsetbv, "xor %%ecx, %%ecx; mov $1, %%eax; xor %%edx, %%edx; xsetbv")
INSTRUCTION(do_vmcall, "mov $5, %%eax; vmcall")
INSTRUCTION(do_vmmcall, "mov $5, %%eax; vmmcall")
INSTRUCTION(do_int80, "mov $20, %%eax; int $0x80")
INSTRUCTION(do_int_vector, "int $0x20")
INSTRUCTION(do_kernel_iret, "mov %%ss, %%eax; push $0x18; push %%rsp; pushfq; push $0x10; push %%rdi; iretq")
INSTRUCTION(do_kernel_lret, "push $0x10; push %%rdi; lretq")
INSTRUCTION(do_iopl,
            "pushfq; pop %%rax; or $0x3000, %%eax; push %%rax; popfq; mov $0x80, %%edx; out %%al, %%dx")
INSTRUCTION(do_load_ss, "mov $0x18, %%eax; mov %%ax, %%ss")
INSTRUCTION(do_kernel_gs, "mov $0x18, %%eax; mov %%ax, %%gs; mov %%gs:0, %%rax")
/* popf cannot clear the interrupt flag in user mode: the alarm must still arrive. */
INSTRUCTION(do_popf_hang, "pushfq; pop %%rax; and $~0x200, %%eax; push %%rax; popfq; 1: jmp 1b")

static void memory_and_jumps(void)
{
    static const uint64_t kernel[] = {
        0xffffffff81000000, /* text */
        0xffffffff82000000, /* data */
        0xffff888000000000, /* direct map: physical page 0 */
        0xffff888000008000, /* the mailbox of secondary CPUs */
        0xffff888001000000, /* the kernel's image in the direct map */
        0xfffffe0000000000, /* CPU entry area: IDT */
        0xfffffe0000001000, /* GDT and entry stack of CPU 0 */
        0xffffc90000000000, /* vmalloc */
        0xffffea0000000000, /* struct page */
        0xffffffffff5fd000, /* fixmap: APIC */
        0xffffffffff4d5650, /* the address of the CPUID trap */
        0xffffffffff600000, /* vsyscall */
        0xffff800000000000, /* first address of the upper half */
        0xffffffffffffffff,
    };
    for (size_t i = 0; i < sizeof(kernel) / sizeof(*kernel); i++) {
        attempt("read kernel memory", MUST_DIE, do_read, kernel[i]);
        attempt("write kernel memory", MUST_DIE, do_write, kernel[i]);
        attempt("jump into the kernel", MUST_DIE, do_jump, kernel[i]);
    }
}

static void instructions(void)
{
    static uint8_t table[16];
    static const uint64_t msrs[] = {0x1b,       0xc0000080, 0xc0000081, 0xc0000082, 0xc0000101,
                                    0xc0000102, 0x4b564d10, 0x4b564d11, 0x4b564d01};
    static const struct {
        const char *what;
        void (*body)(uint64_t);
        enum outcome expected;
        uint64_t arg;
    } list[] = {
        {"cli", do_cli, MUST_DIE, 0},
        {"sti", do_sti, MUST_DIE, 0},
        {"hlt", do_hlt, MUST_DIE, 0},
        {"in", do_in, MUST_DIE, 0},
        {"out", do_out, MUST_DIE, 0},
        {"reset by port 0x64", do_reset, MUST_DIE, 0},
        {"mov from cr0", do_read_cr0, MUST_DIE, 0},
        {"mov from cr3", do_read_cr3, MUST_DIE, 0},
        {"mov to cr3", do_write_cr3, MUST_DIE, 0x1000},
        {"mov to cr4", do_write_cr4, MUST_DIE, 0},
        {"mov from dr7", do_read_dr7, MUST_DIE, 0},
        {"lgdt", do_lgdt, MUST_DIE, (uintptr_t)table},
        {"lidt", do_lidt, MUST_DIE, (uintptr_t)table},
        {"lldt", do_lldt, MUST_DIE, 0x50},
        {"ltr", do_ltr, MUST_DIE, 0},
        {"clts", do_clts, MUST_DIE, 0},
        {"wbinvd", do_wbinvd, MUST_DIE, 0},
        {"invlpg", do_invlpg, MUST_DIE, (uintptr_t)table},
        {"the CPUID trap", do_invlpg_cpuid, MUST_DIE, 0},
        {"swapgs", do_swapgs, MUST_DIE, 0},
        {"sysretq to user code", do_sysretq, MUST_DIE, (uintptr_t)do_cli},
        {"sysretq to the kernel", do_sysretq, MUST_DIE, 0xffffffff81000000},
        {"xsetbv", do_xsetbv, MUST_DIE, 0},
        {"vmcall", do_vmcall, MAY_SURVIVE, 0},
        {"vmmcall", do_vmmcall, MAY_SURVIVE, 0},
        {"int 0x80", do_int80, MAY_SURVIVE, 0},
        {"int 0x20", do_int_vector, MUST_DIE, 0},
        {"iretq to the kernel's selector", do_kernel_iret, MUST_DIE, 0xffffffff81000000},
        {"iretq to the kernel's selector at user code", do_kernel_iret, MUST_DIE, (uintptr_t)do_cli},
        {"lretq to the kernel's selector", do_kernel_lret, MUST_DIE, (uintptr_t)do_cli},
        {"raise the I/O privilege", do_iopl, MUST_DIE, 0},
        {"load the kernel's SS", do_load_ss, MUST_DIE, 0},
        {"load the kernel's GS", do_kernel_gs, MUST_DIE, 0},
        {"clear the interrupt flag and spin", do_popf_hang, MUST_DIE, 0},
    };
    for (size_t i = 0; i < sizeof(list) / sizeof(*list); i++)
        attempt(list[i].what, list[i].expected, list[i].body, list[i].arg);
    for (size_t i = 0; i < sizeof(msrs) / sizeof(*msrs); i++) {
        attempt("rdmsr", MUST_DIE, do_rdmsr, msrs[i]);
        attempt("wrmsr", MUST_DIE, do_wrmsr, msrs[i]);
    }
}

static void unmap_vdso(uint64_t base)
{
    munmap((void *)base, 4096);
    for (int i = 0; i < 100; i++)
        getppid();
}

/* Where the kernel mapped the vDSO of this process. */
static bool find_vdso(uint64_t *start, uint64_t *end)
{
    char line[256];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");

    while (maps && !found && fgets(line, sizeof(line), maps))
        found = strstr(line, "[vdso]") && sscanf(line, "%lx-%lx", start, end) == 2;
    if (maps)
        fclose(maps);
    return found;
}

/* The return stubs are the only iretq in the vDSO: every byte of each is tried as an entry. */
static void vdso(void)
{
    uint64_t base, end;

    CHECK(find_vdso(&base, &end), "no vDSO");
    for (uint64_t at = base + 16; at + 1 < end; at++)
        if (((const uint8_t *)at)[0] == 0x48 && ((const uint8_t *)at)[1] == 0xcf)
            for (uint64_t entry = at - 12; entry < at + 2; entry++)
                attempt("jump into the return stub", MAY_SURVIVE, do_stub, entry);
    attempt("write the vvar page", MUST_DIE, do_write, base - 4 * 4096 + 0xe00);
    attempt("write the vDSO", MUST_DIE, do_write, base);
    attempt("unmap the vDSO", MAY_SURVIVE, unmap_vdso, base);
}

int main(void)
{
    uint8_t before[4096], after[4096];
    FILE *f;

    CHECK((f = fopen("/bin/true", "r")) && fread(before, 1, sizeof(before), f) > 100, "read /bin/true");
    fclose(f);
    memory_and_jumps();
    instructions();
    vdso();
    memory_and_jumps();
    memset(after, 0, sizeof(after));
    CHECK((f = fopen("/bin/true", "r")) && fread(after, 1, sizeof(after), f) > 100, "read /bin/true again");
    CHECK(!memcmp(before, after, sizeof(after)), "a file reads differently afterwards");
    printf("%d attempts, %d not contained\n", attempts, failures);
    return failures != 0;
}
