/* Owns the files of <state> that `cube up` makes; invariant: a secret is created with its final mode and
 * owner, never widened, and a file that exists is kept, so that a second run changes no key. */
#include "cli/bootstrap.h"
#include "cli/daemons.h"
#include "lib/base/buf.h"
#include "lib/base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

static int make_dir(struct err *e, uid_t owner, mode_t mode, const char *fmt, ...)
{
    char path[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(path, sizeof path, fmt, ap);
    va_end(ap);
    for (char *p = path + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        if (mkdir(path, 0755) < 0 && errno != EEXIST)
            return err_sys(e, ERR_INTERNAL, "making %s", path);
        *p = '/';
    }
    if (mkdir(path, mode) < 0 && errno != EEXIST)
        return err_sys(e, ERR_INTERNAL, "making %s", path);
    if (chown(path, owner, owner) < 0 || chmod(path, mode) < 0)
        return err_sys(e, ERR_INTERNAL, "giving %s to user %u", path, owner);
    return 0;
}

/* Whether the file holds just this text. */
static bool holds(const char *path, const char *text)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t n = strlen(text);
    _cleanup_free_ char *have = malloc(n + 1);
    return fd >= 0 && have && read(fd, have, n + 1) == (ssize_t)n && memcmp(have, text, n) == 0;
}

/* Writes a file with its final owner and mode under a temporary name, then gives it its name. An existing one
 * wins unless `replace`; one that would not change is not touched, for its time of change restarts who reads
 * it (cli/supervise.c). */
static int write_once(const char *path, const char *text, uid_t uid, gid_t gid, mode_t mode, bool replace,
                      struct err *e)
{
    if (replace ? holds(path, text) : access(path, F_OK) == 0)
        return 0;
    char tmp[600];
    snprintf(tmp, sizeof tmp, "%s.new", path);
    unlink(tmp);
    _cleanup_close_ int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    size_t n = strlen(text);
    if (fd < 0 || write(fd, text, n) != (ssize_t)n || fchown(fd, uid, gid) < 0 || fchmod(fd, mode) < 0 ||
        fsync(fd) < 0 || rename(tmp, path) < 0) {
        err_sys(e, ERR_INTERNAL, "writing %s", path);
        unlink(tmp);
        return -1;
    }
    return 0;
}

static void random_hex(char *out, size_t bytes)
{
    unsigned char raw[64];
    if (bytes > sizeof raw || getrandom(raw, bytes, 0) != (ssize_t)bytes)
        abort();
    for (size_t i = 0; i < bytes; i++)
        sprintf(out + 2 * i, "%02x", raw[i]);
}

/* Each key is read by the program that proves itself with it (owner) and by the one that checks it (group).
 */
static const struct {
    const char *file;
    const char *prefix;
    size_t bytes;
    uid_t owner, group;
    mode_t mode;
} secrets[] = {
    {"api.key", "", 32, UID_API, UID_MASTER, 0640},
    {"lifecycle.key", "", 32, UID_LIFECYCLE, UID_MASTER, 0640},
    {"proxy.key", "", 32, UID_PROXY, UID_LIFECYCLE, 0640},
    {"node.key", "", 32, UID_NODE, UID_MASTER, 0640},
    {"master.key", "", 32, UID_MASTER, UID_NODE, 0640},
    {"admin.key", "", 32, 0, UID_MASTER, 0640},
    {"admin_token", "", 32, 0, UID_API, 0640},
    {"seed", "", 32, UID_MASTER, UID_MASTER, 0600},
    {"api_key", "e2b_", 20, 0, 0, 0600},
    {"redis-master.pw", "", 32, UID_MASTER, UID_MASTER, 0600},
    {"redis-api.pw", "", 32, UID_API, UID_API, 0600},
    {"redis-lifecycle.pw", "", 32, UID_LIFECYCLE, UID_LIFECYCLE, 0600},
    {"redis-proxy.pw", "", 32, UID_PROXY, UID_PROXY, 0600},
};

static int make_secrets(const struct settings *s, struct err *e)
{
    for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++) {
        char path[300], text[160], hex[129];
        snprintf(path, sizeof path, "%s/keys/%s", s->state_dir, secrets[i].file);
        random_hex(hex, secrets[i].bytes);
        snprintf(text, sizeof text, "%s%s\n", secrets[i].prefix, hex);
        if (write_once(path, text, secrets[i].owner, secrets[i].group, secrets[i].mode, false, e) < 0)
            return -1;
    }
    return 0;
}

