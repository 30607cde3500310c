/* cube-jailer: reads its options, makes its directories and groups, adopts what an earlier one left, serves.
 */
#include "node/jailer/jailer.h"

#include "lib/base/crash.h"
#include "lib/base/log.h"
#include "lib/net/config.h"

#include <getopt.h>
#include <libgen.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define AT(member) offsetof(struct options, member)

static const struct config_key keys[] = {
    {"run_dir", CONFIG_STR, AT(run_dir), NULL, 0, 0, "sockets and records"},
    {"log_level", CONFIG_STR, AT(log_level), NULL, 0, 0, "debug, info, warn or error"},
    {"socket", CONFIG_STR, AT(socket), "${run_dir}/jailer.sock", 0, 0, "where cube-node asks"},
    {"vmm", CONFIG_STR, AT(vmm), "", 0, 0, "path of cube-vmm; empty: beside this program"},
    {"cgroup", CONFIG_STR, AT(cgroup), "cube", 0, 0,
     "name of the group that holds all VMs, below our own group"},
    {"node_uid", CONFIG_INT, AT(node_uid), "59002", 0, 4000000000, "user that may ask"},
    {"node_gid", CONFIG_INT, AT(node_gid), "59002", 0, 4000000000, "its group"},
    {"vm_uid_base", CONFIG_INT, AT(vm_uid_base), "59100", 1, 4000000000,
     "VM n runs as user and group vm_uid_base + n"},
    {"dns_ip", CONFIG_STR, AT(dns_ip), "169.254.64.1", 0, 0,
     "where the sandboxes' name service listens, port 53"},
    {0}};

static void usage(void)
{
    fputs(
        "cube-jailer - starts, holds and reaps the VM processes of a node\n"
        "\n"
        "SYNOPSIS\n"
        "  cube-jailer [--config FILE] [--sweep]\n"
        "\n"
        "Runs as root. Serves cube-node on a Unix socket. SIGTERM ends it and leaves the VMs; the next one "
        "adopts them.\n"
        "\n"
        "OPTIONS\n"
        "  --config FILE   cube.yaml\n"
        "  --sweep         end all VMs and remove everything that this or an earlier jailer made, then exit\n"
        "  --help, --version\n"
        "\n",
        stdout);
    config_usage("jailer", keys);
}

/* cube-vmm lies in the same directory, or in the build tree's node/vmm. */
static int find_vmm(struct options *o, struct err *e)
{
    char self[PATH_MAX], path[PATH_MAX + 32];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    if (o->vmm[0])
        return 0;
    self[n > 0 ? n : 0] = 0;
    const char *dir = dirname(self);
    snprintf(path, sizeof path, "%s/cube-vmm", dir);
    if (access(path, X_OK) < 0)
        snprintf(path, sizeof path, "%s/../vmm/cube-vmm", dir);
    if (access(path, X_OK) < 0)
        return err_set(e, ERR_INVALID, "cube-vmm is not beside this program; set jailer.vmm");
    o->vmm = strdup(path);
    return o->vmm ? 0 : err_set(e, ERR_INTERNAL, "out of memory");
}

static int directories(const struct options *o, struct err *e)
{
    static const char *const dirs[] = {"", "/vmm", "/jailer", "/jailer/vm", "/jailer/tap", "/jailer/empty"};

    if (strlen(o->run_dir) > 60) /* so that every socket path below it fits 108 bytes */
        return err_set(e, ERR_INVALID, "run_dir %s is longer than 60 bytes", o->run_dir);
    for (unsigned i = 0; i < sizeof dirs / sizeof dirs[0]; i++) {
        char path[256];
        struct stat st;
        snprintf(path, sizeof path, "%s%s", o->run_dir, dirs[i]);
        if (i == 0 && stat(path, &st) == 0)
            continue; /* made by whoever starts the node, with rights for the other programs */
        if (dir_make(path, 0755, 0, 0, e) < 0)
            return -1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static const struct option longopts[] = {{"config", 1, NULL, 'c'},
                                             {"sweep", 0, NULL, 's'},
                                             {"help", 0, NULL, 'h'},
                                             {"version", 0, NULL, 'V'},
                                             {0}};
    const char *config = NULL;
    enum log_level level = LOG_INFO;
    bool only_sweep = false;
    struct options o = {0};
    struct err e = {0};
    int c;

    while ((c = getopt_long(argc, argv, "", longopts, NULL)) >= 0) {
        if (c == 'h') {
            usage();
            return 0;
        }
        if (c == 'V') {
            puts("cube-jailer " CUBE_VERSION);
            return 0;
        }
        if (c == 'c')
            config = optarg;
        else if (c == 's')
            only_sweep = true;
        else
            return 2;
    }
    log_init("cube-jailer", level);
    crash_init("cube-jailer");
    int rc = config_load(config, "jailer", keys, &o, &e);
    if (rc == 0 && log_level_parse(o.log_level, &level))
        log_init("cube-jailer", level);
    if (rc == 0)
        rc = find_vmm(&o, &e) < 0 || directories(&o, &e) < 0 || cgroup_setup(o.cgroup, &e) < 0 ? -1 : 0;
    if (rc == 0 && !only_sweep && host_bpf_mount(&o, &e) < 0)
        log_line(LOG_WARN, &(struct log_about){.err = &e}, "sandboxes will have no network");
    if (rc == 0 && only_sweep)
        rc = sweep(&o, &e);
    else if (rc == 0)
        rc = vm_adopt_all(&o, &e) < 0 ? -1 : serve(&o, &e);
    if (rc < 0)
        log_line(LOG_ERROR, &(struct log_about){.err = &e}, "%s", e.msg);
    return rc < 0;
}
