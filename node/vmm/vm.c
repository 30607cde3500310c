/* Makes a VM ready to get a guest. The order of the KVM calls matters for time: memory slots before the
 * interrupt controllers (0.2 ms instead of 7; guest-kernel/README.md), all of it before anybody waits. */
#include "node/vmm/vm.h"

#include "node/vmm/crc.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define TSS_ADDRESS 0xfffbd000ul /* three pages below 4 GiB that the guest does not use */
#define QUEUE_NOTIFY 0x50u

/* IRQ 8 is the clock's on a PC, and 2 the cascade: left alone. */
const uint8_t vm_slot_irq[VM_SLOTS] = {5, 6, 7, 9, 10, 11};

static int memory_slots(struct vm *vm, struct err *e)
{
    uint64_t low = vm->mem.size < MEM_LOW_MAX ? vm->mem.size : MEM_LOW_MAX;
    struct kvm_userspace_memory_region r[2] = {
        {.slot = 0, .guest_phys_addr = 0, .memory_size = low, .userspace_addr = (uintptr_t)vm->mem.base},
        {.slot = 1,
         .guest_phys_addr = MEM_HIGH_START,
         .memory_size = vm->mem.size - low,
         .userspace_addr = (uintptr_t)vm->mem.base + low}};

    for (int i = 0; i < 2 && r[i].memory_size; i++)
        if (ioctl(vm->vm_fd, KVM_SET_USER_MEMORY_REGION, &r[i]) < 0)
            return err_sys(e, ERR_CAPACITY, "give KVM the guest's memory");
    return 0;
}

static int connect_device(struct vm *vm, enum vm_slot s, struct err *e)
{
    struct virtio_dev *d = vm->dev[s];
    struct kvm_irqfd irq = {.fd = (uint32_t)d->irq_fd, .gsi = VM_GSI_DEVICES + s};

    if (ioctl(vm->vm_fd, KVM_IRQFD, &irq) < 0)
        return err_sys(e, ERR_INTERNAL, "connect the interrupt of device %s", d->ops->name);
    for (unsigned q = 0; q < d->nqueues; q++) {
        struct kvm_ioeventfd io = {.addr = VM_MMIO_BASE + s * VIRTIO_MMIO_SIZE + QUEUE_NOTIFY,
                                   .len = 4,
                                   .datamatch = q,
                                   .fd = d->kick_fd[q],
                                   .flags = KVM_IOEVENTFD_FLAG_DATAMATCH};
        if (ioctl(vm->vm_fd, KVM_IOEVENTFD, &io) < 0)
            return err_sys(e, ERR_INTERNAL, "connect queue %u of device %s", q, d->ops->name);
    }
    d->vendor = vm->kind == KVM_PVM ? VIRTIO_VENDOR_PVM : VIRTIO_VENDOR_CUBE;
    return 0;
}

static void find_kind(struct vm *vm)
{
    struct {
        struct kvm_msrs head;
        struct kvm_msr_entry entry;
    } m = {.head.nmsrs = 1, .entry.index = MSR_PVM_DETECT};

    bool pvm = ioctl(vm->vcpu[0].fd, KVM_GET_MSRS, &m) == 1 && m.entry.data == PVM_DETECT_VALUE;
    vm->kind = pvm ? KVM_PVM : KVM_HARDWARE;
    int khz = ioctl(vm->vcpu[0].fd, KVM_GET_TSC_KHZ, 0);
    vm->tsc_khz = khz > 0 ? (uint32_t)khz : 0;
}

/* Two hosts are of one class when guests see the same features there. */
static void find_class(struct vm *vm)
{
    struct {
        struct kvm_cpuid2 head;
        struct kvm_cpuid_entry2 entry[160];
    } c = {.head.nent = 160};
    uint32_t a = 0, b = 0x43554245;

    if (ioctl(vm->kvm_fd, KVM_GET_SUPPORTED_CPUID, &c) < 0)
        return;
    for (unsigned i = 0; i < c.head.nent; i++) {
        const struct kvm_cpuid_entry2 *x = &c.entry[i];
        uint32_t v[5] = {x->function, x->index, x->ecx, x->edx, x->ebx};

        if (x->function != 1 && x->function != 7 && x->function != 0xd && x->function != 0x80000001 &&
            x->function != 0x40000001)
            continue;
        if (x->function == 1 || x->function == 0xd)
            v[4] = 0; /* APIC number; size for the features in use just now */
        a = crc32c(a, v, sizeof v);
        b = crc32c(b, v, sizeof v);
    }
    b = crc32c(b, &a, sizeof a);
    snprintf(vm->cpu_class, sizeof vm->cpu_class, "%08x%08x", a, b);
}

