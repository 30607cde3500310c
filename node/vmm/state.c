/* Save and load of everything but RAM. Orders are from guest-kernel/README.md: the TSC deadline goes in after
 * the local APIC, or its timer is lost and the guest freezes. */
#include "node/vmm/state.h"

#include "lib/base/clock.h"
#include "node/vmm/crc.h"

#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <x86intrin.h>

#define MSR_TSC 0x10u
#define MSR_TSC_ADJUST 0x3bu
#define MSR_TSC_DEADLINE 0x6e0u
#define MSRS_MAX 1100
#define TSC_TOLERANCE_PPM 1000 /* two calibrations of one clock differ by less */

struct vcpu_state {
    struct kvm_regs regs;
    struct kvm_sregs sregs;
    struct kvm_xsave xsave;
    struct kvm_xcrs xcrs;
    struct kvm_lapic_state lapic;
    struct kvm_vcpu_events events;
    struct kvm_mp_state mp;
    struct kvm_debugregs debug;
    uint32_t online, nmsrs;
};

struct machine_state {
    struct kvm_irqchip chip[3];
    struct kvm_pit_state2 pit;
    struct kvm_clock_data clock;
    struct virtio_state dev[VM_SLOTS];
    struct serial_state serial;
    uint64_t disk_sectors[2];
    uint32_t nports, zero;
};

struct msr_block {
    struct kvm_msrs head;
    struct kvm_msr_entry entry[MSRS_MAX];
};

static int kvm_call(int fd, unsigned long req, void *arg, const char *what, struct err *e)
{
    return ioctl(fd, req, arg) < 0 ? err_sys(e, ERR_INTERNAL, "%s", what) : 0;
}

/* Reads what of the list this host has; KVM stops at the first that it does not know. */
static unsigned msrs_read(struct vcpu *v, struct kvm_msr_entry *out)
{
    static struct msr_block m; /* only the control thread saves and loads */
    const struct kvm_msr_list *l = v->vm->msr_list;
    unsigned n = 0;

    for (unsigned i = 0; i < l->nmsrs;) {
        unsigned k = 0;
        while (i + k < l->nmsrs && k < MSRS_MAX) {
            m.entry[k] = (struct kvm_msr_entry){.index = l->indices[i + k]};
            k++;
        }
        m.head.nmsrs = k;
        int got = ioctl(v->fd, KVM_GET_MSRS, &m);
        if (got < 0)
            got = 0;
        for (int j = 0; j < got && n < MSRS_MAX; j++)
            out[n++] = m.entry[j];
        i += (unsigned)got + 1;
    }
    return n;
}

static void msrs_write(struct vcpu *v, const struct kvm_msr_entry *e, unsigned n)
{
    static struct msr_block m;

    for (unsigned i = 0; i < n;) {
        unsigned k = n - i;
        memcpy(m.entry, e + i, k * sizeof *e);
        m.head.nmsrs = k;
        int done = ioctl(v->fd, KVM_SET_MSRS, &m);
        i += (done < 0 ? 0u : (unsigned)done) + 1u; /* a refused one is read-only here; go on behind it */
    }
}

static int vcpu_save(struct vcpu *v, struct buf *out, struct err *e)
{
    static struct kvm_msr_entry msrs[MSRS_MAX];
    struct vcpu_state s;

    memset(&s, 0, sizeof s);
    if (kvm_call(v->fd, KVM_GET_REGS, &s.regs, "read registers", e) < 0 ||
        kvm_call(v->fd, KVM_GET_SREGS, &s.sregs, "read system registers", e) < 0 ||
        kvm_call(v->fd, KVM_GET_XSAVE, &s.xsave, "read the vector registers", e) < 0 ||
        kvm_call(v->fd, KVM_GET_XCRS, &s.xcrs, "read XCR0", e) < 0 ||
        kvm_call(v->fd, KVM_GET_LAPIC, &s.lapic, "read the local APIC", e) < 0 ||
        kvm_call(v->fd, KVM_GET_VCPU_EVENTS, &s.events, "read pending events", e) < 0 ||
        kvm_call(v->fd, KVM_GET_MP_STATE, &s.mp, "read the run state", e) < 0 ||
        kvm_call(v->fd, KVM_GET_DEBUGREGS, &s.debug, "read debug registers", e) < 0)
        return -1;
    s.online = v->online;
    s.nmsrs = msrs_read(v, msrs);
    buf_append(out, &s, sizeof s);
    buf_append(out, msrs, s.nmsrs * sizeof msrs[0]);
    return 0;
}

