/* Owns the cache of opened templates. Invariant: an entry is used only while every file of it, and the
 * manifests that named them, look as they did when they were verified; else it is dropped and the way with
 * all checks is taken. */
#include "node/template/image_cache.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define ENTRIES 16
#define FILES 7

struct look {
    uint64_t ino;
    int64_t size, mtime_ns;
};

static struct cached {
    char template_id[48];
    struct image image;
    struct look files[FILES], manifest, template_manifest;
    uint64_t used;
} cache[ENTRIES];
static uint64_t uses;

static struct look look_of(const struct stat *st)
{
    return (struct look){st->st_ino, st->st_size, st->st_mtim.tv_sec * 1000000000ll + st->st_mtim.tv_nsec};
}

static bool look_fd(int fd, struct look *out)
{
    struct stat st;
    *out = (struct look){0};
    if (fd < 0)
        return true; /* this image has no such file */
    if (fstat(fd, &st) < 0)
        return false;
    *out = look_of(&st);
    return true;
}

static bool look_manifest(struct node *n, const char *artifact, struct look *out)
{
    char path[160];
    struct stat st;
    snprintf(path, sizeof path, "%s/manifest.json", artifact);
    if (fstatat(n->store.fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return false;
    *out = look_of(&st);
    return true;
}

static bool same(const struct look *a, const struct look *b)
{
    return a->ino == b->ino && a->size == b->size && a->mtime_ns == b->mtime_ns;
}

static void files_of(struct image *img, int *out[FILES])
{
    int *all[FILES] = {&img->root,   &img->tools,       &img->kernel, &img->state,
                       &img->memory, &img->working_set, &img->layer};
    memcpy(out, all, sizeof all);
}

static bool look_all(struct node *n, const char *template_id, struct image *img, struct cached *out)
{
    int *fd[FILES];
    char artifact[64];
    files_of(img, fd);
    for (int i = 0; i < FILES; i++)
        if (!look_fd(*fd[i], &out->files[i]))
            return false;
    snprintf(artifact, sizeof artifact, "tpl/%.47s", template_id);
    return look_manifest(n, artifact, &out->template_manifest) &&
           look_manifest(n, img->artifact, &out->manifest);
}

static void drop(struct cached *c)
{
    if (!c->template_id[0])
        return;
    image_close(&c->image);
    *c = (struct cached){0};
}

static struct cached *find(const char *template_id)
{
    for (int i = 0; i < ENTRIES; i++)
        if (cache[i].template_id[0] && strcmp(cache[i].template_id, template_id) == 0)
            return &cache[i];
    return NULL;
}

static int copy(const struct image *from, struct image *to)
{
    int *fd[FILES];
    *to = *from;
    files_of(to, fd);
    bool whole = true;
    for (int i = 0; i < FILES; i++)
        if (*fd[i] >= 0) {
            *fd[i] = fcntl(*fd[i], F_DUPFD_CLOEXEC, 3);
            whole &= *fd[i] >= 0;
        }
    if (whole)
        return 0;
    image_close(to);
    return -1;
}

int image_cache_get(struct node *n, const char *template_id, struct image *out)
{
    struct cached *c = find(template_id), now = {0};
    if (!c)
        return -1;
    bool fresh = look_all(n, template_id, &c->image, &now) && same(&now.manifest, &c->manifest) &&
                 same(&now.template_manifest, &c->template_manifest);
    for (int i = 0; fresh && i < FILES; i++)
        fresh = same(&now.files[i], &c->files[i]);
    if (!fresh) {
        drop(c);
        return -1;
    }
    c->used = ++uses;
    return copy(&c->image, out);
}

void image_cache_put(struct node *n, const char *template_id, const struct image *img)
{
    if (!img->has_memory || img->delta_count > 0 || strlen(template_id) >= sizeof cache[0].template_id)
        return;
    struct cached *c = find(template_id);
    for (int i = 0; !c && i < ENTRIES; i++)
        if (!cache[i].template_id[0])
            c = &cache[i];
    if (!c) {
        c = &cache[0]; /* the one that was used longest ago */
        for (int i = 1; i < ENTRIES; i++)
            if (cache[i].used < c->used)
                c = &cache[i];
    }
    drop(c);
    if (copy(img, &c->image) < 0)
        return;
    snprintf(c->template_id, sizeof c->template_id, "%s", template_id);
    c->used = ++uses;
    if (!look_all(n, template_id, &c->image, c))
        drop(c);
}
