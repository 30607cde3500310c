/* Owns the directories and socket names of VMs. Invariant: <run>/sb/<id>/<gen> appears by rename when ticket
 * and sockets are in it, so the relay never sees half of it; modes are those of internal.md §5. */
#include "node/daemon/vm_files.h"

#include "lib/base/cleanup.h"
#include "lib/net/fiber.h"
#include "node/daemon/vm.h"
#include "node/daemon/vm_spare.h"
#include "node/store/content.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define BACKLOG 128
#define CONSOLE_FILE "console.log"
#define LAYER_FILE "layer"
#define SMALL_LAYER                                                                                          \
    (8 << 20) /* bytes that are copied on the loop: below a millisecond or two, less than a change of        \
                 threads costs */

static int share(const struct node *n, int dir, const char *name, mode_t mode, struct err *e)
{
    if (n->cfg.relay_gid >= 0 && fchownat(dir, name, (uid_t)-1, (gid_t)n->cfg.relay_gid, 0) < 0)
        return err_sys(e, ERR_INTERNAL, "giving %s to the relay's group %lld", name,
                       (long long)n->cfg.relay_gid);
    if (fchmodat(dir, name, mode, 0) < 0)
        return err_sys(e, ERR_INTERNAL, "setting the mode of %s", name);
    return 0;
}

/* sun_path has 108 bytes; a name through the descriptor of its directory always fits. */
static struct sockaddr_un address_at(int dir, const char *name)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "/proc/self/fd/%d/%s", dir, name);
    return a;
}

int socket_listen_at(int dir, const char *name, int mode, struct err *e)
{
    struct sockaddr_un a = address_at(dir, name);
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0)
        return err_sys(e, ERR_INTERNAL, "binding %s", name);
    if (fchmodat(dir, name, (mode_t)mode, 0) < 0 || listen(fd, BACKLOG) < 0)
        return err_sys(e, ERR_INTERNAL, "listening on %s", name);
    return fd_steal(&fd);
}

int socket_connect_at(int dir, const char *name, struct err *e)
{
    struct sockaddr_un a = address_at(dir, name);
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
        return err_sys(e, ERR_UNAVAILABLE, "connecting to %s", name);
    return fd_steal(&fd);
}

static int make_dir(int parent, const char *name, mode_t mode, int *out, struct err *e)
{
    if (mkdirat(parent, name, mode) < 0 && errno != EEXIST)
        return err_sys(e, ERR_INTERNAL, "making directory %s", name);
    *out = openat(parent, name, O_DIRECTORY | O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    return *out < 0 ? err_sys(e, ERR_INTERNAL, "opening directory %s", name) : 0;
}

/* What a start needs is made ahead of it. */
static int make_files(int dir, struct err *e)
{
    static const char *const files[] = {LAYER_FILE, CONSOLE_FILE};
    if (mkdirat(dir, "base", 0700) < 0 && errno != EEXIST)
        return err_sys(e, ERR_INTERNAL, "making the base directory of a VM");
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++) {
        _cleanup_close_ int fd = openat(dir, files[i], O_CREAT | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return err_sys(e, ERR_INTERNAL, "making the %s of a VM", files[i]);
    }
    return 0;
}

int vm_files_make(struct node *n, const char *name, int *file_dir, int *sock_dir, int *ctl_fd, int *in_fd,
                  struct err *e)
{
    vm_spare_take(n, name);
    if (make_dir(n->vms_fd, name, 0700, file_dir, e) < 0 || make_files(*file_dir, e) < 0 ||
        make_dir(n->warm_fd, name, 0700, sock_dir, e) < 0)
        return -1;
    *ctl_fd = socket_listen_at(*sock_dir, "ctl.sock", 0600, e);
    if (*ctl_fd < 0)
        return -1;
    *in_fd = socket_listen_at(*sock_dir, "in.sock", 0660, e);
    return *in_fd < 0 ? -1 : share(n, *sock_dir, "in.sock", 0660, e);
}

int vm_files_open(struct node *n, const char *name, const char *sandbox_id, uint64_t gen, int *file_dir,
                  int *sock_dir, struct err *e)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%llu", sandbox_id, (unsigned long long)gen);
    *file_dir = openat(n->vms_fd, name, O_DIRECTORY | O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    *sock_dir = openat(n->sb_fd, path, O_DIRECTORY | O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (*file_dir < 0 || *sock_dir < 0)
        return err_sys(e, ERR_NOT_FOUND, "opening the directories of %s", name);
    return 0;
}

void vm_files_remove(struct node *n, const char *name, bool ended)
{
    tree_remove(n->warm_fd, name, NULL);
    if (!ended || vm_spare_give(n, name) < 0)
        tree_remove(n->vms_fd, name, NULL);
}

int vm_layer_open(struct vm *vm, struct err *e)
{
    int fd = openat(vm->file_dir, LAYER_FILE, O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd < 0 ? err_sys(e, ERR_INTERNAL, "opening the disk layer of %s", vm->name) : fd;
}

struct layer_copy {
    int from, to;
    struct err error;
};

static int layer_copy(void *arg)
{
    struct layer_copy *c = arg;
    return content_clone(c->from, c->to, &c->error);
}

int vm_layer_copy(int from, int to, struct err *e)
{
    struct layer_copy c = {.from = from, .to = to};
    struct stat st;
    bool small = fstat(from, &st) == 0 && st.st_blocks * 512 <= SMALL_LAYER;
    int rc = small ? layer_copy(&c) : fiber_offload(layer_copy, &c);
    if (rc < 0 && e)
        *e = c.error;
    return rc;
}

int vm_console_open(struct vm *vm, struct err *e)
{
    int fd = openat(vm->file_dir, CONSOLE_FILE, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd < 0 ? err_sys(e, ERR_INTERNAL, "opening the console log of %s", vm->name) : fd;
}

void vm_console_tail(struct vm *vm, char *out, size_t max)
{
    *out = 0;
    _cleanup_close_ int fd = openat(vm->file_dir, CONSOLE_FILE, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return;
    off_t at = st.st_size > (off_t)max - 1 ? st.st_size - (off_t)max + 1 : 0;
    ssize_t n = pread(fd, out, max - 1, at);
    out[n > 0 ? n : 0] = 0;
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < 0x20 && *p != '\n')
            *p = ' ';
}

int vm_publish_prepare(struct vm *vm, const char *sandbox_id, const uint8_t ticket[32], struct err *e)
{
    struct node *n = vm->node;
    if (file_replace(vm->sock_dir, "ticket", ticket, 32, false, e) < 0 ||
        share(n, vm->sock_dir, "ticket", 0640, e) < 0 || share(n, vm->sock_dir, ".", 0750, e) < 0)
        return -1;
    if (mkdirat(n->sb_fd, sandbox_id, 0700) < 0 && errno != EEXIST)
        return err_sys(e, ERR_INTERNAL, "making the run directory of %s", sandbox_id);
    return share(n, n->sb_fd, sandbox_id, 0750, e);
}

int vm_publish(struct vm *vm, const char *sandbox_id, uint64_t gen, struct err *e)
{
    struct node *n = vm->node;
    char to[64];
    snprintf(to, sizeof to, "%s/%llu", sandbox_id, (unsigned long long)gen);
    if (renameat(n->warm_fd, vm->name, n->sb_fd, to) < 0)
        return err_sys(e, ERR_INTERNAL, "publishing the sockets of %s", sandbox_id);
    return 0;
}

void vm_unpublish(struct node *n, const char *sandbox_id)
{
    tree_remove(n->sb_fd, sandbox_id, NULL);
}