static int machine_save(struct vm *vm, struct buf *out, struct err *e)
{
    static struct machine_state m;
    struct vsock_ports ports[VSOCK_CONNS_MAX];

    memset(&m, 0, sizeof m);
    for (uint32_t i = 0; i < 3; i++) {
        m.chip[i].chip_id = i;
        if (kvm_call(vm->vm_fd, KVM_GET_IRQCHIP, &m.chip[i], "read the interrupt controllers", e) < 0)
            return -1;
    }
    if (kvm_call(vm->vm_fd, KVM_GET_PIT2, &m.pit, "read the timer", e) < 0 ||
        kvm_call(vm->vm_fd, KVM_GET_CLOCK, &m.clock, "read the clock", e) < 0)
        return -1;
    for (unsigned s = 0; s < VM_SLOTS; s++)
        virtio_save(vm->dev[s], &m.dev[s]);
    m.serial =
        (struct serial_state){vm->serial.ier, vm->serial.lcr, vm->serial.mcr, vm->serial.scr,
                              vm->serial.dll, vm->serial.dlm, vm->serial.fcr, serial_pending(&vm->serial)};
    m.disk_sectors[0] = vm->disk[0].config.capacity;
    m.disk_sectors[1] = vm->disk[1].config.capacity;
    m.nports = vsock_save(&vm->vsock, ports);
    buf_append(out, &m, sizeof m);
    buf_append(out, ports, m.nports * sizeof ports[0]);
    return 0;
}

static uint32_t present_mask(const struct vm *vm)
{
    uint32_t mask = 0;

    for (unsigned s = 0; s < VM_SLOTS; s++)
        mask |= (uint32_t)vm->present[s] << s;
    return mask;
}

int state_save(struct vm *vm, struct buf *out, struct err *e)
{
    struct state_header h = {.version = STATE_VERSION,
                             .device_layout = VM_LAYOUT_VERSION,
                             .kvm_kind = vm->kind,
                             .nvcpus = vm->nvcpus,
                             .memory_mib = vm->mem_mib,
                             .tsc_khz = vm->tsc_khz,
                             .present = present_mask(vm),
                             .tsc = __rdtsc()};
    size_t start = out->len;

    memcpy(h.magic, STATE_MAGIC, 8);
    memcpy(h.cpu_class, vm->cpu_class, sizeof vm->cpu_class);
    buf_append(out, &h, sizeof h);
    for (unsigned i = 0; i < vm->nvcpus; i++)
        if (vcpu_save(&vm->vcpu[i], out, e) < 0)
            return err_wrap(e, "save vCPU %u", i);
    if (machine_save(vm, out, e) < 0)
        return -1;
    if (out->failed)
        return err_set(e, ERR_INTERNAL, "out of memory");
    h.body_bytes = out->len - start - sizeof h;
    h.body_crc = crc32c(0, out->data + start + sizeof h, h.body_bytes);
    h.crc = crc32c(0, &h, offsetof(struct state_header, crc));
    memcpy(out->data + start, &h, sizeof h);
    return 0;
}

int state_check(const struct vm *vm, const void *data, size_t n, struct err *e)
{
    struct state_header h;

    if (n < sizeof h)
        return err_set(e, ERR_INVALID, "snapshot state: truncated");
    memcpy(&h, data, sizeof h);
    if (memcmp(h.magic, STATE_MAGIC, 8) || h.crc != crc32c(0, &h, offsetof(struct state_header, crc)))
        return err_set(e, ERR_INVALID, "snapshot state: the header is damaged");
    if (h.version != STATE_VERSION)
        return err_set(e, ERR_UNSUPPORTED, "snapshot state: version %u is not supported", h.version);
    if (h.body_bytes != n - sizeof h)
        return err_set(e, ERR_INVALID, "snapshot state: truncated");
    if (h.kvm_kind != (uint32_t)vm->kind)
        return err_set(e, ERR_UNSUPPORTED, "snapshot was made on a host of the other KVM kind");
    if (h.device_layout != VM_LAYOUT_VERSION)
        return err_set(e, ERR_UNSUPPORTED, "snapshot has device layout %u", h.device_layout);
    if (strncmp(h.cpu_class, vm->cpu_class, sizeof h.cpu_class))
        return err_set(e, ERR_UNSUPPORTED, "snapshot was made for CPU class %.23s, this host is %s",
                       h.cpu_class, vm->cpu_class);
    if (h.nvcpus != vm->nvcpus || h.memory_mib != vm->mem_mib || h.present != present_mask(vm))
        return err_set(e, ERR_INVALID, "snapshot is of a guest with %u vCPUs, %u MiB and devices 0x%x",
                       h.nvcpus, h.memory_mib, h.present);
    if (crc32c(0, (const uint8_t *)data + sizeof h, h.body_bytes) != h.body_crc)
        return err_set(e, ERR_INVALID, "snapshot state: the body is damaged");
    return 0;
}

