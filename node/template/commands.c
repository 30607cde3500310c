/* Owns the command lines of cube-node's subcommands. Invariant: they write to the store as the user who owns
 * it, so the daemon can read what root imported. */
#include "node/template/commands.h"

#include "lib/base/cleanup.h"
#include "lib/base/jsonw.h"
#include "lib/base/log.h"
#include "node/daemon/node.h"
#include "node/template/import.h"
#include "node/template/image.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/fsuid.h>

static int fail(const struct err *e)
{
    fprintf(stderr, "cube-node: %s%s%s\n", e->msg, *e->remedy ? "; " : "", e->remedy);
    return e->code == ERR_INVALID ? 2 : e->code == ERR_STORAGE_FULL ? 3 : 1;
}

/* Root writes to the store as its owner; reads as root (only the file-system user changes). */
static void act_as_owner(const struct store *s)
{
    struct stat st;
    if (geteuid() == 0 && fstat(s->fd, &st) == 0 && st.st_uid != 0) {
        setfsgid(st.st_gid);
        setfsuid(st.st_uid);
    }
}

static int open_store(const char *config, const char *dir, struct store *s, struct err *e)
{
    static struct node_config cfg;
    if (node_config_load(config, &cfg, e) < 0 || store_open(dir ? dir : cfg.store_dir, s, e) < 0)
        return -1;
    return 0;
}

static bool number(const char *text, uint32_t min, uint32_t max, uint32_t *out)
{
    char *end;
    unsigned long v = strtoul(text, &end, 10);
    if (*end || end == text || v < min || v > max)
        return false;
    *out = (uint32_t)v;
    return true;
}

static void print_json(const struct import *in, const char *id)
{
    _cleanup_buf_ struct buf b = {0};
    struct jsonw w = jsonw_start(&b);
    jsonw_obj(&w);
    jsonw_kstr(&w, "templateID", id);
    jsonw_kstr(&w, "name", in->name);
    jsonw_kint(&w, "cpuCount", in->vcpus);
    jsonw_kint(&w, "memoryMB", in->memory_mib);
    jsonw_kint(&w, "diskSizeMB", in->disk_mib);
    jsonw_kstr(&w, "defaultUser", in->default_user);
    jsonw_kstr(&w, "defaultWorkdir", in->default_workdir);
    jsonw_obj_end(&w);
    printf("%s\n", buf_cstr(&b));
}

static int template_import(int argc, char **argv)
{
    static const struct option options[] = {{"config", required_argument, NULL, 'c'},
                                            {"store", required_argument, NULL, 's'},
                                            {"root", required_argument, NULL, 'r'},
                                            {"kernel", required_argument, NULL, 'k'},
                                            {"tools", required_argument, NULL, 't'},
                                            {"name", required_argument, NULL, 'n'},
                                            {"vcpus", required_argument, NULL, 'v'},
                                            {"memory", required_argument, NULL, 'm'},
                                            {"disk", required_argument, NULL, 'd'},
                                            {"user", required_argument, NULL, 'u'},
                                            {"workdir", required_argument, NULL, 'w'},
                                            {"json", no_argument, NULL, 'j'},
                                            {0}};
    struct import in = {
        .vcpus = 1, .memory_mib = 512, .default_user = "user", .default_workdir = "/home/user"};
    const char *config = NULL, *dir = NULL;
    bool json = false, ok = true;
    for (int o; ok && (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (o) {
        case 'c':
            config = optarg;
            break;
        case 's':
            dir = optarg;
            break;
        case 'r':
            in.root = optarg;
            break;
        case 'k':
            in.kernel = optarg;
            break;
        case 't':
            in.tools = optarg;
            break;
        case 'n':
            in.name = optarg;
            break;
        case 'u':
            in.default_user = optarg;
            break;
        case 'w':
            in.default_workdir = optarg;
            break;
        case 'j':
            json = true;
            break;
        case 'v':
            ok = number(optarg, 1, 64, &in.vcpus);
            break;
        case 'm':
            ok = number(optarg, 64, 1 << 20, &in.memory_mib);
            break;
        case 'd':
            ok = number(optarg, 16, 16 << 20, &in.disk_mib);
            break;
        default:
            ok = false;
        }
    }
    if (!ok || !in.root || !in.kernel || !in.tools || !in.name || optind < argc || strlen(in.name) > 63 ||
        strlen(in.default_user) > 32 || strlen(in.default_workdir) > 255) {
        fprintf(stderr, "usage: cube-node template import --root FILE --kernel FILE --tools FILE --name NAME "
                        "[--vcpus 1] [--memory 512 (MiB)]\n"
                        "       [--disk MiB] [--user user] [--workdir /home/user] [--config FILE | --store "
                        "DIR] [--json]\n");
        return 2;
    }
    struct store s;
    struct err e = {0};
    char id[TEMPLATE_ID_LEN + 1];
    if (open_store(config, dir, &s, &e) < 0)
        return fail(&e);
    act_as_owner(&s);
    int rc = import_run(&s, &in, id, &e);
    store_close(&s);
    if (rc < 0)
        return fail(&e);
    if (json)
        print_json(&in, id);
    else
        printf("%s\n", id);
    return 0;
}

static int template_list(int argc, char **argv, bool remove)
{
    static const struct option options[] = {
        {"config", required_argument, NULL, 'c'}, {"store", required_argument, NULL, 's'}, {0}};
    const char *config = NULL, *dir = NULL;
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (o != 'c' && o != 's')
            return 2;
        *(o == 'c' ? &config : &dir) = optarg;
    }
    struct store s;
    struct err e = {0};
    if (open_store(config, dir, &s, &e) < 0)
        return fail(&e);
    act_as_owner(&s);
    if (remove) {
        char artifact[64];
        if (optind != argc - 1 || strlen(argv[optind]) > 47 || strchr(argv[optind], '/')) {
            fprintf(stderr, "usage: cube-node template rm ID\n");
            return 2;
        }
        snprintf(artifact, sizeof artifact, "tpl/%s", argv[optind]);
        return store_remove(&s, artifact, &e) < 0 ? fail(&e) : 0;
    }
    char **names;
    size_t n;
    if (store_list(&s, "tpl", &names, &n, &e) < 0)
        return fail(&e);
    for (size_t i = 0; i < n; i++) {
        char path[300];
        _cleanup_free_ char *text = NULL;
        size_t len;
        struct manifest m;
        snprintf(path, sizeof path, "tpl/%s/manifest.json", names[i]);
        if (file_read(s.fd, path, MANIFEST_MAX_BYTES, &text, &len, &e) < 0 ||
            manifest_parse(text, len, names[i], &m, &e) < 0)
            printf("%s\tdamaged: %s\n", names[i], e.msg);
        else
            printf("%s\t%s\t%u vCPU\t%u MiB\t%u MiB disk\n", m.id, m.name, m.vcpus, m.memory_mib, m.disk_mib);
    }
    store_names_free(names, n);
    return 0;
}

int commands_run(int argc, char **argv)
{
    log_init("node", LOG_INFO);
    if (argc >= 2 && strcmp(argv[0], "template") == 0) {
        if (strcmp(argv[1], "import") == 0)
            return template_import(argc - 1, argv + 1);
        if (strcmp(argv[1], "ls") == 0 || strcmp(argv[1], "rm") == 0)
            return template_list(argc - 1, argv + 1, argv[1][0] == 'r');
    }
    fprintf(stderr, "cube-node: unknown command '%s'; see --help\n", argv[0]);
    return 2;
}
