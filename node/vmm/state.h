/* The state file of a snapshot: vCPUs, interrupt controllers, clock and devices. Format version 1 is the
 * header below and a body in the order of state_save(); all integers in host (little-endian) order,
 * structures as KVM defines them. */
#pragma once

#include "node/vmm/vm.h"

#include "lib/base/buf.h"

#define STATE_MAGIC "CUBEVMS1"
#define STATE_VERSION 1u
#define STATE_BYTES_MAX (4u << 20)

struct state_header {
    char magic[8];
    uint32_t version, device_layout, kvm_kind, nvcpus, memory_mib, tsc_khz;
    uint32_t present; /* bit n: slot n has a device */
    uint32_t body_crc;
    uint64_t body_bytes;
    uint64_t tsc; /* the host's, when the vCPUs were read: timers are in it on PVM-kind hosts */
    char cpu_class[24];
    uint32_t zero;
    uint32_t crc; /* of the header before this field */
};

/** Appends header and body for a VM that stands still. */
int state_save(struct vm *vm, struct buf *out, struct err *e);

/** Checks a whole state file against this VM (class, layout, sizes, checksums). */
int state_check(const struct vm *vm, const void *data, size_t n, struct err *e);

/** Puts a checked state into KVM and devices. The guest may run afterwards. `vcpu_us` gets the time for KVM's
 * part. */
int state_load(struct vm *vm, const void *data, size_t n, int64_t *vcpu_us, struct err *e);