static int kvm_objects(struct vm *vm, uint32_t mem_mib, unsigned nvcpus, struct err *e)
{
    struct kvm_pit_config pit = {.flags = KVM_PIT_SPEAKER_DUMMY};

    if (nvcpus < 1 || nvcpus > VM_VCPUS_MAX)
        return err_set(e, ERR_INVALID, "%u vCPUs: must be 1 to %u", nvcpus, VM_VCPUS_MAX);
    if (mem_reserve(&vm->mem, mem_mib, e) < 0)
        return -1;
    vm->mem_mib = mem_mib;
    vm->vm_fd = ioctl(vm->kvm_fd, KVM_CREATE_VM, 0);
    if (vm->vm_fd < 0)
        return err_sys(e, ERR_CAPACITY, "create a KVM VM");
    if (memory_slots(vm, e) < 0)
        return -1;
    if (ioctl(vm->vm_fd, KVM_SET_TSS_ADDR, TSS_ADDRESS) < 0 || ioctl(vm->vm_fd, KVM_CREATE_IRQCHIP) < 0 ||
        ioctl(vm->vm_fd, KVM_CREATE_PIT2, &pit) < 0)
        return err_sys(e, ERR_INTERNAL, "create the interrupt controllers");
    for (vm->nvcpus = 0; vm->nvcpus < nvcpus; vm->nvcpus++)
        if (vcpu_create(vm, vm->nvcpus, e) < 0)
            return -1;
    find_kind(vm);
    find_class(vm);
    for (unsigned i = 0; i < nvcpus; i++)
        vm->vcpu[i].online = i == 0 || vm->kind == KVM_HARDWARE;
    if (vm_route_pins(vm, e) < 0)
        return -1;
    for (unsigned s = 0; s < VM_SLOTS; s++)
        if (connect_device(vm, s, e) < 0)
            return -1;
    struct kvm_irqfd irq = {.fd = (uint32_t)vm->serial_irq_fd, .gsi = SERIAL_IRQ};
    if (ioctl(vm->vm_fd, KVM_IRQFD, &irq) < 0)
        return err_sys(e, ERR_INTERNAL, "connect the serial interrupt");
    return 0;
}

static int devices_init(struct vm *vm, struct err *e)
{
    struct worker *disks = vm->one_thread ? &vm->io : &vm->disk_io;

    if (worker_init(&vm->io, e) < 0 || worker_init(&vm->disk_io, e) < 0 ||
        blk_init(&vm->disk[0], &vm->mem, disks, e) < 0 || blk_init(&vm->disk[1], &vm->mem, disks, e) < 0 ||
        vsock_init(&vm->vsock, &vm->mem, &vm->io, e) < 0 || net_init(&vm->net, &vm->mem, &vm->io, e) < 0 ||
        rng_init(&vm->rng, &vm->mem, &vm->io, e) < 0 || balloon_init(&vm->balloon, &vm->mem, &vm->io, e) < 0)
        return -1;
    vm->dev[SLOT_ROOT] = &vm->disk[0].dev;
    vm->dev[SLOT_TOOLS] = &vm->disk[1].dev;
    vm->dev[SLOT_VSOCK] = &vm->vsock.dev;
    vm->dev[SLOT_NET] = &vm->net.dev;
    vm->dev[SLOT_RNG] = &vm->rng.dev;
    vm->dev[SLOT_BALLOON] = &vm->balloon.dev;
    return 0;
}

/* The MSRs of KVM's list and those that a Linux guest needs but some hosts do not list
 * (guest-kernel/README.md "Save"). */
