/* The look at a guest that is late. Invariant: the guest is let go as it was found; nothing of it is
 * changed. */
#include "node/vmm/late.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <x86intrin.h>

#define MSR_TSC_DEADLINE 0x6e0u
#define LAPIC_PPR 0xa0
#define LAPIC_ISR 0x100
#define LAPIC_IRR 0x200
#define LAPIC_LVTT 0x320
#define LAPIC_TMCCT 0x390
#define LINE_MAX_BYTES 1024

struct line {
    char text[LINE_MAX_BYTES];
    size_t len;
};

static void add(struct line *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(struct line *l, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(l->text + l->len, sizeof l->text - l->len, fmt, ap);
    va_end(ap);
    if (n > 0)
        l->len = l->len + (size_t)n < sizeof l->text ? l->len + (size_t)n : sizeof l->text - 1;
}

static void say(const struct vm *vm, const struct line *l)
{
    log_line(LOG_WARN, &(struct log_about){.sandbox = vm->sandbox_id, .gen = vm->gen}, "%s", l->text);
}

static uint32_t lapic_word(const struct kvm_lapic_state *a, unsigned at)
{
    uint32_t v;

    memcpy(&v, a->regs + at, 4);
    return v;
}

/* The vectors whose bits are set in one of the APIC's 256-bit registers. */
static void add_vectors(struct line *l, const char *name, const struct kvm_lapic_state *a, unsigned at)
{
    add(l, " %s [", name);
    for (unsigned v = 0; v < 256; v++)
        if (lapic_word(a, at + (v >> 5) * 16) & 1u << (v & 31))
            add(l, " 0x%x", v);
    add(l, " ]");
}

static bool msr_read(struct vcpu *v, uint32_t index, uint64_t *value)
{
    struct {
        struct kvm_msrs head;
        struct kvm_msr_entry entry;
    } m = {.head.nmsrs = 1, .entry.index = index};

    if (ioctl(v->fd, KVM_GET_MSRS, &m) != 1)
        return false;
    *value = m.entry.data;
    return true;
}

static void vcpu_line(struct vm *vm, struct vcpu *v)
{
    struct line l = {.len = 0};
    struct kvm_regs r;
    struct kvm_lapic_state a;
    struct kvm_mp_state mp;
    uint64_t msr;

    if (ioctl(v->fd, KVM_GET_REGS, &r) < 0 || ioctl(v->fd, KVM_GET_LAPIC, &a) < 0 ||
        ioctl(v->fd, KVM_GET_MP_STATE, &mp) < 0)
        return;
    add(&l, "late: vCPU %u rip 0x%llx rflags 0x%llx mp_state %u", v->index, (unsigned long long)r.rip,
        (unsigned long long)r.rflags, mp.mp_state);
    if (vm->kind == KVM_PVM && msr_read(v, MSR_PVM_PAGE, &msr)) {
        const uint8_t *page = mem_at(&vm->mem, msr & ~(MEM_PAGE - 1ull), MEM_PAGE);
        if (page)
            add(&l, " interrupt flag %u pending %u", page[0], page[1]);
    }
    add(&l, "; LAPIC");
    add_vectors(&l, "irr", &a, LAPIC_IRR);
    add_vectors(&l, "isr", &a, LAPIC_ISR);
    add(&l, " ppr 0x%x lvtt 0x%x tmcct %u", lapic_word(&a, LAPIC_PPR), lapic_word(&a, LAPIC_LVTT),
        lapic_word(&a, LAPIC_TMCCT));
    if (msr_read(v, MSR_TSC_DEADLINE, &msr) && msr)
        add(&l, " deadline in %lld us",
            (long long)(msr - __rdtsc()) * 1000 / (vm->tsc_khz ? vm->tsc_khz : 1000000));
    else
        add(&l, " no deadline");
    say(vm, &l);
}

static void ioapic_line(struct vm *vm)
{
    struct kvm_irqchip chip = {.chip_id = KVM_IRQCHIP_IOAPIC};
    struct line l = {.len = 0};

    if (ioctl(vm->vm_fd, KVM_GET_IRQCHIP, &chip) < 0)
        return;
    add(&l, "late: IOAPIC irr 0x%x", chip.chip.ioapic.irr);
    for (unsigned s = 0; s < VM_SLOTS; s++) {
        if (!vm->present[s])
            continue;
        unsigned pin = vm_slot_irq[s];
        add(&l, "; %s pin %u vector 0x%x%s%s", vm->dev[s]->ops->name, pin,
            chip.chip.ioapic.redirtbl[pin].fields.vector,
            chip.chip.ioapic.redirtbl[pin].fields.mask ? " masked" : "",
            chip.chip.ioapic.redirtbl[pin].fields.remote_irr ? " remote_irr" : "");
    }
    say(vm, &l);
}

static void device_line(struct vm *vm, struct virtio_dev *d)
{
    struct line l = {.len = 0};

    pthread_mutex_lock(&d->lock);
    add(&l, "late: device %s status 0x%x isr 0x%x", d->ops->name, d->status, atomic_load(&d->isr));
    for (unsigned i = 0; i < d->nqueues; i++) {
        struct virtq_view v;

        if (!virtq_look(&d->q[i], &v)) {
            add(&l, "; queue %u %s", i, d->q[i].broken ? "broken" : "not ready");
            continue;
        }
        add(&l, "; queue %u offered %u taken %u used %u, wants interrupt after %u and kick after %u", i,
            v.avail, v.taken, v.used, v.used_event, v.avail_event);
    }
    pthread_mutex_unlock(&d->lock);
    say(vm, &l);
}

void late_report(struct vm *vm)
{
    struct line l = {.len = 0};
    bool running = vm->running;
    int64_t t0 = clock_mono_us();

    if (!vm->booted || vm->end != VM_ALIVE || !running)
        return;
    vm_stop(vm);
    add(&l, "late: guest port %u has not answered for %u ms; stopped for a look in %lld us",
        vm->vsock.late_port, VSOCK_LATE_US / 1000, (long long)(clock_mono_us() - t0));
    say(vm, &l);
    for (unsigned i = 0; i < vm->nvcpus; i++)
        vcpu_line(vm, &vm->vcpu[i]);
    ioapic_line(vm);
    for (unsigned s = 0; s < VM_SLOTS; s++)
        if (vm->present[s])
            device_line(vm, vm->dev[s]);
    vm_go(vm);
}
