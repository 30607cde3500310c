/* 64-bit Linux boot: the vmlinux into RAM, boot parameters, identity page tables, MP table, command line. The
 * kernel file comes from the node's store, but is checked like a stranger's. */
#include "node/vmm/vm.h"

#include "lib/base/cleanup.h"

#include <asm/bootparam.h>
#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Low memory, all below the kernel's own address of 16 MiB. 0x8000 is the mailbox of PVM-kind CPU starts. The
 * top-level page table needs bit 12 of its address clear: that bit is the mode on a PVM-kind host. */
#define ADDR_BOOT_PARAMS 0x10000u
#define ADDR_CMDLINE 0x20000u
#define ADDR_PML4 0x30000u
#define ADDR_MP_TABLE 0x9fc00u
#define CMDLINE_MAX 2048u
#define IDENTITY_GIB 4u
#define PTE_TABLE 0x07ull /* present, writable, user: PVM-kind hosts run the kernel in ring 3 */
#define PTE_2MIB 0x87ull
#define KERNEL_MAP 0xffffffff80000000ull /* __START_KERNEL_map: symbol addresses of the kernel image */
#define PHDRS_MAX 32
#define NOTE_BYTES_MAX 65536
#define NOTE_PVM_PAGE 1u /* in the name space "CUBE": physical address of the boot CPU's PVM page */

static int read_at(int fd, void *to, uint64_t n, uint64_t off, struct err *e)
{
    for (uint64_t done = 0; done < n;) {
        ssize_t r = pread(fd, (uint8_t *)to + done, n - done, (off_t)(off + done));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return err_sys(e, ERR_INTERNAL, "read the kernel");
        if (r == 0)
            return err_set(e, ERR_INVALID, "the kernel file is truncated");
        done += (uint64_t)r;
    }
    return 0;
}

/* Walks a note segment; 0 when it has no page. */
static uint64_t notes_find_page(const uint8_t *p, size_t n)
{
    while (n >= sizeof(Elf64_Nhdr)) {
        Elf64_Nhdr h;
        memcpy(&h, p, sizeof h);
        uint64_t name = (h.n_namesz + 3ull) & ~3ull, desc = (h.n_descsz + 3ull) & ~3ull;

        if (name > n || desc > n || sizeof h + name + desc > n)
            return 0;
        if (h.n_type == NOTE_PVM_PAGE && h.n_namesz == 5 && h.n_descsz == 8 &&
            !memcmp(p + sizeof h, "CUBE", 5)) {
            uint64_t page;
            memcpy(&page, p + sizeof h + name, 8);
            return page;
        }
        p += sizeof h + name + desc;
        n -= sizeof h + name + desc;
    }
    return 0;
}

static int note_segment(int fd, const Elf64_Phdr *ph, uint64_t *page, struct err *e)
{
    _cleanup_free_ uint8_t *notes = NULL;

    if (ph->p_filesz > NOTE_BYTES_MAX)
        return 0;
    notes = malloc(ph->p_filesz + 1);
    if (!notes)
        return err_set(e, ERR_INTERNAL, "out of memory");
    if (read_at(fd, notes, ph->p_filesz, ph->p_offset, e) < 0)
        return -1;
    uint64_t found = notes_find_page(notes, ph->p_filesz);
    if (found)
        *page = found;
    return 0;
}

/* Kernels without the note name the page by a symbol. */
static int symbol_find_page(int fd, const Elf64_Ehdr *eh, uint64_t *page, struct err *e)
{
    _cleanup_free_ Elf64_Shdr *sh = NULL;
    _cleanup_free_ Elf64_Sym *sym = NULL;
    _cleanup_free_ char *str = NULL;

    if (eh->e_shentsize != sizeof *sh || eh->e_shnum == 0 || eh->e_shnum > 256)
        return 0;
    sh = calloc(eh->e_shnum, sizeof *sh);
    if (!sh || read_at(fd, sh, eh->e_shnum * sizeof *sh, eh->e_shoff, e) < 0)
        return -1;
    for (unsigned i = 0; i < eh->e_shnum; i++) {
        if (sh[i].sh_type != SHT_SYMTAB || sh[i].sh_link >= eh->e_shnum || sh[i].sh_size > 64u << 20)
            continue;
        const Elf64_Shdr *st = &sh[sh[i].sh_link];
        if (st->sh_size == 0 || st->sh_size > 64u << 20)
            continue;
        sym = malloc(sh[i].sh_size);
        str = malloc(st->sh_size);
        if (!sym || !str || read_at(fd, sym, sh[i].sh_size, sh[i].sh_offset, e) < 0 ||
            read_at(fd, str, st->sh_size, st->sh_offset, e) < 0)
            return -1;
        str[st->sh_size - 1] = 0;
        for (uint64_t k = 0; k < sh[i].sh_size / sizeof *sym; k++)
            if (sym[k].st_name < st->sh_size && !strcmp(str + sym[k].st_name, "init_per_cpu__pvx_page"))
                *page = sym[k].st_value - KERNEL_MAP;
        return 0;
    }
    return 0;
}