/* A reader over the body: a short body is an error, not a crash. */
struct cursor {
    const uint8_t *p;
    size_t left;
};

static bool take(struct cursor *c, void *to, size_t n)
{
    if (n > c->left)
        return false;
    memcpy(to, c->p, n);
    c->p += n;
    c->left -= n;
    return true;
}

/* MSRs that go in with the others; the TSC itself belongs to the host on PVM-kind hosts. Returns the
 * deadline. */
static unsigned msrs_sort(const struct vm *vm, struct kvm_msr_entry *m, unsigned n, uint64_t *deadline)
{
    unsigned kept = 0;

    *deadline = 0;
    for (unsigned i = 0; i < n; i++) {
        if (m[i].index == MSR_TSC_DEADLINE) {
            *deadline = m[i].data;
            continue;
        }
        if (vm->kind == KVM_PVM && (m[i].index == MSR_TSC || m[i].index == MSR_TSC_ADJUST))
            continue;
        m[kept++] = m[i];
    }
    return kept;
}

/* On PVM-kind hosts the guest's TSC is the host's, which started anew if the host did: keep the distance. */
static uint64_t deadline_move(const struct vm *vm, uint64_t deadline, uint64_t saved_tsc)
{
    if (deadline == 0 || vm->kind != KVM_PVM)
        return deadline;
    uint64_t now = __rdtsc();
    return deadline > saved_tsc ? now + (deadline - saved_tsc) : now;
}

/* A guest counts its timers in the TSC whose frequency it found when it booted. Hardware can scale it; on a
 * PVM-kind host the guest sees the host's own, and timers would run fast or slow: such a snapshot is refused.
 */
static int tsc_fit(struct vm *vm, uint32_t saved_khz, struct err *e)
{
    uint32_t here = vm->tsc_khz, off = here > saved_khz ? here - saved_khz : saved_khz - here;
    bool scaled = vm->kind == KVM_HARDWARE;

    if (!here || !saved_khz || (uint64_t)off * 1000000 <= (uint64_t)saved_khz * TSC_TOLERANCE_PPM)
        return 0;
    for (unsigned i = 0; scaled && i < vm->nvcpus; i++)
        scaled = ioctl(vm->vcpu[i].fd, KVM_SET_TSC_KHZ, (unsigned long)saved_khz) == 0;
    if (scaled)
        return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "snapshot was made at a TSC of %u kHz, this host has %u kHz and cannot scale it",
                   saved_khz, here);
}

static int vcpu_load_start(struct vcpu *v, struct vcpu_state *s, struct kvm_msr_entry *msrs, unsigned n,
                           struct err *e)
{
    if (kvm_call(v->fd, KVM_SET_SREGS, &s->sregs, "set system registers", e) < 0)
        return -1;
    msrs_write(v, msrs, n);
    return 0;
}

static int vcpu_load_rest(struct vcpu *v, struct vcpu_state *s, uint64_t deadline, struct err *e)
{
    if (kvm_call(v->fd, KVM_SET_XCRS, &s->xcrs, "set XCR0", e) < 0 ||
        kvm_call(v->fd, KVM_SET_XSAVE, &s->xsave, "set the vector registers", e) < 0 ||
        kvm_call(v->fd, KVM_SET_REGS, &s->regs, "set registers", e) < 0 ||
        kvm_call(v->fd, KVM_SET_LAPIC, &s->lapic, "set the local APIC", e) < 0)
        return -1;
    if (deadline && vcpu_set_msr(v, MSR_TSC_DEADLINE, deadline) < 0)
        return err_set(e, ERR_INTERNAL, "set the timer of vCPU %u", v->index);
    if (kvm_call(v->fd, KVM_SET_VCPU_EVENTS, &s->events, "set pending events", e) < 0 ||
        kvm_call(v->fd, KVM_SET_MP_STATE, &s->mp, "set the run state", e) < 0 ||
        kvm_call(v->fd, KVM_SET_DEBUGREGS, &s->debug, "set debug registers", e) < 0)
        return -1;
    v->online = s->online;
    return 0;
}