static int msr_list_make(struct vm *vm, struct err *e)
{
    static const uint32_t extra[] = {MSR_PVM_PAGE, 0xc0000080, 0xc0000081, 0xc0000082, 0xc0000083, 0xc0000084,
                                     0xc0000100,   0xc0000101, 0xc0000102, 0x1b,       0x6e0,      0x277,
                                     0x4b564d00,   0x4b564d01, 0x4b564d02, 0x4b564d03, 0x4b564d04};
    enum { EXTRA = sizeof extra / sizeof extra[0], ROOM = 1024 };
    struct kvm_msr_list *l = calloc(1, sizeof *l + (ROOM + EXTRA) * sizeof l->indices[0]);

    if (!l)
        return err_set(e, ERR_INTERNAL, "out of memory");
    vm->msr_list = l;
    l->nmsrs = ROOM;
    if (ioctl(vm->kvm_fd, KVM_GET_MSR_INDEX_LIST, l) < 0)
        return err_sys(e, ERR_INTERNAL, "ask KVM for the list of MSRs");
    for (unsigned i = 0; i < EXTRA; i++) {
        unsigned k = 0;
        while (k < l->nmsrs && l->indices[k] != extra[i])
            k++;
        if (k == l->nmsrs)
            l->indices[l->nmsrs++] = extra[i];
    }
    return 0;
}

static void on_stop_signal(int signo)
{
}

int vm_prepare(struct vm *vm, int kvm_fd, int proc_fd, uint32_t mem_mib, unsigned nvcpus, bool one_thread,
               struct err *e)
{
    struct sigaction stop = {.sa_handler = on_stop_signal}, ignore = {.sa_handler = SIG_IGN};

    memset(vm, 0, sizeof *vm);
    vm->kvm_fd = kvm_fd;
    vm->one_thread = one_thread;
    vm->vm_fd = -1;
    vm->serial.log_fd = -1;
    pthread_mutex_init(&vm->gate, NULL);
    pthread_cond_init(&vm->gate_changed, NULL);
    sigaction(SIGUSR1, &stop, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGXFSZ, &ignore, NULL); /* a disk over its limit is an error of the request */
    vm->pagemap_fd = proc_fd < 0 ? -1 : openat(proc_fd, "self/pagemap", O_RDONLY | O_CLOEXEC);
    vm->statm_fd = proc_fd < 0 ? -1 : openat(proc_fd, "self/statm", O_RDONLY | O_CLOEXEC);
    vm->end_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    vm->serial_irq_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (vm->end_fd < 0 || vm->serial_irq_fd < 0)
        return err_sys(e, ERR_INTERNAL, "set up the VM");
    if (ioctl(kvm_fd, KVM_GET_API_VERSION, 0) != KVM_API_VERSION)
        return err_sys(e, ERR_UNSUPPORTED, "/dev/kvm does not speak KVM's API version 12");
    int run_bytes = ioctl(kvm_fd, KVM_GET_VCPU_MMAP_SIZE, 0);
    if (run_bytes < (int)sizeof(struct kvm_run))
        return err_sys(e, ERR_UNSUPPORTED, "ask KVM for the size of a vCPU");
    vm->run_bytes = (size_t)run_bytes;
    if (devices_init(vm, e) < 0 || msr_list_make(vm, e) < 0)
        return -1;
    return kvm_objects(vm, mem_mib, nvcpus, e);
}

int vm_resize(struct vm *vm, uint32_t mem_mib, unsigned nvcpus, struct err *e)
{
    if (vm->mem_mib == mem_mib && vm->nvcpus == nvcpus)
        return 0;
    for (unsigned i = 0; i < VM_VCPUS_MAX; i++) {
        pthread_t t = vm->vcpu[i].thread;
        bool started = vm->vcpu[i].started;

        if (i < vm->nvcpus)
            vcpu_destroy(&vm->vcpu[i]);
        vm->vcpu[i].vm = vm;
        vm->vcpu[i].thread = t;
        vm->vcpu[i].started = started;
        vm->vcpu[i].parked = true;
    }
    close(vm->vm_fd);
    mem_release(&vm->mem);
    if (kvm_objects(vm, mem_mib, nvcpus, e) < 0)
        return -1;
    return vm->io.started ? vm_start_threads(vm, e) : 0;
}

int vm_start_threads(struct vm *vm, struct err *e)
{
    if (!vm->io.started && worker_start(&vm->io, "io", jail_io_thread, e) < 0)
        return -1;
    if (!vm->one_thread && !vm->disk_io.started &&
        worker_start(&vm->disk_io, "disk", jail_disk_thread, e) < 0)
        return -1;
    for (unsigned i = 0; i < vm->nvcpus; i++)
        if (!vm->vcpu[i].started && vcpu_start_thread(&vm->vcpu[i], e) < 0)
            return -1;
    return 0;
}
