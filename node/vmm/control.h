/* The control socket of a VMM process: SEQPACKET, one protobuf message per datagram (proto/vmm.proto). */
#pragma once

#include "node/vmm/vm.h"

#include "proto/vmm.pb-c.h"

#define CONTROL_VERSION 1u
#define CONTROL_FDS_MAX 16
#define CONTROL_MESSAGE_MAX 16384

/** Serves the listening socket until the node asks for the end or the guest ends; returns the exit status of
 * the process. */
int control_serve(struct vm *vm, int listen_fd);

/** Descriptors of one request: owned here until a handler takes one. */
struct control_fds {
    unsigned n;
    int fd[CONTROL_FDS_MAX];
};

/** Takes descriptor `index` out of the set; -1 (and an error) when the request names one that was not sent.
 */
int control_take(struct control_fds *f, uint32_t index, const char *what, struct err *e);

/* ops.c, snapshot.c, restore.c: what the requests do. They take what they need of `fds`; 0, or -1 with `e`
 * filled. After a failed boot or restore the process is of no more use and ends. */
int op_boot(struct vm *vm, const Cube__Vmm__V1__Boot *b, struct control_fds *fds, Cube__Vmm__V1__Started *out,
            struct err *e);
int op_restore(struct vm *vm, const Cube__Vmm__V1__Restore *r, struct control_fds *fds,
               Cube__Vmm__V1__Started *out, struct err *e);
/** What helps the guest but need not be waited for; called once the answer to a restore is out. */
void op_restore_after(struct vm *vm);
int op_snapshot(struct vm *vm, const Cube__Vmm__V1__Snapshot *s, struct control_fds *fds,
                Cube__Vmm__V1__SnapshotDone *out, struct err *e);
int op_working_set(struct vm *vm, const Cube__Vmm__V1__WorkingSet *w, struct control_fds *fds, struct err *e);
int op_resize(struct vm *vm, const Cube__Vmm__V1__Resize *r, struct err *e);
void op_stats(struct vm *vm, Cube__Vmm__V1__Stats *out);

/** Devices and sizes of a guest, the same for boot and restore: opens disks, attaches sockets, TAP and
 * console. */
int wiring_apply(struct vm *vm, const Cube__Vmm__V1__Wiring *w, struct control_fds *fds, struct err *e);
