/* Interrupt routes of the devices. Each device raises its own GSI (VM_GSI_DEVICES + slot), which leads to its
 * IOAPIC pin. KVM injects through a pin from a work queue, a scheduling hop on every interrupt; a message
 * route injects at once. After a restore the pins' vectors are known, so a guest with one vCPU gets message
 * routes (with more, the guest may move an interrupt to another CPU behind our back). A driver that resets
 * its device may get another vector: back to the pins. */
#include "node/vmm/vm.h"

#include <string.h>
#include <sys/ioctl.h>

#define PINS 24u
#define PIC_PINS 16u
#define MSI_ADDRESS 0xfee00000u /* Intel SDM 3A §11.11: address and data of a message */

struct routes {
    struct kvm_irq_routing head;
    struct kvm_irq_routing_entry entry[PIC_PINS + PINS + VM_SLOTS];
};

static struct kvm_irq_routing_entry pin(uint32_t gsi, uint32_t chip, uint32_t at)
{
    return (struct kvm_irq_routing_entry){
        .gsi = gsi, .type = KVM_IRQ_ROUTING_IRQCHIP, .u.irqchip = {chip, at}};
}

/* The message that the pin would send, or its pin when it is masked or not a plain edge interrupt. */
static struct kvm_irq_routing_entry device_route(unsigned slot, const struct kvm_ioapic_state *io)
{
    uint32_t irq = vm_slot_irq[slot];

    if (!io || io->redirtbl[irq].fields.mask || io->redirtbl[irq].fields.trig_mode ||
        io->redirtbl[irq].fields.delivery_mode > 1)
        return pin(VM_GSI_DEVICES + slot, KVM_IRQCHIP_IOAPIC, irq);
    uint32_t mode = io->redirtbl[irq].fields.dest_mode, dest = io->redirtbl[irq].fields.dest_id;
    return (struct kvm_irq_routing_entry){
        .gsi = VM_GSI_DEVICES + slot,
        .type = KVM_IRQ_ROUTING_MSI,
        .u.msi = {.address_lo = MSI_ADDRESS | dest << 12 | mode << 2,
                  .data = io->redirtbl[irq].fields.vector | (uint32_t)io->redirtbl[irq].fields.delivery_mode
                                                                << 8}};
}

static int set_routes(struct vm *vm, const struct kvm_ioapic_state *io)
{
    struct routes r;
    uint32_t n = 0;

    memset(&r, 0, sizeof r);
    for (uint32_t i = 0; i < PINS; i++) {
        r.entry[n++] = pin(i, KVM_IRQCHIP_IOAPIC, i);
        if (i < PIC_PINS)
            r.entry[n++] = pin(i, i < 8 ? KVM_IRQCHIP_PIC_MASTER : KVM_IRQCHIP_PIC_SLAVE, i % 8);
    }
    for (unsigned s = 0; s < VM_SLOTS; s++)
        r.entry[n++] = device_route(s, io);
    r.head.nr = n;
    return ioctl(vm->vm_fd, KVM_SET_GSI_ROUTING, &r);
}

int vm_route_pins(struct vm *vm, struct err *e)
{
    return set_routes(vm, NULL) < 0 ? err_sys(e, ERR_INTERNAL, "route the devices' interrupts") : 0;
}

void vm_route_messages(struct vm *vm)
{
    /* KVM waits for its readers here, on a busy host for milliseconds: so the guest runs already, and both
     * routes lead to the same vector until a driver starts anew. If one did meanwhile, whoever is last sets
     * the pins. */
    if (vm->nvcpus != 1 || atomic_load(&vm->pins_moved) || set_routes(vm, &vm->ioapic) < 0)
        return;
    if (atomic_load(&vm->pins_moved))
        set_routes(vm, NULL);
}

void vm_route_moved(struct vm *vm)
{
    if (!vm->restored || vm->nvcpus != 1 || atomic_exchange(&vm->pins_moved, true))
        return;
    set_routes(vm, NULL);
}