static int chips_load(struct vm *vm, struct machine_state *m, struct err *e)
{
    struct kvm_clock_data clock = {.clock = m->clock.clock};

    for (uint32_t i = 0; i < 3; i++) {
        if (m->chip[i].chip_id != i)
            return err_set(e, ERR_INVALID, "snapshot state: interrupt controller %u is damaged", i);
        if (kvm_call(vm->vm_fd, KVM_SET_IRQCHIP, &m->chip[i], "set the interrupt controllers", e) < 0)
            return -1;
    }
    return kvm_call(vm->vm_fd, KVM_SET_PIT2, &m->pit, "set the timer", e) < 0 ||
                   kvm_call(vm->vm_fd, KVM_SET_CLOCK, &clock, "set the clock", e) < 0
               ? -1
               : 0;
}

static int devices_load(struct vm *vm, const struct machine_state *m, const struct vsock_ports *ports,
                        struct err *e)
{
    for (unsigned i = 0; i < 2; i++)
        if (m->disk_sectors[i] != vm->disk[i].config.capacity)
            return err_set(e, ERR_INVALID, "snapshot: disk %u had %llu sectors", i,
                           (unsigned long long)m->disk_sectors[i]);
    for (unsigned s = 0; s < VM_SLOTS; s++)
        if (vm->present[s] && virtio_load(vm->dev[s], &m->dev[s], e) < 0)
            return -1;
    const struct serial_state *u = &m->serial;
    vm->serial.ier = u->ier;
    vm->serial.lcr = u->lcr;
    vm->serial.mcr = u->mcr;
    vm->serial.scr = u->scr;
    vm->serial.dll = u->dll;
    vm->serial.dlm = u->dlm;
    vm->serial.fcr = u->fcr;
    return vsock_load(&vm->vsock, ports, m->nports, e);
}

/* Kicks that were in eventfds and interrupts that were in work queues are lost with the old process: look at
 * every queue once and interrupt once per device; more of either does no harm (experiments.md §5). */
static void devices_wake(struct vm *vm)
{
    uint64_t one = 1;

    for (unsigned s = 0; s < VM_SLOTS; s++) {
        struct virtio_dev *d = vm->dev[s];

        if (!vm->present[s] || !virtio_running(d))
            continue;
        pthread_mutex_lock(&d->lock);
        for (unsigned q = 0; q < d->nqueues; q++)
            if (d->q[q].ready)
                (void)!write(d->kick_fd[q], &one, sizeof one);
        if (d->ops->driver_ok)
            d->ops->driver_ok(d);
        pthread_mutex_unlock(&d->lock);
        virtio_pulse(d);
    }
    if (serial_pending(&vm->serial))
        (void)!write(vm->serial_irq_fd, &one, sizeof one);
}

int state_load(struct vm *vm, const void *data, size_t n, int64_t *vcpu_us, struct err *e)
{
    static struct vcpu_state cpus[VM_VCPUS_MAX];
    static struct kvm_msr_entry msrs[MSRS_MAX];
    static struct machine_state m;
    struct vsock_ports ports[VSOCK_CONNS_MAX];
    uint64_t deadline[VM_VCPUS_MAX];
    struct cursor c = {(const uint8_t *)data + sizeof(struct state_header), n - sizeof(struct state_header)};
    int64_t t0 = clock_mono_us();
    struct state_header h;

    memcpy(&h, data, sizeof h);
    if (tsc_fit(vm, h.tsc_khz, e) < 0)
        return -1;
    for (unsigned i = 0; i < vm->nvcpus; i++) {
        struct vcpu_state *s = &cpus[i];
        if (!take(&c, s, sizeof *s) || s->nmsrs > MSRS_MAX || !take(&c, msrs, s->nmsrs * sizeof msrs[0]))
            return err_set(e, ERR_INVALID, "snapshot state: vCPU %u is damaged", i);
        unsigned k = msrs_sort(vm, msrs, s->nmsrs, &deadline[i]);
        if (vcpu_load_start(&vm->vcpu[i], s, msrs, k, e) < 0)
            return err_wrap(e, "restore vCPU %u", i);
    }
    if (!take(&c, &m, sizeof m) || m.nports > VSOCK_CONNS_MAX ||
        !take(&c, ports, m.nports * sizeof ports[0]) || c.left)
        return err_set(e, ERR_INVALID, "snapshot state: the devices are damaged");
    if (chips_load(vm, &m, e) < 0)
        return -1;
    for (unsigned i = 0; i < vm->nvcpus; i++)
        if (vcpu_load_rest(&vm->vcpu[i], &cpus[i], deadline_move(vm, deadline[i], h.tsc), e) < 0)
            return err_wrap(e, "restore vCPU %u", i);
    vm->ioapic = m.chip[2].chip.ioapic;
    *vcpu_us = clock_mono_us() - t0;
    if (devices_load(vm, &m, ports, e) < 0)
        return -1;
    devices_wake(vm);
    return 0;
}
