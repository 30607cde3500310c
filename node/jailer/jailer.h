/* cube-jailer: the small privileged process of a node. It makes jails and TAPs, starts cube-vmm in them,
 * holds and reaps the processes. It reads no user input: only small messages of cube-node, with names that it
 * checks. */
#pragma once

#include "lib/base/textfile.h"

#include <stdint.h>
#include <sys/types.h>

#define JAILER_VERSION 1u
#define NAME_MAX_LEN 40
#define TAP_NAME_MAX 15
#define VMS_MAX 4096

struct options {
    char *run_dir; /* /run/cube */
    char *socket;  /* <run_dir>/jailer.sock */
    char *vmm;     /* path of cube-vmm */
    char *cgroup;  /* name of our group below the one that we were started in */
    char *log_level;
    char *dns_ip;     /* the node's address on the service pair; bound before it exists */
    int64_t node_uid; /* who may talk to us */
    int64_t node_gid;
    int64_t vm_uid_base; /* VM in slot n runs as this + n, user and group */
};

struct limits {
    uint64_t memory_bytes, file_bytes; /* 0 = none */
    uint32_t cpu_milli, pids;
};

/** Whether `s` is [a-z0-9-]{1,max} and does not start with '-'. */
bool name_ok(const char *s, size_t max);

/* cgroup.c: groups of our own, in a unified (v2) or the old (v1) hierarchies, whichever has cpu, memory and
 * pids. */
int cgroup_setup(const char *name, struct err *e);
int cgroup_make(const char *vm, const struct limits *l, struct err *e);
int cgroup_limit(const char *vm, const struct limits *l, struct err *e);
/** Moves a process into the group of a VM. */
int cgroup_enter(const char *vm, pid_t pid, struct err *e);
/** Whether the kernel killed something in the group for want of memory, and whether the group's own limit was
 * what it ran into. */
bool cgroup_oom(const char *vm, bool *own_limit);
/** Removes a VM's group; false while something is in it still. */
bool cgroup_drop(const char *vm);
/** Removes our group when it is empty. */
void cgroup_teardown(void);

/* tap.c */
int tap_make(const char *name, uint32_t *ifindex, struct err *e); /* returns the descriptor */
int tap_drop(const char *name, struct err *e);                    /* fine when there is none */

/* jail.c */
struct jail {
    const struct options *o;
    const char *name;
    int listener; /* the VM's control socket */
    int log_fd;   /* where its messages go */
    unsigned slot;
    unsigned memory_mib, vcpus;
    struct limits limits;
};
/** Makes a process in a new jail, that waits. Returns the pid, a pidfd and a pipe: a byte lets it start
 * cube-vmm, the end of the pipe (also when the jailer dies) lets it end. */
pid_t jail_start(const struct jail *j, int *pidfd, int *go, struct err *e);

/* vm.c: the VMs that we hold, in memory and on disk (<run_dir>/jailer/vm/<name>/{record,exit.json}). */
struct vm {
    char name[NAME_MAX_LEN + 1];
    pid_t pid;
    uint64_t start_time; /* field 22 of /proc/<pid>/stat: tells a reused pid */
    unsigned slot;
    int pidfd;  /* -1: ended */
    int log_fd; /* read end of its messages; -1: none */
    uint32_t log_bytes;
    int32_t status; /* wait status once ended; -1: not known (it ended while no jailer was there) */
    bool oom, host_oom;
    int kill_client; /* of serve.c: who waits for the answer to which kill; -1: nobody */
    uint64_t kill_id;
    struct vm *next;
};
extern struct vm *vms;

struct vm *vm_find(const char *name);
struct vm *vm_find_pid(pid_t pid);
/** Makes socket, group and process. */
struct vm *vm_spawn(const struct options *o, const char *name, const struct limits *l, unsigned memory_mib,
                    unsigned vcpus, struct err *e);
void vm_mark_ended(const struct options *o, struct vm *v, int32_t status);
/** Removes everything of an ended VM, and `v`. */
void vm_forget(const struct options *o, struct vm *v);
/** Reads the records of an earlier jailer: what lives is adopted, what does not is marked ended. */
int vm_adopt_all(const struct options *o, struct err *e);
/** Where its control socket is. */
void vm_socket_path(const struct options *o, const char *name, char out[108]);

/* taps that we made, on disk: <run_dir>/jailer/tap/<name> */
int tap_record(const struct options *o, const char *name, bool made, struct err *e);
bool tap_recorded(const struct options *o, const char *name);

/* host.c: what only root can give the sandbox network. */
/** A BPF file system at <run_dir>/bpf that belongs to cube-node. */
int host_bpf_mount(const struct options *o, struct err *e);
void host_bpf_unmount(const struct options *o);
/** Duplicates of the name service's sockets: fds[0] UDP, fds[1] listening TCP; made at first use and kept. */
int host_dns_sockets(const struct options *o, int fds[2], struct err *e);

/* serve.c */
int serve(const struct options *o, struct err *e);

/* sweep.c: `--sweep` */
int sweep(const struct options *o, struct err *e);