static int segments_load(struct vm *vm, int fd, uint64_t *entry, uint64_t *page, struct err *e)
{
    Elf64_Phdr ph[PHDRS_MAX];
    Elf64_Ehdr eh;

    if (read_at(fd, &eh, sizeof eh, 0, e) < 0)
        return -1;
    if (memcmp(eh.e_ident, ELFMAG, SELFMAG) || eh.e_ident[EI_CLASS] != ELFCLASS64 ||
        eh.e_machine != EM_X86_64 || eh.e_phentsize != sizeof ph[0] || eh.e_phnum == 0 ||
        eh.e_phnum > PHDRS_MAX)
        return err_set(e, ERR_INVALID,
                       "the kernel is no 64-bit x86 ELF file (a vmlinux is needed, no bzImage)");
    if (read_at(fd, ph, eh.e_phnum * sizeof ph[0], eh.e_phoff, e) < 0)
        return -1;
    for (unsigned i = 0; i < eh.e_phnum; i++) {
        if (ph[i].p_type == PT_NOTE && note_segment(fd, &ph[i], page, e) < 0)
            return -1;
        if (ph[i].p_type != PT_LOAD || ph[i].p_memsz == 0)
            continue;
        uint8_t *to = mem_at(&vm->mem, ph[i].p_paddr, ph[i].p_memsz);
        if (!to || ph[i].p_filesz > ph[i].p_memsz || ph[i].p_paddr < 0x100000)
            return err_set(e, ERR_INVALID, "the kernel does not fit into %u MiB of memory", vm->mem_mib);
        if (read_at(fd, to, ph[i].p_filesz, ph[i].p_offset, e) < 0)
            return -1;
    }
    *entry = eh.e_entry;
    return *page || vm->kind != KVM_PVM ? 0 : symbol_find_page(fd, &eh, page, e);
}

static void page_tables(struct vm *vm)
{
    uint64_t *pml4 = mem_at(&vm->mem, ADDR_PML4, (2 + IDENTITY_GIB) * MEM_PAGE);
    uint64_t *pdpt = pml4 + 512;

    pml4[0] = (ADDR_PML4 + MEM_PAGE) | PTE_TABLE;
    for (uint64_t g = 0; g < IDENTITY_GIB; g++) {
        uint64_t *pd = pml4 + 1024 + 512 * g;
        pdpt[g] = (ADDR_PML4 + (2 + g) * MEM_PAGE) | PTE_TABLE;
        for (uint64_t i = 0; i < 512; i++)
            pd[i] = (g << 30 | i << 21) | PTE_2MIB;
    }
}

static uint8_t checksum(const void *p, size_t n)
{
    uint8_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += ((const uint8_t *)p)[i];
    return (uint8_t)-sum;
}

/* Intel MultiProcessor Specification 1.4 §4: floating pointer, header, CPUs, one ISA bus, one IOAPIC, edge
 * interrupts. */
static void mp_table(struct vm *vm)
{
    uint8_t *at = mem_at(&vm->mem, ADDR_MP_TABLE, 1024), *head = at + 16, *p = head + 44;
    uint8_t ioapic = (uint8_t)vm->nvcpus;
    uint16_t entries = 0;

    memset(at, 0, 1024);
    for (uint8_t i = 0; i < vm->nvcpus; i++, p += 20, entries++) {
        p[1] = i;
        p[2] = 0x14;
        p[3] = (uint8_t)(1 | (i == 0 ? 2 : 0));
        memcpy(p + 4, &(uint32_t){0x600}, 4);
        memcpy(p + 8, &(uint32_t){0x201}, 4);
    }
    memcpy(p, "\1\0ISA   ", 8);
    p += 8;
    memcpy(p, (uint8_t[]){2, ioapic, 0x11, 1, 0, 0, 0xc0, 0xfe}, 8); /* at 0xfec00000 */
    p += 8;
    entries += 2;
    for (uint8_t i = 0; i < 24; i++, p += 8, entries++)
        memcpy(p, (uint8_t[]){3, 0, 5, 0, 0, i, ioapic, i},
               8);                                        /* INT, active high, edge: ISA irq i → pin i */
    memcpy(p, (uint8_t[]){4, 3, 0, 0, 0, 0, 0xff, 0}, 8); /* LINT0: the 8259 */
    memcpy(p + 8, (uint8_t[]){4, 1, 0, 0, 0, 0, 0xff, 1}, 8); /* LINT1: NMI */
    p += 16;
    entries += 2;

    uint16_t length = (uint16_t)(p - head);
    memcpy(head, "PCMP", 4);
    memcpy(head + 4, &length, 2);
    head[6] = 4;
    memcpy(head + 8, "CUBE    CUBE-VMM    ", 20);
    memcpy(head + 34, &entries, 2);
    memcpy(head + 36, &(uint32_t){0xfee00000}, 4);
    head[7] = checksum(head, length);
    memcpy(at, "_MP_", 4);
    memcpy(at + 4, &(uint32_t){ADDR_MP_TABLE + 16}, 4);
    at[8] = 1;
    at[9] = 4;
    at[10] = checksum(at, 16);
}