static int read_secret(const struct settings *s, const char *file, char *out, size_t cap, struct err *e)
{
    char path[300];
    snprintf(path, sizeof path, "%s/keys/%s", s->state_dir, file);
    _cleanup_fclose_ FILE *f = fopen(path, "re");
    if (!f || !fgets(out, (int)cap, f))
        return err_sys(e, ERR_INTERNAL, "reading %s", path);
    out[strcspn(out, "\r\n")] = '\0';
    return 0;
}

/* One ACL user per program (contracts/internal.md §3): masters write the cell, the others write only their
 * own keys. */
static const struct {
    const char *user;
    const char *rules;
} acl[] = {
    {"master", "~{c0}:* +@all -@admin -@dangerous +info"},
    {"api", "%R~{c0}:svc:* ~{c0}:rl:* +@read +@write +@connection +@scripting -@dangerous"},
    {"lifecycle",
     "%R~{c0}:dl:* %R~{c0}:sb:* %R~{c0}:svc:* %R~{c0}:ev %R~{c0}:act:* %R~{c0}:meta ~{c0}:claim:* "
     "~{c0}:svc:lifecycle ~{c0}:svc:lifecycle:* "
     "+@read +@write +@connection +@scripting +@blocking -@dangerous"},
    {"proxy", "%R~{c0}:rt:* %R~{c0}:ev %R~{c0}:svc:* %R~{c0}:meta ~{c0}:svc:proxy ~{c0}:svc:proxy:* "
              "+@read +@write +@connection +@scripting +@blocking -@dangerous"},
};

static int make_redis(const struct settings *s, struct err *e)
{
    char path[300], text[8192], pw[160], file[64];
    /* Nobody can be the default user, but Redis 7.0 replays its own log as that user: what it may not do is
     * lost by a restart. */
    size_t n = (size_t)snprintf(text, sizeof text, "user default off resetpass ~* &* +@all\n");
    for (size_t i = 0; i < sizeof acl / sizeof *acl; i++) {
        snprintf(file, sizeof file, "redis-%s.pw", acl[i].user);
        if (read_secret(s, file, pw, sizeof pw, e) < 0)
            return -1;
        n += (size_t)snprintf(text + n, sizeof text - n, "user %s on >%s resetchannels %s\n", acl[i].user, pw,
                              acl[i].rules);
    }
    snprintf(path, sizeof path, "%s/redis/users.acl", s->state_dir);
    if (write_once(path, text, UID_REDIS, UID_REDIS, 0600, true, e) < 0)
        return -1;
    snprintf(text, sizeof text,
             "# made by `cube up`\nport 0\nunixsocket %s/redis/redis.sock\nunixsocketperm 777\ndir "
             "%s/redis\naclfile %s\n"
             "appendonly yes\nappendfsync everysec\nsave \"\"\ndaemonize no\nmaxmemory-policy noeviction\n",
             s->run_dir, s->state_dir, path);
    snprintf(path, sizeof path, "%s/redis/redis.conf", s->state_dir);
    return write_once(path, text, UID_REDIS, UID_REDIS, 0600, true, e);
}

/* Another cluster on this host needs another service net: one of the /18s of the benchmark range, by its
 * ports. */
static void service_net(int port_base, char net[16], char dns[16])
{
    char prefix[16] = "169.254.64";
    if (port_base != 3000)
        snprintf(prefix, sizeof prefix, "198.%d.%d", 18 + port_base / 40 % 2, port_base / 10 % 4 * 64);
    snprintf(net, 16, "%s.0", prefix);
    snprintf(dns, 16, "%s.1", prefix);
}

static void section(struct buf *out, const char *name, int port, int admin, const char *state_dir, bool redis)
{
    buf_printf(out, "%s:\n", name);
    if (port)
        buf_printf(out, "  listen: 127.0.0.1:%d\n", port);
    if (admin)
        buf_printf(out, "  admin_listen: 127.0.0.1:%d\n", admin);
    if (redis)
        buf_printf(out, "  redis_user: %s\n  redis_password_file: %s/keys/redis-%s.pw\n", name, state_dir,
                   name);
}

