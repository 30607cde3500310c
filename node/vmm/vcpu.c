/* vCPU threads. Invariant: a vCPU's registers are read or written by another thread only while it is parked
 * at the gate (or was never online), with no access of the guest half done. */
#include "node/vmm/vm.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MSR_STAR 0xc0000081u
#define STAR_LINUX 0x0023001000000000ull /* the selectors that a PVM-kind host insists on */

#define CR0_START 0x80050033ull
#define CR4_PAE 0x20ull
#define EFER_START 0x501ull /* SCE | LME | LMA */

static struct kvm_segment segment(uint16_t selector, uint8_t type, bool code)
{
    return (struct kvm_segment){.base = 0,
                                .limit = 0xffffffff,
                                .selector = selector,
                                .type = type,
                                .present = 1,
                                .dpl = 0,
                                .db = !code,
                                .s = 1,
                                .l = code,
                                .g = 1};
}

static int cpuid_set(struct vm *vm, struct vcpu *v, struct err *e)
{
    struct {
        struct kvm_cpuid2 head;
        struct kvm_cpuid_entry2 entry[160];
    } c = {.head.nent = 160};

    if (ioctl(vm->kvm_fd, KVM_GET_SUPPORTED_CPUID, &c) < 0)
        return err_sys(e, ERR_INTERNAL, "ask KVM for CPU features");
    for (unsigned i = 0; i < c.head.nent; i++) {
        struct kvm_cpuid_entry2 *x = &c.entry[i];

        if (x->function == 1) {
            x->ebx = (x->ebx & 0x0000ffffu) | v->index << 24 | vm->nvcpus << 16;
            x->ecx |= 1u << 24 |
                      1u << 31; /* TSC-deadline timer (in the kernel's APIC), running under a hypervisor */
            x->edx = vm->nvcpus > 1 ? x->edx | 1u << 28 : x->edx & ~(1u << 28);
        } else if (x->function == 0xb || x->function == 0x1f) {
            x->edx = v->index;
        }
    }
    if (ioctl(v->fd, KVM_SET_CPUID2, &c) < 0)
        return err_sys(e, ERR_INTERNAL, "set CPU features of vCPU %u", v->index);
    return 0;
}

int vcpu_create(struct vm *vm, unsigned index, struct err *e)
{
    struct vcpu *v = &vm->vcpu[index];

    v->vm = vm;
    v->index = index;
    v->parked = true;
    v->fd = ioctl(vm->vm_fd, KVM_CREATE_VCPU, index);
    if (v->fd < 0)
        return err_sys(e, ERR_CAPACITY, "create vCPU %u", index);
    v->run = mmap(NULL, vm->run_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, v->fd, 0);
    if (v->run == MAP_FAILED)
        return err_sys(e, ERR_CAPACITY, "map vCPU %u", index);
    return cpuid_set(vm, v, e);
}

void vcpu_destroy(struct vcpu *v)
{
    if (v->run && v->run != MAP_FAILED)
        munmap(v->run, v->vm->run_bytes);
    if (v->vm && v->fd >= 0)
        close(v->fd);
    *v = (struct vcpu){.fd = -1};
}

int vcpu_set_msr(struct vcpu *v, uint32_t index, uint64_t value)
{
    struct {
        struct kvm_msrs head;
        struct kvm_msr_entry entry;
    } m = {.head.nmsrs = 1, .entry = {.index = index, .data = value}};

    return ioctl(v->fd, KVM_SET_MSRS, &m) == 1 ? 0 : -1;
}

int vcpu_set_pvm(struct vcpu *v, uint64_t page, struct err *e)
{
    if (vcpu_set_msr(v, MSR_STAR, STAR_LINUX) < 0 || vcpu_set_msr(v, MSR_PVM_PAGE, page | PVM_PAGE_FLAGS) < 0)
        return err_set(e, ERR_INTERNAL, "the host refused the PVM page 0x%llx of vCPU %u",
                       (unsigned long long)page, v->index);
    return 0;
}

int vcpu_set_start(struct vcpu *v, uint64_t rip, uint64_t rsp, uint64_t cr3, uint64_t rsi, struct err *e)
{
    struct kvm_regs r = {.rip = rip, .rsp = rsp, .rsi = rsi, .rflags = 2};
    struct kvm_sregs s, boot;

    if (ioctl(v->fd, KVM_GET_SREGS, &s) < 0 || ioctl(v->vm->vcpu[0].fd, KVM_GET_SREGS, &boot) < 0)
        return err_sys(e, ERR_INTERNAL, "read the registers of vCPU %u", v->index);
    s.cr0 = CR0_START;
    s.cr3 = cr3;
    /* Another CPU starts on the kernel's own tables and needs the modes that they were made for (no-execute,
     * global). */
    s.cr4 = v->index ? boot.cr4 : CR4_PAE;
    s.efer = v->index ? boot.efer : EFER_START;
    s.cs = segment(0x10, 11, true);
    s.ds = s.es = s.fs = s.gs = s.ss = segment(0x18, 3, false);
    if (ioctl(v->fd, KVM_SET_SREGS, &s) < 0 || ioctl(v->fd, KVM_SET_REGS, &r) < 0)
        return err_sys(e, ERR_INTERNAL, "set the registers of vCPU %u", v->index);
    return 0;
}

