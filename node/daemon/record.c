/* Owns the format of records. Invariant: a record is replaced in one step and carries a checksum, so that a
 * reader gets a whole one or a clear error; no secret but the sandbox's own environment variables is in it
 * (mode 0600). */
#include "node/daemon/record.h"

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/net/crypto.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define RECORD_FORMAT 1
#define RECORD_MAX (1u << 20)
#define SUM_BYTES 8

static int record_dir(const struct node *n, const char *id, bool make, struct err *e)
{
    if (make && mkdirat(n->sandboxes_fd, id, 0700) < 0 && errno != EEXIST)
        return err_sys(e, ERR_INTERNAL, "making the directory of %s", id);
    int fd = openat(n->sandboxes_fd, id, O_DIRECTORY | O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0
               ? err_sys(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_INTERNAL, "opening the directory of %s", id)
               : fd;
}

int record_save(const struct sandbox *sb, bool durable, struct err *e)
{
    const struct vm *vm = sb->vm;
    Cube__Node__V1__Record r = CUBE__NODE__V1__RECORD__INIT;
    r.format = RECORD_FORMAT;
    r.spec = sb->spec;
    r.gen = sb->gen;
    r.state = sb->state;
    r.deadline_boot_ms = sb->deadline_boot_ms;
    if (sb->deadline_boot_ms)
        r.deadline_ms = clock_realtime_ms() + sb->deadline_boot_ms - clock_boot_ms();
    r.boot_id = (char *)sb->node->boot_id;
    r.vm_name = vm ? (char *)vm->name : (char *)"";
    r.vm_pid = vm ? vm->pid : 0;
    r.vm_start_time = vm ? vm->start_time : 0;
    r.vm_socket = vm ? (char *)vm->socket : (char *)"";
    r.tap = vm ? (char *)vm->tap : (char *)"";
    r.vmm_gen = vm ? vm->vmm_gen : 0;
    r.started_ms = sb->started_ms;
    r.ended_ms = sb->ended_ms;
    r.reason = (char *)sb->reason;
    r.snapshot_id = (char *)sb->snapshot_id;
    r.source = (char *)sb->source;
    r.default_user = (char *)sb->default_user;
    r.default_workdir = (char *)sb->default_workdir;
    r.isolation = (char *)sb->isolation;
    r.envd_version = (char *)sb->envd_version;
    size_t n = cube__node__v1__record__get_packed_size(&r);
    _cleanup_free_ uint8_t *data = malloc(SUM_BYTES + n);
    if (!data || n > RECORD_MAX)
        return err_set(e, ERR_TOO_LARGE, "the record of %s has %zu bytes", sb->id, n);
    cube__node__v1__record__pack(&r, data + SUM_BYTES);
    uint8_t sum[32];
    sha256(data + SUM_BYTES, n, sum);
    memcpy(data, sum, SUM_BYTES);
    _cleanup_close_ int dir = record_dir(sb->node, sb->id, true, e);
    return dir < 0 ? -1 : file_replace(dir, "record", data, SUM_BYTES + n, durable, e);
}

int record_flush(struct node *n, const char *id, struct err *e)
{
    _cleanup_close_ int dir = record_dir(n, id, false, e);
    _cleanup_close_ int fd = dir < 0 ? -1 : openat(dir, "record", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fdatasync(fd) < 0 || fsync(dir) < 0 || fsync(n->sandboxes_fd) < 0)
        return err_sys(e, ERR_INTERNAL, "flushing the record of %s", id);
    return 0;
}

void record_tidy(struct node *n, const char *id)
{
    _cleanup_close_ int dir = record_dir(n, id, false, NULL);
    int fd = dir < 0 ? -1 : dup(dir);
    _cleanup_closedir_ DIR *d = fd < 0 ? NULL : fdopendir(fd);
    bool whole = false;
    if (!d)
        return;
    for (struct dirent *x; (x = readdir(d));) {
        whole |= strcmp(x->d_name, "record") == 0;
        if (strncmp(x->d_name, ".record.", 8) == 0) /* of file_replace */
            unlinkat(dir, x->d_name, 0);
    }
    if (!whole)
        unlinkat(n->sandboxes_fd, id, AT_REMOVEDIR); /* not when something else is in it */
}

int record_decode(const char *data, size_t len, const char *id, Cube__Node__V1__Record **out, struct err *e)
{
    uint8_t sum[32];
    if (len < SUM_BYTES)
        return err_set(e, ERR_INTERNAL, "the record of %s is cut off", id);
    sha256(data + SUM_BYTES, len - SUM_BYTES, sum);
    if (memcmp(sum, data, SUM_BYTES) != 0)
        return err_set(e, ERR_INTERNAL, "the record of %s is damaged", id);
    Cube__Node__V1__Record *r =
        cube__node__v1__record__unpack(NULL, len - SUM_BYTES, (const uint8_t *)data + SUM_BYTES);
    if (!r || r->format != RECORD_FORMAT || !r->spec || strcmp(r->spec->sandbox_id, id) != 0) {
        if (r)
            cube__node__v1__record__free_unpacked(r, NULL);
        return err_set(e, ERR_INTERNAL, "the record of %s is not one of format %d", id, RECORD_FORMAT);
    }
    *out = r;
    return 0;
}

int record_load(struct node *n, const char *id, Cube__Node__V1__Record **out, struct err *e)
{
    _cleanup_close_ int dir = record_dir(n, id, false, e);
    _cleanup_free_ char *data = NULL;
    size_t len;
    if (dir < 0 || file_read(dir, "record", RECORD_MAX + SUM_BYTES, &data, &len, e) < 0)
        return -1;
    return record_decode(data, len, id, out, e);
}

void record_remove(struct node *n, const char *id)
{
    tree_remove(n->sandboxes_fd, id, NULL);
}