static int make_config(const struct settings *s, struct err *e)
{
    char path[300], net[16], dns[16];
    const char *st = s->state_dir;
    int b = s->port_base;
    bool own = !s->redis[0];
    _cleanup_buf_ struct buf y = {0};
    service_net(b, net, dns);
    buf_printf(&y, "# made by `cube up`; every key can be overridden by CUBE_<SECTION>_<KEY>\n");
    buf_printf(&y, "common:\n  state_dir: %s\n  run_dir: %s\n", st, s->run_dir);
    if (own)
        buf_printf(&y, "  redis: unix:%s/redis/redis.sock\n", s->run_dir);
    else
        buf_printf(&y, "  redis: %s\n", s->redis);
    section(&y, "api", b, b + 100, st, own);
    buf_printf(&y, "  master: discover\n  admin_token_file: %s/keys/admin_token\n", st);
    section(&y, "master", b + 10, b + 110, st, own);
    buf_printf(&y, "  journal: %s/master/catalog.journal\n", st);
    section(&y, "lifecycle", b + 30, b + 130, st, own);
    buf_printf(&y, "  master: 127.0.0.1:%d\n", b + 10);
    section(&y, "proxy", b + 20, b + 120, st, own);
    buf_printf(&y, "  tls_listen: 127.0.0.1:%d\n  api: 127.0.0.1:%d\n  lifecycle: 127.0.0.1:%d\n", b + 21, b,
               b + 30);
    section(&y, "node", b + 40, b + 140, st, false);
    buf_printf(&y, "  master: 127.0.0.1:%d\n  relay_address: 127.0.0.1:%d\n  service_net: %s\n", b + 10,
               b + 41, net);
    section(&y, "relay", b + 41, b + 141, st, false);
    section(&y, "jailer", 0, 0, st, false);
    buf_printf(&y, "  dns_ip: %s\n", dns);
    if (b != 3000)
        buf_printf(&y, "  cgroup: cube-%d\n", b);
    section(&y, "dns", 0, b + 144, st, false);
    buf_printf(&y, "  slot_net: %s\n", net);
    snprintf(path, sizeof path, "%s/cube.yaml", st);
    return write_once(path, buf_cstr(&y), 0, 0, 0644, true, e);
}

/* The daemons run as users of their own, so every directory on the way must let others pass. */
static int check_passable(const char *path, struct err *e)
{
    char part[256];
    struct stat st;
    for (size_t n = 1; path[n]; n++) {
        if (path[n] != '/')
            continue;
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        if (stat(part, &st) == 0 && !(st.st_mode & S_IXOTH)) {
            err_set(e, ERR_INVALID, "%s is closed to other users, and the daemons are others", part);
            return err_remedy(e, "chmod o+x %s, or choose another directory", part);
        }
    }
    return 0;
}

int bootstrap(const struct settings *s, struct err *e)
{
    const char *st = s->state_dir, *run = s->run_dir;
    if (check_passable(st, e) < 0 || check_passable(run, e) < 0)
        return -1;
    if (make_dir(e, 0, 0755, "%s", st) < 0 || make_dir(e, 0, 0755, "%s/keys", st) < 0 ||
        make_dir(e, 0, 0755, "%s/log", st) < 0 || make_dir(e, 0, 0755, "%s/bin", st) < 0 ||
        make_dir(e, UID_NODE, 0755, "%s/store", st) < 0 ||
        make_dir(e, UID_NODE, 0700, "%s/sandboxes", st) < 0 ||
        make_dir(e, UID_REDIS, 0700, "%s/redis", st) < 0 ||
        make_dir(e, UID_MASTER, 0700, "%s/master", st) < 0 || make_dir(e, 0, 0755, "%s", run) < 0 ||
        make_dir(e, 0, 0755, "%s/pid", run) < 0 || make_dir(e, UID_REDIS, 0755, "%s/redis", run) < 0 ||
        make_dir(e, UID_NODE, 0711, "%s/warm", run) < 0 || make_dir(e, UID_NODE, 0755, "%s/sb", run) < 0 ||
        make_dir(e, UID_RELAY, 0751, "%s/relay", run) < 0 || make_dir(e, UID_DNS, 0750, "%s/dns", run) < 0 ||
        make_dir(e, UID_PROXY, 0750, "%s/proxy", run) < 0 || make_dir(e, UID_PROXY, 0755, "%s/tls", st) < 0)
        return -1;
    if (make_secrets(s, e) < 0 || make_redis(s, e) < 0)
        return -1;
    return make_config(s, e);
}
