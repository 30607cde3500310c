/* One virtual machine: KVM objects, RAM, devices, threads. */
#pragma once

#include "node/vmm/balloon.h"
#include "node/vmm/blk.h"
#include "node/vmm/memfile.h"
#include "node/vmm/net.h"
#include "node/vmm/rng.h"
#include "node/vmm/serial.h"
#include "node/vmm/vsock.h"

#include <linux/kvm.h>

/** Device layout version 1: slot n is 4 KiB at VM_MMIO_BASE + n * 0x1000. It is part of the class of a
 * snapshot. */
#define VM_LAYOUT_VERSION 1u
#define VM_MMIO_BASE 0xd0000000ull
enum vm_slot { SLOT_ROOT, SLOT_TOOLS, SLOT_VSOCK, SLOT_NET, SLOT_RNG, SLOT_BALLOON, VM_SLOTS };
#define VM_VCPUS_MAX 8u
#define VM_GSI_DEVICES                                                                                       \
    24u /* interrupt number of slot 0; those below are the pins of the interrupt controllers */

/** MSRs of a PVM-kind host (guest-kernel/README.md). */
#define MSR_PVM_PAGE 0x4b564d10u
#define MSR_PVM_DETECT 0x4b564d11u
#define PVM_DETECT_VALUE 0x4d5650u
#define PVM_PAGE_FLAGS 7u

enum kvm_kind { KVM_HARDWARE, KVM_PVM };

/** Why the guest ended; also the exit status of the process. */
enum vm_end { VM_ALIVE = 0, VM_END_RESET = 10, VM_END_PANIC = 11, VM_END_ERROR = 12 };

struct vm;
struct vcpu {
    struct vm *vm;
    unsigned index;
    int fd;
    struct kvm_run *run;
    pthread_t thread;
    bool started; /* the thread exists */
    bool online;  /* has something to run: always on hardware; on PVM-kind hosts once the guest started it */
    bool parked;  /* stands still at the gate */
};

struct vm {
    int kvm_fd, vm_fd;
    size_t run_bytes; /* of the shared kvm_run area */
    enum kvm_kind kind;
    char cpu_class[17]; /* hex digest of the CPU features that guests see */
    uint32_t tsc_khz;
    struct guest_mem mem;
    uint32_t mem_mib;
    unsigned nvcpus;
    struct vcpu vcpu[VM_VCPUS_MAX];
    struct kvm_msr_list *msr_list; /* MSRs that a snapshot keeps */

    struct worker io, disk_io; /* threads: vsock, net, rng, balloon; and disks */
    bool one_thread;           /* `io` serves the disks, too: only to be compared with (docs/vmm.md) */
    struct blk disk[2];
    struct vsock vsock;
    struct net net;
    struct rng rng;
    struct balloon balloon;
    struct virtio_dev *dev[VM_SLOTS];
    bool present[VM_SLOTS];
    struct serial serial;
    int serial_irq_fd;

    pthread_mutex_t gate; /* guards what follows, and the serial port */
    pthread_cond_t gate_changed;
    bool run_wanted; /* vCPUs may run */
    bool running;    /* they were let go and not stopped since */
    enum vm_end end;
    char end_detail[200];
    int end_fd; /* eventfd: `end` was set */

    char sandbox_id[40];
    uint64_t gen;
    bool restored;
    struct mem_extents working_set; /* to be mapped beside the guest's first steps */
    struct kvm_ioapic_state ioapic; /* as restored */
    atomic_bool pins_moved;         /* a driver started anew since: what `ioapic` says may be wrong */
    bool booted;                    /* a guest is inside: booted or restored */
    int pagemap_fd, statm_fd;
};

extern const uint8_t vm_slot_irq[VM_SLOTS];

/** Makes the KVM VM, RAM, interrupt controllers, vCPUs, devices and threads for a guest of this size, so that
 * only its contents are missing. Takes `kvm_fd` over. `proc_fd` is a descriptor of /proc (stays the
 * caller's), or -1. */
int vm_prepare(struct vm *vm, int kvm_fd, int proc_fd, uint32_t mem_mib, unsigned nvcpus, bool one_thread,
               struct err *e);

/** Throws the guest's KVM objects away and makes them for another size. Only before a guest is inside. */
int vm_resize(struct vm *vm, uint32_t mem_mib, unsigned nvcpus, struct err *e);

/** Starts the threads; the guest's vCPUs stay at the gate. */
int vm_start_threads(struct vm *vm, struct err *e);

/** Whether a slot has its device in this VM (layout is fixed, presence is not). */
static inline bool vm_has(const struct vm *vm, enum vm_slot s)
{
    return vm->present[s];
}

/** Lets devices and vCPUs go / stops both; `vm_stop` returns when nothing touches guest RAM any more.
 * Idempotent. */
void vm_go(struct vm *vm);
void vm_stop(struct vm *vm);

/** The guest is over; wakes the control loop. First reason wins. Callable from any thread of the VM. */
void vm_ended(struct vm *vm, enum vm_end end, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* route.c */
/** Leads device interrupts to their pins. */
int vm_route_pins(struct vm *vm, struct err *e);
/** After a restore, the guest running: leads them past the pins where that is safe. Only a help. */
void vm_route_messages(struct vm *vm);
/** A driver starts anew and may get another vector; called by vCPU threads. */
void vm_route_moved(struct vm *vm);

/* vcpu.c */
int vcpu_create(struct vm *vm, unsigned index, struct err *e);
void vcpu_destroy(struct vcpu *v);
int vcpu_start_thread(struct vcpu *v, struct err *e);
/** 64-bit mode with flat segments at `rip`; `rsi` points at the boot parameters. */
int vcpu_set_start(struct vcpu *v, uint64_t rip, uint64_t rsp, uint64_t cr3, uint64_t rsi, struct err *e);
/** The PVM page of this vCPU and STAR (guest-kernel/README.md "Boot"). */
int vcpu_set_pvm(struct vcpu *v, uint64_t page, struct err *e);
int vcpu_set_msr(struct vcpu *v, uint32_t index, uint64_t value);

/* boot.c */
/** Loads a vmlinux and everything it needs to start on vCPU 0. `cmdline` is appended to what the VMM adds
 * itself. */
int vm_load_kernel(struct vm *vm, int kernel_fd, const char *cmdline, struct err *e);

/* exits.c: what the guest does outside RAM; called by vCPU threads. */
/** The guest reset itself: after a panic that is a crash. */
void vm_reset(struct vm *vm, const char *how);
void vm_port_io(struct vcpu *v, uint16_t port, bool write, void *data, unsigned size, unsigned count);
void vm_mmio(struct vcpu *v, uint64_t addr, bool write, void *data, unsigned len);

/* seccomp.c: system calls that each kind of thread may make; kill on anything else. */
void jail_control_start(void);  /* before the first request */
void jail_control_thread(void); /* tighter, before a guest runs */
void jail_vcpu_thread(void);
void jail_io_thread(void);
void jail_disk_thread(void);
/** Whether the filters are installed at all (off under sanitizers, which need more). Set before threads
 * start. */
void jail_enable(bool on);
