/* Owns the spare directories. Invariant: what is in a spare is empty, and no process and no snapshot has it:
 * a sandbox never sees a byte of the one before it.
 *
 * Why: ext4 hands out no inode that was freed within the last minutes, and looks at each of those again for
 * every file that is made (recently_deleted() in fs/ext4/ialloc.c). Where sandboxes come and go that was a
 * third of the processor time of a burst of creates. */
#include "node/daemon/vm_spare.h"

#include "lib/base/cleanup.h"
#include "lib/base/ids.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define SPARES_MAX 256

static struct {
    int fd;
    char name[SPARES_MAX][16];
    unsigned count;
} spares = {.fd = -1};

/* The directory itself stays: a full disk may have no room for another. */
int vm_spare_open(struct node *n, struct err *e)
{
    if (mkdirat(n->store.fd, "vm-spare", 0700) < 0 && errno != EEXIST)
        return err_sys(e, ERR_INTERNAL, "making the directory of spares");
    spares.fd = openat(n->store.fd, "vm-spare", O_DIRECTORY | O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (spares.fd < 0)
        return err_sys(e, ERR_INTERNAL, "opening the directory of spares");
    char **names;
    size_t count;
    if (store_list(&n->store, "vm-spare", &names, &count, e) < 0)
        return -1;
    int rc = 0;
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = tree_remove(spares.fd, names[i], e);
    store_names_free(names, count);
    return rc;
}

int vm_spare_take(struct node *n, const char *name)
{
    if (spares.count == 0)
        return -1;
    const char *spare = spares.name[--spares.count];
    if (renameat(spares.fd, spare, n->vms_fd, name) == 0)
        return 0;
    tree_remove(spares.fd, spare, NULL);
    return -1;
}

static bool empty_file(int dir, const char *name)
{
    struct stat st;
    _cleanup_close_ int fd = openat(dir, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return false;
    if (st.st_nlink == 1)
        return ftruncate(fd, 0) == 0;
    /* A snapshot has it now. */
    return unlinkat(dir, name, 0) == 0;
}

/* The files in it are links to the store's: unlinking one frees no inode. */
static bool empty_base(int dir)
{
    int fd = openat(dir, "base", O_DIRECTORY | O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    _cleanup_closedir_ DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d && fd >= 0)
        close(fd);
    for (struct dirent *x; d && (x = readdir(d));)
        if (strcmp(x->d_name, ".") != 0 && strcmp(x->d_name, "..") != 0 && unlinkat(fd, x->d_name, 0) < 0)
            return false;
    return d;
}

static bool empty(int fd)
{
    int copy = openat(fd, ".", O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
    if (!d && copy >= 0)
        close(copy);
    bool good = d;
    for (struct dirent *x; good && (x = readdir(d));) {
        if (strcmp(x->d_name, ".") == 0 || strcmp(x->d_name, "..") == 0)
            continue;
        good = strcmp(x->d_name, "base") == 0 ? empty_base(fd)
               : strcmp(x->d_name, "layer") == 0 || strcmp(x->d_name, "console.log") == 0
                   ? empty_file(fd, x->d_name)
                   : false;
    }
    return good;
}

int vm_spare_give(struct node *n, const char *name)
{
    char *spare = spares.name[spares.count];
    _cleanup_close_ int fd = openat(n->vms_fd, name, O_DIRECTORY | O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || spares.fd < 0 || spares.count == SPARES_MAX || n->stopping || !empty(fd))
        return -1;
    id_random(spare, 15);
    if (renameat(n->vms_fd, name, spares.fd, spare) < 0)
        return -1;
    spares.count++;
    return 0;
}
