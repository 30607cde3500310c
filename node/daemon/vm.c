/* Owns VM processes and what surrounds each: TAP, sockets, directories, conversations. Invariant: a VM is in
 * the list from before its first resource exists until after its last is gone, so whatever the jailer or the
 * file system holds that no listed VM names is an orphan and may be removed (`sweep.c`). */
#include "node/daemon/vm.h"

#include "lib/base/cleanup.h"
#include "lib/base/ids.h"
#include "lib/base/log.h"
#include "lib/net/fiber.h"
#include "node/daemon/guest.h"
#include "node/daemon/jailer.h"
#include "node/daemon/network.h"
#include "node/daemon/pool.h"
#include "node/daemon/sandbox.h"
#include "node/daemon/vm_files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#define VMM_VERSION 1
#define ANSWER_MS 10000
#define OVERHEAD_MIB 96 /* the VMM's own memory beside the guest's, and page cache charged to its cgroup */
#define VM_PIDS 64

static struct vm *vms;

struct vm *vm_find(const char *name)
{
    for (struct vm *vm = vms; vm; vm = vm->next)
        if (strcmp(vm->name, name) == 0)
            return vm;
    return NULL;
}

struct vm *vm_find_tap(const char *tap)
{
    for (struct vm *vm = vms; vm; vm = vm->next)
        if (strcmp(vm->tap, tap) == 0)
            return vm;
    return NULL;
}

unsigned vm_unowned(void)
{
    unsigned n = 0;
    for (struct vm *vm = vms; vm; vm = vm->next)
        n += vm->owner == NULL;
    return n;
}

uint64_t process_start_time(uint32_t pid)
{
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (n <= 0)
        return 0;
    text[n] = 0;
    char *p = strrchr(text, ')'); /* the name before it may hold anything */
    unsigned long long start = 0;
    for (int field = 2; p && field < 22; field++)
        p = strchr(p + 1, ' ');
    if (p)
        sscanf(p, "%llu", &start);
    return start;
}

static struct vm *vm_new(struct node *n)
{
    struct vm *vm = calloc(1, sizeof *vm);
    if (!vm)
        abort();
    vm->node = n;
    vm->tap_fd = vm->sock_dir = vm->file_dir = vm->ctl_fd = vm->in_fd = -1;
    vm->next = vms;
    vms = vm;
    return vm;
}

