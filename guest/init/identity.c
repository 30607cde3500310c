/* Identity. Invariant: fails closed: a step that does not succeed leaves its flag false and the sandbox
 * frozen. */
#include "guest/init/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "guest/init/cgroups.h"
#include "guest/init/envd_link.h"
#include "guest/init/mounts.h"
#include "guest/init/net.h"
#include "lib/base/buf.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/ids.h"
#include "lib/base/jsonw.h"
#include "lib/base/log.h"

#define NET_ADDRESS "169.254.0.21/30" /* contracts/internal.md §8 */
#define NET_GATEWAY "169.254.0.22"
#define NET_MTU 1450
#define RANDOM_MIN 32
#define GENERATION_FILE "/run/cube/generation"
#define BOOT_ID_FILE "/run/cube/boot_id"
#define BOOT_ID_KERNEL "/proc/sys/kernel/random/boot_id"

static bool set;
static uint64_t generation;

bool identity_is_set(void)
{
    return set;
}

uint64_t identity_generation(void)
{
    return generation;
}

static bool clock_apply(int64_t ns, struct err *e)
{
    struct timespec ts = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    if (ns <= 0)
        return err_set(e, ERR_INVALID, "realtime_ns is missing"), false;
    if (clock_settime(CLOCK_REALTIME, &ts) < 0)
        return err_sys(e, ERR_INTERNAL, "setting the clock"), false;
    return true;
}

/* Credits fresh bytes and makes the kernel use them now: clones of one snapshot share the old pool. */
static bool random_apply(ProtobufCBinaryData seed, struct err *e)
{
    if (seed.len < RANDOM_MIN)
        return err_set(e, ERR_INVALID, "random has %zu bytes, at least %d are needed", seed.len, RANDOM_MIN),
               false;
    size_t n = seed.len > 512 ? 512 : seed.len;
    struct {
        struct rand_pool_info info;
        unsigned char bytes[512];
    } pool = {.info = {.entropy_count = (int)n * 8, .buf_size = (int)n}};
    memcpy(pool.info.buf, seed.data, n);
    _cleanup_close_ int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
    bool ok = fd >= 0 && ioctl(fd, RNDADDENTROPY, &pool) == 0 && ioctl(fd, RNDRESEEDCRNG) == 0;
    explicit_bzero(&pool, sizeof(pool));
    if (!ok)
        err_sys(e, ERR_INTERNAL, "reseeding the random pool");
    return ok;
}

/* Programs such as sudo look their own host name up. */
static int hosts_add(const char *name)
{
    char text[8192], line[160];
    _cleanup_close_ int fd = open("/etc/hosts", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 256);
    text[n > 0 ? n : 0] = 0;
    snprintf(line, sizeof(line), "127.0.1.1\t%s\n", name);
    if (strstr(text, line))
        return 0;
    if (!*text)
        strcpy(text, "127.0.0.1\tlocalhost\n::1\tlocalhost\n");
    char *old = strstr(text, "127.0.1.1\t"); /* of the template */
    char *rest = old ? strchr(old, '\n') : NULL;
    if (rest)
        memmove(old, rest + 1, strlen(rest + 1) + 1);
    strcat(text, line);
    return file_publish("/etc/hosts", text);
}

static bool name_valid(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.");
    return n && n < 64 && !s[n];
}

static bool names_apply(const Cube__Init__V1__SetIdentity *req, struct err *e)
{
    char text[80];
    if (*req->hostname) {
        if (!name_valid(req->hostname))
            return err_set(e, ERR_INVALID, "hostname '%.64s' is malformed", req->hostname), false;
        if (sethostname(req->hostname, strlen(req->hostname)) < 0)
            return err_sys(e, ERR_INTERNAL, "setting the host name"), false;
        snprintf(text, sizeof(text), "%s\n", req->hostname);
        /* A root without /etc needs no files in it. */
        if (access("/etc", F_OK) == 0 &&
            (file_publish("/etc/hostname", text) < 0 || hosts_add(req->hostname) < 0) && errno != EROFS)
            return err_sys(e, ERR_INTERNAL, "writing the host name"), false;
    }
    if (req->machine_id.len) {
        if (req->machine_id.len != 16)
            return err_set(e, ERR_INVALID, "machine_id has %zu bytes, not 16", req->machine_id.len), false;
        hex_encode(req->machine_id.data, 16, text);
        strcat(text, "\n");
        if (access("/etc", F_OK) == 0 && file_publish("/etc/machine-id", text) < 0 && errno != EROFS)
            return err_sys(e, ERR_INTERNAL, "writing /etc/machine-id"), false;
    }
    return true;
}

/* Clones of one snapshot would share the kernel's boot id, and programs take it for the name of this boot of
 * this machine. A resume of the same sandbox keeps it. */
static bool boot_id_apply(const char *sandbox, struct err *e)
{
    static char before[64];
    static bool bound;
    char text[40];
    if (*sandbox && !strcmp(before, sandbox))
        return true;
    id_uuid(text);
    strcat(text, "\n");
    int fd = open(BOOT_ID_FILE, O_WRONLY | O_CREAT | O_CLOEXEC, 0444);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    if (!ok || (!bound && mount(BOOT_ID_FILE, BOOT_ID_KERNEL, NULL, MS_BIND, NULL) < 0))
        return err_sys(e, ERR_INTERNAL, "giving the sandbox a boot id of its own"), false;
    bound = true;
    snprintf(before, sizeof(before), "%s", sandbox);
    return true;
}

