/* One VM process of ours with its TAP, its directories and its two conversations (VMM and guest). A VM starts
 * without an owner; `vm_publish` gives its sockets to a sandbox. */
#pragma once

#include "node/daemon/node.h"
#include "node/daemon/peer.h"
#include "proto/jailer.pb-c.h"
#include "proto/vmm.pb-c.h"

#define VM_NAME_MAX 24
#define VM_POOL_VCPUS                                                                                        \
    1 /* limits of a process that does not know its guest yet; set anew at the hand-over when others */
#define VM_POOL_MEMORY_MIB 512

struct vm {
    struct node *node;
    char name[VM_NAME_MAX];
    uint32_t pid;
    uint64_t start_time;
    char socket[108];
    char tap[16];
    char kvm_kind[16];
    int tap_fd;
    uint32_t net_slot;  /* in CubeVS; 0 = not attached */
    unsigned tap_index; /* of the TAP that has the slot: a TAP ends with its VMM, CubeVS' entries do not */
    int sock_dir;       /* where ctl.sock and in.sock are: <run>/warm/<name>, later <run>/sb/<id>/<gen> */
    int file_dir;       /* <store>/vm/<name>: layer, console.log */
    int ctl_fd, in_fd;  /* listening; closed here once the VMM has them */
    struct peer *control, *guest;
    char envd_version[16]; /* as the guest said in its hello */
    bool pooled;           /* came out of the pool */
    bool ended;            /* the process is gone, or the guest ended */
    char end_reason[200];
    bool oom;
    uint64_t vmm_gen;
    uint32_t vcpus, memory_mib; /* what the jail's limits are made for */
    struct sandbox *owner;
    unsigned users; /* fibers besides the owner's operation that talk to it; it is not freed before they are
                       done */
    struct fiber_event *watcher; /* set at the end; may be NULL */
    struct vm *next;
};

/** A VM process that waits for Boot or Restore, with TAP and sockets: from the pool, else made now. In a
 * fiber. */
struct vm *vm_acquire(struct node *n, struct err *e);

/** Makes a new one regardless of the pool. */
struct vm *vm_make(struct node *n, struct err *e);

/** Ends the process and removes everything that belongs to it. Safe at any stage and twice; waits in the
 * calling fiber. `vm` is freed. */
void vm_destroy(struct vm *vm);

/** As vm_destroy, but returns as soon as the guest stands still: nothing of it runs any more, and what
 * surrounded it goes behind the caller's back (taking a TAP and a KVM VM apart costs tens of milliseconds).
 * Falls back to waiting when the VMM does not answer. */
void vm_retire(struct vm *vm);

/** Forgets our side (conversations, descriptors) and leaves process and files: used when the daemon stops. */
void vm_abandon(struct vm *vm);

/** What a boot or a restore needs. Descriptors stay the caller's; -1 = none. */
struct vm_image {
    int root, tools, layer, kernel, memory, state, working_set;
    int deltas[4];
    int delta_count;
    uint32_t vcpus, memory_mib;
    uint64_t disk_bytes;
    const char *cmdline;
    char root_name[49]; /* what the root disk's base is: a layer of another one is refused */
    bool start_frozen;
};
#define VM_IMAGE_NONE                                                                                        \
    {                                                                                                        \
        .root = -1, .tools = -1, .layer = -1, .kernel = -1, .memory = -1, .state = -1, .working_set = -1     \
    }

int vm_boot(struct vm *vm, const char *sandbox_id, uint64_t gen, const struct vm_image *image, struct err *e);
int vm_restore(struct vm *vm, const char *sandbox_id, uint64_t gen, const struct vm_image *image,
               struct err *e);

/** Snapshot into the given files; the vCPUs stand still afterwards, until vm_set_frozen(false). */
struct vm_snapshot {
    int state, memory;
    bool delta;
};
int vm_snapshot(struct vm *vm, const struct vm_snapshot *s, Cube__Vmm__V1__SnapshotDone *out, struct err *e);
/** Writes the list of pages that the guest touched since its restore. */
int vm_working_set(struct vm *vm, int fd, struct err *e);
int vm_set_frozen(struct vm *vm, bool frozen, struct err *e);
int vm_stats(struct vm *vm, Cube__Vmm__V1__Stats *out, struct err *e);

/** The disk layer file and the console log, made when they are not there. */
int vm_layer_open(struct vm *vm, struct err *e);
int vm_console_open(struct vm *vm, struct err *e);
/** Copies a whole layer; waits in the calling fiber when it is large. */
int vm_layer_copy(int from, int to, struct err *e);

/** Limits of the jail for a guest of this size. */
Cube__Jailer__V1__Limits vm_limits(uint32_t vcpus, uint32_t memory_mib);

/** Lays the ticket beside the sockets and makes the directory that they will go to; nobody finds them yet. */
int vm_publish_prepare(struct vm *vm, const char *sandbox_id, const uint8_t ticket[32], struct err *e);
/** Moves the sockets to <run>/sb/<id>/<gen>, with the ticket: from now on the relay reaches the guest. */
int vm_publish(struct vm *vm, const char *sandbox_id, uint64_t gen, struct err *e);

/** Takes the published sockets away again, before the VM ends. */
void vm_unpublish(struct node *n, const char *sandbox_id);

/** Finds a VM again after a restart of the daemon: same pid and start time, and it says hello as this
 * sandbox. */
struct vm *vm_adopt(struct node *n, const char *name, uint32_t pid, uint64_t start_time, const char *socket,
                    const char *tap, const char *sandbox_id, uint64_t gen, uint64_t vmm_gen, struct err *e);

/** The last bytes that the guest wrote to its console, for a reason of failure. */
void vm_console_tail(struct vm *vm, char *out, size_t max);

/** Field 22 of /proc/<pid>/stat, or 0 when there is no such process. */
uint64_t process_start_time(uint32_t pid);

/** Called by the jailer's events. */
void vm_on_ended(struct node *n, const char *name, int status, bool oom, bool host_oom);
struct vm *vm_find(const char *name);
struct vm *vm_find_tap(const char *tap);
/** VMs without an owner: of the pools, in the making, or on their way out. */
unsigned vm_unowned(void);