static void vm_unlist(struct vm *vm)
{
    for (struct vm **at = &vms; *at; at = &(*at)->next)
        if (*at == vm) {
            *at = vm->next;
            return;
        }
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void vm_abandon(struct vm *vm)
{
    if (!vm)
        return;
    vm_unlist(vm);
    peer_free(vm->guest);
    peer_free(vm->control);
    close_fd(&vm->tap_fd);
    close_fd(&vm->sock_dir);
    close_fd(&vm->file_dir);
    close_fd(&vm->ctl_fd);
    close_fd(&vm->in_fd);
    free(vm);
}

void vm_destroy(struct vm *vm)
{
    if (!vm)
        return;
    struct node *n = vm->node;
    vm->owner = NULL;
    vm->watcher = NULL;
    if (!vm->ended)
        snprintf(vm->end_reason, sizeof vm->end_reason, "it was ended");
    vm->ended = true;
    peer_free(vm->guest);
    peer_free(vm->control);
    vm->guest = vm->control = NULL;
    network_detach(vm);
    while (vm->users > 0) /* their calls fail now */
        fiber_sleep(1);
    struct err e = {0};
    int rc = 0;
    if (vm->pid)
        rc = jailer_kill(n->jailer, vm->name, &e);
    if (rc == 0)
        rc = jailer_forget(n->jailer, vm->name, &e);
    if (rc == 0 && vm->tap[0]) {
        close_fd(&vm->tap_fd);
        rc = jailer_drop_tap(n->jailer, vm->tap, &e);
    }
    if (rc < 0)
        log_fail(&e, "ending %s; the sweep will try again", vm->name);
    vm_files_remove(n, vm->name, rc == 0);
    vm_abandon(vm);
}

static void destroy_later(void *arg)
{
    vm_destroy(arg);
}

void vm_retire(struct vm *vm)
{
    if (!vm)
        return;
    vm->owner = NULL;
    network_detach(vm);
    if (!vm->ended && vm_set_frozen(vm, true, NULL) < 0)
        vm_destroy(vm);
    else
        fiber_spawn(destroy_later, vm);
}

static void vm_finish(struct vm *vm, const char *reason)
{
    if (vm->ended)
        return;
    vm->ended = true;
    snprintf(vm->end_reason, sizeof vm->end_reason, "%s", reason);
    if (vm->watcher)
        fiber_event_set(vm->watcher);
    if (vm->owner)
        sandbox_on_vm_end(vm->owner);
    else
        pool_on_vm_end(vm->node, vm);
}

void vm_on_ended(struct node *n, const char *name, int status, bool oom, bool host_oom)
{
    (void)n;
    struct vm *vm = vm_find(name);
    if (!vm)
        return;
    char reason[128];
    if (oom)
        snprintf(reason, sizeof reason,
                 "out of memory in the VM's cgroup: the VM process met its memory limit");
    else if (host_oom)
        snprintf(reason, sizeof reason, "out of memory on the host: its OOM killer ended the VM process");
    else if (WIFSIGNALED(status))
        snprintf(reason, sizeof reason, "the VM process was killed by signal %d", WTERMSIG(status));
    else
        snprintf(reason, sizeof reason, "the VM process exited with status %d", WEXITSTATUS(status));
    vm->oom |= oom;
    vm_finish(vm, reason);
}

static void on_vmm_event(const ProtobufCMessage *m, void *data)
{
    struct vm *vm = data;
    const Cube__Vmm__V1__Reply *r = (const Cube__Vmm__V1__Reply *)m;
    if (r->result_case != CUBE__VMM__V1__REPLY__RESULT_EXIT)
        return;
    char reason[200];
    snprintf(reason, sizeof reason, "guest %s%s%s", r->exit->reason, *r->exit->detail ? ": " : "",
             r->exit->detail);
    vm_finish(vm, reason);
}

static void control_lost(void *arg);

static void on_control_closed(void *data)
{
    struct vm *vm = data;
    fiber_spawn(control_lost, strdup(vm->name));
}

/* The VMM's hello. A fresh one must be ready, another one must be the one that we mean; it also says of what
 * class the host is. */
static int vm_hello(struct vm *vm, const char *sandbox_id, uint64_t gen, bool fresh, struct err *e)
{
    Cube__Vmm__V1__Hello hello = CUBE__VMM__V1__HELLO__INIT;
    hello.version = VMM_VERSION;
    Cube__Vmm__V1__Request req = CUBE__VMM__V1__REQUEST__INIT;
    req.op_case = CUBE__VMM__V1__REQUEST__OP_HELLO;
    req.hello = &hello;
    struct peer_reply reply _cleanup_reply_ = {0};
    if (peer_call(vm->control, &req.base, NULL, 0, ANSWER_MS, &reply, e) < 0)
        return -1;
    const Cube__Vmm__V1__Reply *r = (const Cube__Vmm__V1__Reply *)reply.message;
    if (r->result_case != CUBE__VMM__V1__REPLY__RESULT_HELLO)
        return err_set(e, ERR_INTERNAL, "%s answered something else to hello", vm->name);
    snprintf(vm->kvm_kind, sizeof vm->kvm_kind, "%s", r->hello->kvm_kind);
    struct node_class *c = &vm->node->class; /* one host, one VMM: all say the same */
    if (!c->kvm_kind[0]) {                   /* once: worker threads read it */
        snprintf(c->cpu_features, sizeof c->cpu_features, "%s", r->hello->cpu_class);
        c->device_layout = r->hello->device_layout;
        snprintf(c->kvm_kind, sizeof c->kvm_kind, "%s", r->hello->kvm_kind);
    }
    if (fresh)
        return strcmp(r->hello->state, "ready") == 0
                   ? 0
                   : err_set(e, ERR_INTERNAL, "%s says it is %s, not ready", vm->name, r->hello->state);
    if (strcmp(r->hello->state, "running") != 0 && strcmp(r->hello->state, "frozen") != 0)
        return err_set(e, ERR_UNAVAILABLE, "%s says it is %s", vm->name, r->hello->state);
    if (gen && (strcmp(r->hello->sandbox_id, sandbox_id) != 0 || r->hello->gen != gen))
        return err_set(e, ERR_CONFLICT, "%s says it is %s generation %llu", vm->name, r->hello->sandbox_id,
                       (unsigned long long)r->hello->gen);
    return 0;
}

static void vm_attach(struct vm *vm, int fd)
{
    char name[64];
    snprintf(name, sizeof name, "the VMM of %s", vm->name);
    vm->control = peer_new(vm->node->loop, fd,
                           &(struct peer_config){.name = name,
                                                 .framing = PEER_PACKET,
                                                 .data = vm,
                                                 .event = on_vmm_event,
                                                 .closed = on_control_closed,
                                                 .reply = &cube__vmm__v1__reply__descriptor});
}

/* Connects to the VMM again and checks that it is the one we mean. */
static int vm_connect(struct vm *vm, const char *sandbox_id, struct err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", vm->socket);
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
        return err_sys(e, ERR_UNAVAILABLE, "connecting to the VMM at %s", vm->socket);
    vm_attach(vm, fd_steal(&fd));
    return vm_hello(vm, sandbox_id, vm->vmm_gen, false, e);
}

/* The VMM's connection broke. The jailer's event says more when the process ended, so it gets a moment; else
 * we dial again. */
static void control_lost(void *arg)
{
    char *name = arg;
    fiber_sleep(300);
    struct vm *vm = vm_find(name);
    free(name);
    if (!vm || vm->ended || !vm->control || !peer_is_closed(vm->control))
        return;
    if (process_start_time(vm->pid) != vm->start_time) {
        vm_finish(vm, "the VM process is gone");
        return;
    }
    struct err e = {0};
    struct peer *old = vm->control;
    vm->control = NULL;
    peer_free(old);
    char id[22];
    snprintf(id, sizeof id, "%s", vm->owner ? vm->owner->id : "");
    vm->users++; /* it may be ended, and its owner forgotten, while the greeting is on its way */
    if (vm_connect(vm, id, &e) < 0)
        vm_finish(vm, e.msg);
    vm->users--;
}

Cube__Jailer__V1__Limits vm_limits(uint32_t vcpus, uint32_t memory_mib)
{
    Cube__Jailer__V1__Limits l = CUBE__JAILER__V1__LIMITS__INIT;
    l.memory_bytes = ((uint64_t)memory_mib + OVERHEAD_MIB) << 20;
    l.cpu_milli = vcpus * 1000;
    l.pids = VM_PIDS;
    return l;
}

static int vm_prepare(struct vm *vm, struct err *e)
{
    struct node *n = vm->node;
    snprintf(vm->tap, sizeof vm->tap, "%s-", n->tap_prefix);
    size_t at = strlen(vm->tap);
    id_random(vm->tap + at, 8);
    if (vm_files_make(n, vm->name, &vm->file_dir, &vm->sock_dir, &vm->ctl_fd, &vm->in_fd, e) < 0 ||
        jailer_make_tap(n->jailer, vm->tap, &vm->tap_fd, e) < 0)
        return -1;
    network_prepare(vm);
    vm->vcpus = VM_POOL_VCPUS;
    vm->memory_mib = VM_POOL_MEMORY_MIB;
    Cube__Jailer__V1__Limits limits = vm_limits(vm->vcpus, vm->memory_mib);
    struct spawned s;
    if (jailer_spawn(n->jailer, vm->name, &limits, vm->memory_mib, vm->vcpus, &s, e) < 0)
        return -1;
    vm->pid = s.pid;
    vm->start_time = s.start_time;
    memcpy(vm->socket, s.socket, sizeof vm->socket);
    if (s.control_fd < 0)
        return err_set(e, ERR_INTERNAL, "the jailer passed no control socket for %s", vm->name);
    vm_attach(vm, s.control_fd);
    if (vm_hello(vm, "", 0, true, e) < 0)
        return -1;
    return vm->ended ? err_set(e, ERR_INTERNAL, "%s", vm->end_reason) : 0;
}

struct vm *vm_make(struct node *n, struct err *e)
{
    struct vm *vm = vm_new(n);
    char suffix[13];
    id_random(suffix, 12);
    snprintf(vm->name, sizeof vm->name, "vm-%s", suffix);
    if (vm_prepare(vm, e) == 0)
        return vm;
    err_wrap(e, "preparing a VM process");
    vm_destroy(vm);
    return NULL;
}

struct vm *vm_acquire(struct node *n, struct err *e)
{
    struct vm *vm = pool_take(n);
    if (!vm)
        return vm_make(n, e);
    vm->pooled = true;
    return vm;
}

struct vm *vm_adopt(struct node *n, const char *name, uint32_t pid, uint64_t start_time, const char *socket,
                    const char *tap, const char *id, uint64_t gen, uint64_t vmm_gen, struct err *e)
{
    if (process_start_time(pid) != start_time) {
        err_set(e, ERR_NOT_FOUND, "VM process %u of %s ended while the node was away", pid, name);
        return NULL;
    }
    struct vm *vm = vm_new(n);
    snprintf(vm->name, sizeof vm->name, "%s", name);
    snprintf(vm->socket, sizeof vm->socket, "%s", socket);
    snprintf(vm->tap, sizeof vm->tap, "%s", tap);
    vm->pid = pid;
    vm->start_time = start_time;
    vm->vmm_gen = vmm_gen;
    if (vm_files_open(n, name, id, gen, &vm->file_dir, &vm->sock_dir, e) < 0 || vm_connect(vm, id, e) < 0) {
        vm_abandon(vm);
        return NULL;
    }
    return vm;
}
