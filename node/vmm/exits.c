/* Port and MMIO accesses of the guest. Unknown addresses read as all ones and ignore writes, as on a bus
 * without a card. */
#include "node/vmm/vm.h"

#include <linux/virtio_mmio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define PORT_KEYBOARD 0x64u /* reboot=k pulses the reset line through it */
#define KEYBOARD_RESET 0xfeu
#define PORT_START_CPU 0xe9u /* PVM-kind guests: start vCPU n (guest-kernel/experiments.md §7) */
#define MAILBOX 0x8000u

static void serial_io(struct vm *vm, uint16_t port, bool is_write, uint8_t *data, unsigned count)
{
    bool irq = false;

    pthread_mutex_lock(&vm->gate);
    for (unsigned i = 0; i < count; i++) {
        if (is_write)
            irq |= serial_write(&vm->serial, port, data[i]);
        else
            data[i] = serial_read(&vm->serial, port);
    }
    pthread_mutex_unlock(&vm->gate);
    uint64_t one = 1;
    if (irq && write(vm->serial_irq_fd, &one, sizeof one) < 0)
        return;
}

/* The guest's kernel left {rip, rsp, cr3, page} in the mailbox and names the vCPU. */
static void cpu_start(struct vm *vm, uint32_t cpu)
{
    uint64_t box[4];
    const void *p = mem_at(&vm->mem, MAILBOX, sizeof box);
    struct err e = {0};

    if (vm->kind != KVM_PVM || cpu == 0 || cpu >= vm->nvcpus || !p || vm->vcpu[cpu].online)
        return;
    memcpy(box, p, sizeof box);
    struct vcpu *v = &vm->vcpu[cpu];
    struct kvm_mp_state mp = {KVM_MP_STATE_RUNNABLE};
    if (vcpu_set_start(v, box[0], box[1], box[2], 0, &e) < 0 || vcpu_set_pvm(v, box[3], &e) < 0 ||
        ioctl(v->fd, KVM_SET_MP_STATE, &mp) < 0) {
        vm_ended(vm, VM_END_ERROR, "start of vCPU %u: %s", cpu, e.msg);
        return;
    }
    pthread_mutex_lock(&vm->gate);
    v->online = true;
    pthread_cond_broadcast(&vm->gate_changed);
    pthread_mutex_unlock(&vm->gate);
}

void vm_reset(struct vm *vm, const char *how)
{
    if (vm->serial.panicked)
        vm_ended(vm, VM_END_PANIC, "the guest's kernel panicked; its console says why");
    else
        vm_ended(vm, VM_END_RESET, "%s", how);
}

void vm_port_io(struct vcpu *v, uint16_t port, bool is_write, void *data, unsigned size, unsigned count)
{
    struct vm *vm = v->vm;
    uint8_t *bytes = data;

    if (port >= SERIAL_PORT && port < SERIAL_PORT + 8 && size == 1) {
        serial_io(vm, port, is_write, bytes, count);
        return;
    }
    if (!is_write) {
        /* The keyboard controller has nothing to say and room for a command; else nobody answers. */
        memset(data, port == PORT_KEYBOARD ? 0 : 0xff, (size_t)size * count);
        return;
    }
    if (port == PORT_KEYBOARD && bytes[0] == KEYBOARD_RESET)
        vm_reset(vm, "the guest asked for a reset");
    if (port == PORT_START_CPU && size == 4) {
        uint32_t cpu;
        memcpy(&cpu, data, 4);
        cpu_start(vm, cpu);
    }
}

void vm_mmio(struct vcpu *v, uint64_t addr, bool is_write, void *data, unsigned len)
{
    struct vm *vm = v->vm;
    uint64_t slot = (addr - VM_MMIO_BASE) / VIRTIO_MMIO_SIZE;

    if (addr < VM_MMIO_BASE || slot >= VM_SLOTS || !vm->present[slot]) {
        if (!is_write)
            memset(data, 0xff, len);
        return;
    }
    /* A driver that starts anew programs its pin anew. */
    if (is_write && addr % VIRTIO_MMIO_SIZE == VIRTIO_MMIO_STATUS)
        vm_route_moved(vm);
    if (is_write)
        virtio_mmio_write(vm->dev[slot], addr % VIRTIO_MMIO_SIZE, data, len);
    else
        virtio_mmio_read(vm->dev[slot], addr % VIRTIO_MMIO_SIZE, data, len);
}
