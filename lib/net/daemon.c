/* Owns the life of a daemon's process; invariant: after SIGTERM it ends within the drain time, whatever its
 * parts do. */
#include "lib/net/daemon.h"

#include "lib/base/crash.h"
#include "lib/base/log.h"

#include <errno.h>
#include <getopt.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define DRAIN_MS 10000
#define MOST_DESCRIPTORS (1u << 20)
#define MOST_GROUPS 16

static const struct daemon_spec *running;
static struct loop *loop;
static bool draining, cut;
static struct loop_timer drain_timer;

struct identity {
    bool given;
    uid_t uid;
    gid_t gid, groups[MOST_GROUPS];
    size_t group_count;
};

struct options {
    const char *config;
    struct identity user;
};

static void usage(const struct daemon_spec *s)
{
    printf("NAME\n    %s - %s\n\nSYNOPSIS\n    %s [--config FILE] [--user UID[:GID[,GID...]]]\n\n", s->name,
           s->summary, s->name);
    if (s->description)
        printf("DESCRIPTION\n    %s\n\n", s->description);
    printf("OPTIONS\n"
           "    --config FILE   configuration (YAML); without it only defaults and the environment\n"
           "    --user UID...   numeric user, group and further groups to run as\n"
           "    --version       print the version\n"
           "    --help          this text\n\n"
           "CONFIGURATION\n    Keys of section `%s`; those that it does not set are looked up in section "
           "`common`.\n\n",
           s->section);
    config_usage(s->section, s->keys);
    printf("    %s.log_level\n        debug, info, warn or error\n        default: info\n", s->section);
    printf("\nSIGNALS\n    SIGTERM, SIGINT: finish what is open and end; a second one ends at once.\n");
}

static bool parse_id(const char **at, unsigned *out)
{
    char *end;
    errno = 0;
    unsigned long v = strtoul(*at, &end, 10);
    if (end == *at || errno || **at < '0' || **at > '9' || v >= UINT32_MAX)
        return false;
    *at = end;
    *out = (unsigned)v;
    return true;
}

static bool parse_identity(const char *text, struct identity *out)
{
    unsigned id;
    if (!parse_id(&text, &id))
        return false;
    *out = (struct identity){.given = true, .uid = id, .gid = id};
    if (*text == '\0')
        return true;
    if (*text++ != ':' || !parse_id(&text, &id))
        return false;
    out->gid = id;
    while (*text == ',' && out->group_count < MOST_GROUPS) {
        text++;
        if (!parse_id(&text, &id))
            return false;
        out->groups[out->group_count++] = id;
    }
    return *text == '\0';
}

/* 0: go on; otherwise the process ends with status - 1. */
static int parse_options(const struct daemon_spec *s, int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {{"config", required_argument, NULL, 'c'},
                                          {"user", required_argument, NULL, 'u'},
                                          {"version", no_argument, NULL, 'v'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    int c;
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (c) {
        case 'c':
            o->config = optarg;
            break;
        case 'u':
            if (!parse_identity(optarg, &o->user)) {
                fprintf(stderr, "%s: --user wants UID[:GID[,GID...]] in numbers, not \"%s\"\n", s->name,
                        optarg);
                return 3;
            }
            break;
        case 'v':
            printf("%s %s\n", s->name, CUBE_VERSION);
            return 1;
        case 'h':
            usage(s);
            return 1;
        default:
            fprintf(stderr, "%s: see %s --help\n", s->name, s->name);
            return 3;
        }
    }
    if (optind == argc)
        return 0;
    fprintf(stderr, "%s: unexpected argument \"%s\"\n", s->name, argv[optind]);
    return 3;
}

void daemon_raise_descriptors(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) < 0)
        return;
    r.rlim_cur = r.rlim_max > MOST_DESCRIPTORS ? MOST_DESCRIPTORS : r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
}

static int drop_to(const struct identity *id, struct err *e)
{
    if (!id->given || (geteuid() == id->uid && getegid() == id->gid && id->group_count == 0))
        return 0;
    if (setgroups(id->group_count, id->groups) < 0 || setresgid(id->gid, id->gid, id->gid) < 0 ||
        setresuid(id->uid, id->uid, id->uid) < 0)
        return err_sys(e, ERR_INTERNAL, "becoming user %u, group %u", id->uid, id->gid);
    return 0;
}

void daemon_notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof a.sun_path)
        return;
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    memcpy(a.sun_path, path, strlen(path));
    if (a.sun_path[0] == '@')
        a.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&a, len) < 0)
        log_warn("telling the service manager \"%s\": %m", state);
    close(fd);
}

void daemon_done(void)
{
    loop_stop(loop);
}

static void on_drain_over(struct loop_timer *t)
{
    log_warn("draining took too long; ending now");
    cut = true;
    loop_stop(loop);
}

static void on_end_signal(int signo, void *data)
{
    if (draining || !running->drain) {
        cut = draining;
        loop_stop(loop);
        return;
    }
    draining = true;
    log_info("%s: finishing what is open", signo == SIGTERM ? "SIGTERM" : "SIGINT");
    daemon_notify("STOPPING=1");
    drain_timer.fire = on_drain_over;
    loop_timer_start(loop, &drain_timer, running->drain_ms > 0 ? running->drain_ms : DRAIN_MS);
    running->drain();
}

static int report(const struct daemon_spec *s, const struct err *e, int status)
{
    log_fail(e, "%s does not start%s%s", s->name, e->remedy[0] ? "; " : "", e->remedy);
    return status;
}

static int load(const struct daemon_spec *s, const char *path, struct err *e)
{
    struct {
        char *level;
    } log = {0};
    static const struct config_key log_keys[] = {
        {"log_level", CONFIG_STR, 0, "info", 0, 0, "least level to write"}, {0}};
    if (config_load(path, s->section, s->keys, s->config, e) < 0 ||
        config_load(path, s->section, log_keys, &log, e) < 0)
        return -1;
    enum log_level level;
    if (!log_level_parse(log.level, &level))
        return err_set(e, ERR_INVALID, "%s.log_level must be debug, info, warn or error, not \"%.40s\"",
                       s->section, log.level);
    log_init(s->name, level);
    return 0;
}

int daemon_main(const struct daemon_spec *spec, int argc, char **argv)
{
    struct options o = {0};
    struct err e = {0};
    int status = parse_options(spec, argc, argv, &o);
    if (status != 0)
        return status - 1;
    log_init(spec->name, LOG_INFO);
    crash_init(spec->name);
    if (load(spec, o.config, &e) < 0)
        return report(spec, &e, 2);
    daemon_raise_descriptors();
    running = spec;
    loop = loop_new();
    if (!loop || loop_on_signal(loop, SIGTERM, on_end_signal, NULL, &e) < 0 ||
        loop_on_signal(loop, SIGINT, on_end_signal, NULL, &e) < 0)
        return report(spec, &e, 1);
    if (spec->start(loop, &e) < 0 || drop_to(&o.user, &e) < 0)
        return report(spec, &e, 1);
    log_info("%s %s: ready", spec->name, CUBE_VERSION);
    daemon_notify("READY=1");
    loop_run(loop);
    if (cut) {
        if (spec->cut)
            spec->cut();
        /* Other threads may be at work, with OpenSSL too, which exit() would take from them. */
        log_info("ended");
        _exit(0);
    }
    loop_timer_stop(loop, &drain_timer);
    if (spec->stop)
        spec->stop();
    loop_free(loop);
    log_info("ended");
    return 0;
}