/* What a clone needs anyway is done before the snapshot: its network, which is the same in every guest, and
 * blocks and cached pages of the files that get a name in it. */
void identity_prepare(void)
{
    char name[80] = "", id[36];
    uint8_t machine[16];
    struct err e = {0};
    struct stat st;
    if (net_configure(NET_ADDRESS, NET_GATEWAY, NET_MTU, &e) < 0 && e.code != ERR_UNSUPPORTED)
        log_fail(&e, "the network");
    if (mounts_read_only() || access("/etc", F_OK) < 0)
        return;
    _cleanup_close_ int fd = open("/etc/hostname", O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? 0 : read(fd, name, sizeof(name) - 1);
    name[n > 0 ? n : 0] = 0;
    name[strcspn(name, "\r\n")] = 0;
    if (!name_valid(name))
        strcpy(name, "sandbox");
    if (sethostname(name, strlen(name)) < 0)
        log_warn("the host name: %s", strerror(errno));
    strcat(name, "\n");
    if (file_publish("/etc/hostname", name) < 0)
        log_warn("/etc/hostname: %s", strerror(errno));
    name[strcspn(name, "\n")] = 0;
    if (hosts_add(name) < 0)
        log_warn("/etc/hosts: %s", strerror(errno));
    if (stat("/etc/machine-id", &st) == 0 && st.st_size >= 32)
        return;
    random_bytes(machine, sizeof(machine));
    hex_encode(machine, sizeof(machine), id);
    strcat(id, "\n");
    if (file_publish("/etc/machine-id", id) < 0)
        log_warn("/etc/machine-id: %s", strerror(errno));
}

static bool network_apply(const Cube__Init__V1__Network *net, struct err *e)
{
    char text[128];
    if (!net || !*net->address)
        return true; /* a sandbox without a network */
    if (net_configure(net->address, net->gateway, net->mtu, e) < 0)
        return false;
    if (!*net->dns || access("/etc", F_OK) < 0)
        return true;
    snprintf(text, sizeof(text), "nameserver %.64s\n", net->dns);
    if (file_publish("/etc/resolv.conf", text) < 0 && errno != EROFS)
        return err_sys(e, ERR_INTERNAL, "writing /etc/resolv.conf"), false;
    return true;
}

static bool envd_apply(const Cube__Init__V1__SetIdentity *req, struct err *e)
{
    struct buf b = {0};
    struct jsonw w = jsonw_start(&b);
    jsonw_obj(&w);
    jsonw_kstr(&w, "sandboxID", req->sandbox_id);
    jsonw_kstr(&w, "templateID", req->template_id);
    jsonw_kstr(&w, "accessToken", req->envd_token);
    jsonw_kstr(&w, "defaultUser", req->default_user);
    jsonw_kstr(&w, "defaultWorkdir", req->default_workdir);
    jsonw_kstr(&w, "lifecycleID", req->lifecycle_id);
    jsonw_kstr(&w, "caBundle", req->ca_bundle);
    if (req->replace_envs || req->n_envs) {
        jsonw_key(&w, "envVars");
        jsonw_obj(&w);
        for (size_t i = 0; i < req->n_envs; i++)
            jsonw_kstr(&w, req->envs[i]->key, req->envs[i]->value);
        jsonw_obj_end(&w);
    }
    jsonw_obj_end(&w);
    bool ok = !b.failed && link_init(b.data, b.len, e) == 0;
    if (b.failed)
        err_set(e, ERR_INTERNAL, "out of memory");
    if (b.data)
        explicit_bzero(b.data, b.len);
    buf_free(&b);
    return ok;
}

/* Programs that keep random state or addresses of their own watch this file. */
static bool generation_apply(uint64_t gen, struct err *e)
{
    char text[32];
    int n = snprintf(text, sizeof(text), "%llu\n", (unsigned long long)gen);
    int fd = open(GENERATION_FILE ".new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    bool ok = fd >= 0 && write(fd, text, (size_t)n) == n;
    if (fd >= 0)
        close(fd);
    if (!ok || rename(GENERATION_FILE ".new", GENERATION_FILE) < 0)
        return err_sys(e, ERR_INTERNAL, "writing " GENERATION_FILE), false;
    generation = gen;
    return true;
}

int identity_set(const Cube__Init__V1__SetIdentity *req, Cube__Init__V1__IdentitySet *out, struct err *e)
{
    int64_t start = clock_mono_us();
    out->clock_set = clock_apply(req->realtime_ns, e);
    out->random_reseeded = random_apply(req->random, e);
    out->identity_set = names_apply(req, e) && boot_id_apply(req->sandbox_id, e);
    out->network_set = network_apply(req->network, e);
    out->tokens_set = envd_apply(req, e);
    if (generation_apply(req->gen, e))
        out->generation_file = req->gen;
    bool ok = out->clock_set && out->random_reseeded && out->identity_set && out->network_set &&
              out->tokens_set && e->code == ERR_OK;
    if (ok && req->thaw) {
        ok = link_freeze(false, e) == 0 && cgroups_freeze(false, e) == 0;
        out->thawed = ok;
    }
    set = set || (ok && req->thaw); /* a rehearsal names nobody */
    out->took_us = clock_mono_us() - start;
    return ok ? 0 : -1;
}
