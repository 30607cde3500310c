/* Client of a VMM's control socket, for developer's tools, tests and benchmarks (blocking; the node daemon
 * has its own). */
#pragma once

#include "lib/base/err.h"

#include "proto/vmm.pb-c.h"

#include <sys/types.h>

struct vmm_client {
    int sock;
    pid_t pid; /* of the process that vmm_spawn started; else 0 */
    uint64_t next_id;
    Cube__Vmm__V1__Reply *exit; /* the Exit event, once it came */
};

struct vmm_spawn {
    const char *program; /* path of cube-vmm */
    unsigned memory_mib, vcpus;
    bool seccomp;
};

/** Starts a VMM outside any jail, with /dev/kvm opened here, and says hello. Ends with `vmm_close`. */
int vmm_spawn(struct vmm_client *c, const struct vmm_spawn *s, struct err *e);

/** Takes a connected control socket over and says hello. */
int vmm_attach(struct vmm_client *c, int sock, struct err *e);

/** Sends a request with descriptors (they stay the caller's) and waits for its reply, which the caller frees
 * with `vmm_reply_free`. An error reply becomes an error here. */
int vmm_call(struct vmm_client *c, Cube__Vmm__V1__Request *q, const int *fds, unsigned nfds,
             Cube__Vmm__V1__Reply **reply, struct err *e);
void vmm_reply_free(Cube__Vmm__V1__Reply *r);

/** Waits at most `timeout_ms` (-1: for ever) for the Exit event or the end of the connection. 1 = ended, 0 =
 * time is over. */
int vmm_wait_exit(struct vmm_client *c, int timeout_ms);

/** Closes the connection, ends the process if it was spawned here and returns its exit status (-1 when killed
 * or not ours). */
int vmm_close(struct vmm_client *c);

/** A listening Unix stream socket at `path` ("" = an unnamed abstract one, whose address `connect_addr` then
 * tells). */
int vmm_listen(const char *path, struct err *e);

/** Connects to a socket made by `vmm_listen`. */
int vmm_connect_to(int listener, struct err *e);

/** Disk of a VM: paths, opened by `vmm_wiring_open`. */
struct vmm_disk_spec {
    const char *base, *layer; /* layer NULL: read-only */
    uint64_t size_bytes;
};

/** Everything that Boot and Restore have in common, built from paths. */
struct vmm_wiring {
    Cube__Vmm__V1__Wiring msg;
    Cube__Vmm__V1__Disk disk[2], *disks[2];
    Cube__Vmm__V1__Net net;
    int fds[16];
    unsigned nfds;
    int ctl_listener, in_listener;
};
/** `tap_fd` < 0: no network. `console_fd` is dup()ed. The paths of the sockets may be NULL (unnamed). */
int vmm_wiring_open(struct vmm_wiring *w, const struct vmm_disk_spec *disks, unsigned ndisks, int tap_fd,
                    int console_fd, const char *ctl_path, const char *in_path, unsigned memory_mib,
                    unsigned vcpus, struct err *e);
/** Adds one more descriptor; returns its index. */
unsigned vmm_wiring_add(struct vmm_wiring *w, int fd);
void vmm_wiring_close(struct vmm_wiring *w);
