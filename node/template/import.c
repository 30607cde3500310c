/* Owns the import of templates. Invariant: nothing of a failed import stays in the store (a full disk
 * included), and a template is published only after kernel and tools are. */
#include "node/template/import.h"

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/net/crypto.h"
#include "node/store/content.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

extern char **environ;

struct source {
    const char *path;
    int fd;
    char hash[65];
    int64_t size;
};

static int source_open(struct store *s, const char *path, struct source *out, struct err *e)
{
    *out = (struct source){.path = path};
    out->fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (out->fd < 0 || fstat(out->fd, &st) < 0)
        return err_sys(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_INVALID, "opening %s", path);
    if (!S_ISREG(st.st_mode) || st.st_size == 0)
        return err_set(e, ERR_INVALID, "%s is no file with content", path);
    out->size = st.st_size;
    return content_hash_cached(s->fd, out->fd, out->hash, e);
}

static void source_close(struct source *s)
{
    if (s->fd >= 0)
        close(s->fd);
}
#define _cleanup_source_ __attribute__((cleanup(source_close)))

static bool has_magic(const struct source *s, off_t at, const void *magic, size_t n)
{
    char got[8];
    return pread(s->fd, got, n, at) == (ssize_t)n && memcmp(got, magic, n) == 0;
}

/* A wrong file is noticed here, not by a guest that hangs. */
static int check_kinds(const struct source *root, const struct source *kernel, const struct source *tools,
                       struct err *e)
{
    if (!has_magic(root, 1024 + 0x38, "\x53\xef", 2))
        return err_set(e, ERR_INVALID, "%s is no ext4 image", root->path);
    if (!has_magic(kernel, 0,
                   "\x7f"
                   "ELF",
                   4))
        return err_set(e, ERR_INVALID, "%s is no ELF kernel (vmlinux)", kernel->path);
    if (!has_magic(tools, 1024, "\xe2\xe1\xf5\xe0", 4))
        return err_set(e, ERR_INVALID, "%s is no erofs image", tools->path);
    return 0;
}

/* Copies a source into the draft and gives it back open. */
static int copy_in(struct draft *d, const struct source *src, const char *name, struct err *e)
{
    _cleanup_close_ int fd = draft_create(d, name, e);
    if (fd < 0)
        return -1;
    if (content_clone(src->fd, fd, e) < 0)
        return err_wrap(e, "importing %s", src->path);
    return fd_steal(&fd);
}

static int import_object(struct store *s, const struct source *src, const char *dir, const char *name,
                         struct err *e)
{
    char artifact[96];
    snprintf(artifact, sizeof artifact, "%s/%s", dir, src->hash);
    enum presence p = store_presence(s, artifact);
    if (p == PRESENT)
        return 0;
    if (p == PRESENCE_UNKNOWN)
        return err_set(e, ERR_UNAVAILABLE, "the store cannot say whether %s is there", artifact);
    struct draft d _cleanup_draft_;
    if (draft_open(s, &d, e) < 0)
        return -1;
    _cleanup_close_ int fd = copy_in(&d, src, name, e);
    struct manifest m = {
        .kind = MANIFEST_OBJECT, .created_ms = clock_realtime_ms(), .guest_protocol = GUEST_PROTOCOL};
    snprintf(m.id, sizeof m.id, "%s", src->hash);
    if (fd < 0 || manifest_add(&m, name, src->size, NULL, e) < 0 || draft_publish(&d, &m, artifact, e) < 0)
        return -1;
    return 0;
}

static void template_id(const struct import *in, const struct source *root, char id[TEMPLATE_ID_LEN + 1])
{
    char text[160];
    uint8_t digest[32];
    int n = snprintf(text, sizeof text, "template|%s|%u|%u|%u", root->hash, in->vcpus, in->memory_mib,
                     in->disk_mib);
    sha256(text, (size_t)n, digest);
    for (int i = 0; i < TEMPLATE_ID_LEN; i++)
        id[i] = "abcdefghijklmnopqrstuvwxyz0123456789"[digest[i] % 36];
    id[TEMPLATE_ID_LEN] = 0;
}

