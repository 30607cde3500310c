/* Shared by the VMM's black-box tests: a temporary directory, a disk image with the test's init, guests, the
 * jailer. */
#pragma once

#include "node/vmmctl/client.h"

#include <stdint.h>
#include <sys/types.h>

/* Ends the test program with a message; the harness cleans up. */
void fail(const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4), noreturn));
#define FAIL(...) fail(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(x)                                                                                             \
    do {                                                                                                     \
        if (!(x))                                                                                            \
            FAIL("%s", #x);                                                                                  \
    } while (0)
#define OK(call, e)                                                                                          \
    do {                                                                                                     \
        if ((call) < 0)                                                                                      \
            FAIL("%s: %s", #call, (e).msg);                                                                  \
    } while (0)

extern const char *tmp; /* the test's directory */
extern const char *vmm_program;
extern const char *kernel; /* vmlinux for this host's kind of KVM */

/** Makes the directory, finds the kernel and builds root.ext4
 * with the test's init. argv: VMM JAILER INIT. Exits with 77 (skipped) and a reason when there is no /dev/kvm
 * or no kernel. */
void harness_start(int argc, char **argv, const char *name);
void harness_end(void);

const char *in_tmp(const char *name); /* path in `tmp`; valid until four calls later */
int file_new(const char *name);       /* empty file in `tmp`, open for reading and writing */

struct guest {
    struct vmm_client c;
    struct vmm_wiring w;
    unsigned memory_mib, vcpus;
    const char *memory_file; /* boot: RAM lies in this file of `tmp`, which a full snapshot of the same name
                                then is */
};

/** Connects a VMM process without a guest (prepared for this size). */
void guest_spawn(struct guest *g, unsigned memory_mib, unsigned vcpus);
/** Boots the test's init in it, with `layer` (name of a file in `tmp`) over root.ext4; waits until it
 * answers. */
void guest_boot(struct guest *g, const char *layer);
void guest_boot_with(struct guest *g, const char *layer, int tap_fd, const char *cmdline);
/** Files of a snapshot in `tmp`: <name>.state, <name>.mem, <name>.layer (a copy). */
int guest_snapshot(struct guest *g, const char *name, bool delta, bool resume,
                   Cube__Vmm__V1__SnapshotDone *done, struct err *e);
struct snapshot_files {
    const char *state, *memory, *deltas[4], *layer, *working_set;
};
int guest_restore(struct guest *g, const struct snapshot_files *f, struct err *e,
                  Cube__Vmm__V1__Started *started);
int guest_restore_with(struct guest *g, const struct snapshot_files *f, int tap_fd, struct err *e,
                       Cube__Vmm__V1__Started *started);
/** Kills the process without a word, as a crash would. */
void guest_kill(struct guest *g);
void guest_end(struct guest *g);

/** Opens a connection to the guest: port 0 = the control plane, else through `in`; -1 when the status byte is
 * not 0. */
int guest_dial(struct guest *g, unsigned port, int *status);
/** Sends a line on a connection and reads the answer's line into a static buffer. */
const char *ask(int fd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void simple(struct guest *g, Cube__Vmm__V1__Request__OpCase op);
int64_t now_us(void);
void copy_file(const char *from, const char *to);