static int command_line(struct vm *vm, const char *extra, struct err *e)
{
    char *to = mem_at(&vm->mem, ADDR_CMDLINE, CMDLINE_MAX);
    /* An idle guest must sleep: proactive compaction would wake it twice a second, the averages of PSI every
     * two seconds (docs/kernel.md, "An idle guest"). */
    int n = snprintf(to, CMDLINE_MAX,
                     "console=ttyS0 quiet panic=-1 reboot=%s psi=0 sysctl.vm.compaction_proactiveness=0",
                     vm->kind == KVM_PVM ? "k" : "t");

    if (vm->kind == KVM_PVM)
        n += snprintf(
            to + n, CMDLINE_MAX - (size_t)n,
            " pti=on nokaslr clearcpuid=xsaves,xsavec,smap,smep,pcid,invpcid,umip,pku no-kvmapf no-steal-acc"
            " clocksource=kvm-clock random.trust_cpu=1 spectre_v2=off spec_rstack_overflow=off");
    for (unsigned s = 0; s < VM_SLOTS; s++)
        if (vm->present[s])
            n += snprintf(to + n, CMDLINE_MAX - (size_t)n, " virtio_mmio.device=4K@0x%llx:%u",
                          (unsigned long long)(VM_MMIO_BASE + s * VIRTIO_MMIO_SIZE), vm_slot_irq[s]);
    if ((size_t)n + strlen(extra) + 2 > CMDLINE_MAX)
        return err_set(e, ERR_INVALID, "the kernel command line is longer than %u bytes", CMDLINE_MAX);
    snprintf(to + n, CMDLINE_MAX - (size_t)n, " %s", extra);
    return 0;
}

static void boot_params(struct vm *vm)
{
    struct boot_params *b = mem_at(&vm->mem, ADDR_BOOT_PARAMS, sizeof *b);
    uint64_t low = vm->mem.size < MEM_LOW_MAX ? vm->mem.size : MEM_LOW_MAX;

    memset(b, 0, sizeof *b);
    b->hdr.type_of_loader = 0xff;
    b->hdr.boot_flag = 0xaa55;
    b->hdr.header = 0x53726448; /* "HdrS" */
    b->hdr.version = 0x20c;
    b->hdr.kernel_alignment = 0x1000000;
    b->hdr.cmd_line_ptr = ADDR_CMDLINE;
    b->hdr.cmdline_size = CMDLINE_MAX - 1;
    b->e820_table[0] = (struct boot_e820_entry){0, ADDR_MP_TABLE, 1};
    b->e820_table[1] = (struct boot_e820_entry){ADDR_MP_TABLE, 0x100000 - ADDR_MP_TABLE, 2};
    b->e820_table[2] = (struct boot_e820_entry){0x100000, low - 0x100000, 1};
    b->e820_entries = 3;
    if (vm->mem.size > low)
        b->e820_table[b->e820_entries++] = (struct boot_e820_entry){MEM_HIGH_START, vm->mem.size - low, 1};
}

int vm_load_kernel(struct vm *vm, int kernel_fd, const char *cmdline, struct err *e)
{
    uint64_t entry = 0, page = 0;

    if (segments_load(vm, kernel_fd, &entry, &page, e) < 0)
        return -1;
    if (vm->kind == KVM_PVM && (!page || (page & (MEM_PAGE - 1)) || !mem_at(&vm->mem, page, MEM_PAGE)))
        return err_set(e, ERR_INVALID,
                       "this host's KVM is of the PVM kind, and the kernel is not built for it");
    if (vm->kind != KVM_PVM && page)
        return err_set(e, ERR_INVALID,
                       "this host has hardware KVM, and the kernel is built for a PVM-kind one");
    page_tables(vm);
    mp_table(vm);
    boot_params(vm);
    if (command_line(vm, cmdline, e) < 0)
        return -1;
    if (vcpu_set_start(&vm->vcpu[0], entry, 0, ADDR_PML4, ADDR_BOOT_PARAMS, e) < 0)
        return -1;
    return vm->kind == KVM_PVM ? vcpu_set_pvm(&vm->vcpu[0], page, e) : 0;
}