void vm_ended(struct vm *vm, enum vm_end end, const char *fmt, ...)
{
    uint64_t one = 1;

    pthread_mutex_lock(&vm->gate);
    if (vm->end == VM_ALIVE) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(vm->end_detail, sizeof vm->end_detail, fmt, ap);
        va_end(ap);
        vm->end = end;
        serial_flush(&vm->serial);
    }
    vm->run_wanted = false;
    pthread_mutex_unlock(&vm->gate);
    (void)!write(vm->end_fd, &one, sizeof one);
}

static void internal_error(struct vcpu *v)
{
    struct kvm_regs r = {0};

    ioctl(v->fd, KVM_GET_REGS, &r);
    vm_ended(v->vm, VM_END_ERROR, "KVM could not go on (exit %u, reason %u) at rip 0x%llx of vCPU %u",
             v->run->exit_reason, v->run->internal.suberror, (unsigned long long)r.rip, v->index);
}

static void on_exit_of_guest(struct vcpu *v)
{
    struct kvm_run *run = v->run;

    switch (run->exit_reason) {
    case KVM_EXIT_IO:
        vm_port_io(v, run->io.port, run->io.direction == KVM_EXIT_IO_OUT,
                   (uint8_t *)run + run->io.data_offset, run->io.size, run->io.count);
        return;
    case KVM_EXIT_MMIO:
        vm_mmio(v, run->mmio.phys_addr, run->mmio.is_write, run->mmio.data,
                run->mmio.len > 8 ? 8 : run->mmio.len);
        return;
    case KVM_EXIT_INTR:
        return;
    case KVM_EXIT_SHUTDOWN: /* triple fault: how a kernel resets that has no better way, or a crash before it
                               had a console */
        vm_reset(v->vm, "triple fault");
        return;
    case KVM_EXIT_SYSTEM_EVENT:
        vm_ended(v->vm, run->system_event.type == KVM_SYSTEM_EVENT_CRASH ? VM_END_PANIC : VM_END_RESET,
                 "system event %u", run->system_event.type);
        return;
    default:
        internal_error(v);
    }
}

/* Waits until the vCPU may run. */
static void gate_wait(struct vcpu *v)
{
    struct vm *vm = v->vm;

    pthread_mutex_lock(&vm->gate);
    v->parked = true;
    pthread_cond_broadcast(&vm->gate_changed);
    while (!vm->run_wanted || !v->online)
        pthread_cond_wait(&vm->gate_changed, &vm->gate);
    v->parked = false;
    v->run->immediate_exit = 0;
    pthread_mutex_unlock(&vm->gate);
}

static void *vcpu_main(void *arg)
{
    struct vcpu *v = arg;
    char name[16];

    snprintf(name, sizeof name, "vcpu%u", v->index);
    prctl(PR_SET_NAME, name);
    jail_vcpu_thread();
    for (;;) {
        gate_wait(v);
        while (!__atomic_load_n(&v->run->immediate_exit, __ATOMIC_RELAXED) && v->vm->end == VM_ALIVE) {
            if (ioctl(v->fd, KVM_RUN, 0) == 0)
                on_exit_of_guest(v);
            else if (errno != EINTR && errno != EAGAIN)
                vm_ended(v->vm, VM_END_ERROR, "KVM_RUN of vCPU %u: %s", v->index, strerror(errno));
        }
        /* Once more, to complete the access that the last exit was for; with immediate_exit no guest code
         * runs. */
        v->run->immediate_exit = 1;
        ioctl(v->fd, KVM_RUN, 0);
    }
    return NULL;
}

int vcpu_start_thread(struct vcpu *v, struct err *e)
{
    char name[16];

    snprintf(name, sizeof name, "vcpu%u", v->index);
    if (thread_start(&v->thread, name, vcpu_main, v, e) < 0)
        return -1;
    v->started = true;
    return 0;
}

void vm_go(struct vm *vm)
{
    worker_resume(&vm->io);
    worker_resume(&vm->disk_io);
    pthread_mutex_lock(&vm->gate);
    vm->run_wanted = vm->end == VM_ALIVE;
    vm->running = true;
    pthread_cond_broadcast(&vm->gate_changed);
    pthread_mutex_unlock(&vm->gate);
}

void vm_stop(struct vm *vm)
{
    pthread_mutex_lock(&vm->gate);
    vm->run_wanted = false;
    vm->running = false;
    for (unsigned i = 0; i < vm->nvcpus; i++) {
        struct vcpu *v = &vm->vcpu[i];

        if (!v->started)
            continue;
        while (!v->parked) {
            /* The flag catches a thread on its way into the guest, the signal one that is inside. */
            __atomic_store_n(&v->run->immediate_exit, 1, __ATOMIC_SEQ_CST);
            pthread_kill(v->thread, SIGUSR1);
            pthread_cond_wait(&vm->gate_changed, &vm->gate);
        }
    }
    pthread_mutex_unlock(&vm->gate);
    worker_pause(&vm->io);
    worker_pause(&vm->disk_io);
}