/* Lets the file system in the image fill the disk that the guest will see. */
static int grow(struct draft *d, int fd, uint32_t disk_mib, struct err *e)
{
    struct stat st;
    off_t want = (off_t)disk_mib << 20;
    if (fstat(fd, &st) < 0)
        return err_sys(e, ERR_INTERNAL, "looking at the image");
    if (st.st_size >= want)
        return 0;
    if (ftruncate(fd, want) < 0)
        return err_sys(e, ERR_INTERNAL, "growing the image");
    char path[600];
    snprintf(path, sizeof path, "%s/%s/root.ext4", d->store->path, d->name);
    char *argv[] = {(char *)"resize2fs", (char *)"-f", path, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    pid_t pid;
    int rc = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (rc != 0)
        return err_set(e, ERR_INTERNAL, "starting resize2fs: %s", strerror(rc));
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return err_set(e, ERR_INTERNAL, "resize2fs of the image failed (status %d)", status);
    return 0;
}

static int import_template(struct store *s, const struct import *in, const struct source *root,
                           const struct manifest *want, const char *artifact, struct err *e)
{
    struct draft d _cleanup_draft_;
    if (draft_open(s, &d, e) < 0)
        return -1;
    _cleanup_close_ int fd = copy_in(&d, root, "root.ext4", e);
    struct manifest m = *want;
    if (fd < 0 || grow(&d, fd, in->disk_mib, e) < 0 || manifest_add(&m, "root.ext4", root->size, NULL, e) < 0)
        return -1;
    return draft_publish(&d, &m, artifact, e);
}

/* The template is there: only what it says about kernel, tools, name and defaults may have changed. */
static int refresh(struct store *s, const struct manifest *want, const char *artifact, struct err *e)
{
    char path[128];
    snprintf(path, sizeof path, "%s/manifest.json", artifact);
    _cleanup_free_ char *text = NULL;
    size_t n;
    struct manifest m;
    if (file_read(s->fd, path, MANIFEST_MAX_BYTES, &text, &n, e) < 0 ||
        manifest_parse(text, n, artifact, &m, e) < 0)
        return -1;
    if (strcmp(m.kernel, want->kernel) == 0 && strcmp(m.tools, want->tools) == 0 &&
        strcmp(m.name, want->name) == 0 && strcmp(m.default_user, want->default_user) == 0 &&
        strcmp(m.default_workdir, want->default_workdir) == 0)
        return 0;
    memcpy(m.kernel, want->kernel, sizeof m.kernel);
    memcpy(m.tools, want->tools, sizeof m.tools);
    memcpy(m.name, want->name, sizeof m.name);
    memcpy(m.default_user, want->default_user, sizeof m.default_user);
    memcpy(m.default_workdir, want->default_workdir, sizeof m.default_workdir);
    _cleanup_buf_ struct buf b = {0};
    manifest_write(&m, &b);
    _cleanup_close_ int dir = openat(s->fd, artifact, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    if (dir < 0)
        return err_sys(e, ERR_INTERNAL, "opening %s", artifact);
    return file_replace(dir, "manifest.json", b.data, b.len, true, e);
}

int import_run(struct store *s, struct import *in, char id[TEMPLATE_ID_LEN + 1], struct err *e)
{
    _cleanup_source_ struct source root = {.fd = -1}, kernel = {.fd = -1}, tools = {.fd = -1};
    if (source_open(s, in->root, &root, e) < 0 || source_open(s, in->kernel, &kernel, e) < 0 ||
        source_open(s, in->tools, &tools, e) < 0 || check_kinds(&root, &kernel, &tools, e) < 0)
        return -1;
    if (in->disk_mib == 0)
        in->disk_mib = (uint32_t)((root.size + (1 << 20) - 1) >> 20);
    if (((int64_t)in->disk_mib << 20) < root.size)
        return err_set(e, ERR_INVALID, "%s has %lld MiB, more than the disk of %u MiB", in->root,
                       (long long)(root.size >> 20), in->disk_mib);
    if (import_object(s, &kernel, "kernel", "vmlinux", e) < 0 ||
        import_object(s, &tools, "tools", "tools.erofs", e) < 0)
        return -1;
    template_id(in, &root, id);
    struct manifest m = {.kind = MANIFEST_TEMPLATE,
                         .created_ms = clock_realtime_ms(),
                         .vcpus = in->vcpus,
                         .memory_mib = in->memory_mib,
                         .disk_mib = in->disk_mib,
                         .guest_protocol = GUEST_PROTOCOL};
    snprintf(m.id, sizeof m.id, "%s", id);
    snprintf(m.name, sizeof m.name, "%s", in->name);
    snprintf(m.default_user, sizeof m.default_user, "%s", in->default_user);
    snprintf(m.default_workdir, sizeof m.default_workdir, "%s", in->default_workdir);
    memcpy(m.kernel, kernel.hash, sizeof m.kernel);
    memcpy(m.tools, tools.hash, sizeof m.tools);
    char artifact[64];
    snprintf(artifact, sizeof artifact, "tpl/%s", id);
    switch (store_presence(s, artifact)) {
    case PRESENT:
        return refresh(s, &m, artifact, e);
    case MISSING:
        return import_template(s, in, &root, &m, artifact, e);
    default:
        return err_set(e, ERR_UNAVAILABLE, "the store cannot say whether %s is there", artifact);
    }
}
