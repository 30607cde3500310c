/* `cube vm run`: cube-vmm without node, jail or network; the guest's console is this terminal's output. */
#include "node/vmmctl/run.h"

#include "lib/base/cleanup.h"
#include "node/vmmctl/client.h"

#include <fcntl.h>
#include <getopt.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static const char usage[] =
    "cube vm run - boots a virtual machine for development, outside the platform\n"
    "\n"
    "SYNOPSIS\n"
    "  cube vm run --kernel VMLINUX --root IMAGE [--tools IMAGE] [OPTIONS]\n"
    "\n"
    "The guest's console goes to standard output. The root image is not changed: writes go to a layer file, "
    "or are\n"
    "forgotten. The command ends when the guest resets or powers off.\n"
    "\n"
    "OPTIONS\n"
    "  --kernel FILE     vmlinux of the kind this host needs (guest/kernel)\n"
    "  --root FILE       disk image for /dev/vda\n"
    "  --layer FILE      keep what the guest writes to /dev/vda here (default: a temporary file)\n"
    "  --tools FILE      read-only disk image for /dev/vdb\n"
    "  --cmdline TEXT    kernel command line (default: \"root=/dev/vdb rootfstype=erofs ro init=/cube-init\" "
    "with --tools,\n"
    "                    else \"root=/dev/vda rw\")\n"
    "  --memory-mib N    guest memory (default 512)\n"
    "  --vcpus N         virtual CPUs (default 1)\n"
    "  --disk-mib N      size of /dev/vda when larger than the image\n"
    "  --ctl PATH        Unix socket to the guest's infrastructure plane (vsock port 1)\n"
    "  --in PATH         Unix socket into the guest's ports: 2 bytes of port, then 1 status byte, then raw "
    "bytes\n"
    "  --vmm FILE        cube-vmm (default: beside this program)\n"
    "  --no-seccomp      no system call filters\n";

struct options {
    const char *kernel, *root, *layer, *tools, *cmdline, *ctl, *in, *vmm;
    unsigned long memory_mib, vcpus, disk_mib;
    bool no_seccomp;
};

static int parse(int argc, char **argv, struct options *o)
{
    static const struct option longopts[] = {{"kernel", 1, NULL, 'k'},  {"root", 1, NULL, 'r'},
                                             {"layer", 1, NULL, 'l'},   {"tools", 1, NULL, 't'},
                                             {"cmdline", 1, NULL, 'c'}, {"memory-mib", 1, NULL, 'm'},
                                             {"vcpus", 1, NULL, 'v'},   {"disk-mib", 1, NULL, 'd'},
                                             {"ctl", 1, NULL, 'C'},     {"in", 1, NULL, 'I'},
                                             {"vmm", 1, NULL, 'V'},     {"no-seccomp", 0, NULL, 's'},
                                             {"help", 0, NULL, 'h'},    {0}};
    int c;

    optind = 0;
    while ((c = getopt_long(argc, argv, "", longopts, NULL)) >= 0) {
        switch (c) {
        case 'k':
            o->kernel = optarg;
            break;
        case 'r':
            o->root = optarg;
            break;
        case 'l':
            o->layer = optarg;
            break;
        case 't':
            o->tools = optarg;
            break;
        case 'c':
            o->cmdline = optarg;
            break;
        case 'm':
            o->memory_mib = strtoul(optarg, NULL, 10);
            break;
        case 'v':
            o->vcpus = strtoul(optarg, NULL, 10);
            break;
        case 'd':
            o->disk_mib = strtoul(optarg, NULL, 10);
            break;
        case 'C':
            o->ctl = optarg;
            break;
        case 'I':
            o->in = optarg;
            break;
        case 'V':
            o->vmm = optarg;
            break;
        case 's':
            o->no_seccomp = true;
            break;
        case 'h':
            fputs(usage, stdout);
            return 1;
        default:
            return -1;
        }
    }
    if (!o->kernel || !o->root || optind < argc) {
        fputs("cube vm run: --kernel and --root are needed (see --help)\n", stderr);
        return -1;
    }
    return 0;
}

/* cube-vmm lies beside `cube`, or in the build tree's node/vmm. */
static const char *vmm_path(char buf[PATH_MAX])
{
    static const char *const places[] = {"%s/cube-vmm", "%s/../vmm/cube-vmm", "%s/../node/vmm/cube-vmm"};
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    if (n <= 0)
        return "cube-vmm";
    self[n] = 0;
    char *dir = dirname(self);
    for (unsigned i = 0; i < sizeof places / sizeof places[0]; i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        if (snprintf(buf, PATH_MAX, places[i], dir) < PATH_MAX && access(buf, X_OK) == 0)
            return buf;
#pragma GCC diagnostic pop
    }
    return "cube-vmm";
}

static int boot(struct vmm_client *c, const struct options *o, struct err *e)
{
    char temp[] = "/tmp/cube-vm-layer-XXXXXX";
    struct vmm_disk_spec d[2] = {{o->root, o->layer, (uint64_t)o->disk_mib << 20}, {o->tools, NULL, 0}};
    Cube__Vmm__V1__Request q = CUBE__VMM__V1__REQUEST__INIT;
    Cube__Vmm__V1__Boot b = CUBE__VMM__V1__BOOT__INIT;
    struct vmm_wiring w;

    if (!o->layer) {
        int fd = mkstemp(temp);
        if (fd < 0)
            return err_sys(e, ERR_INTERNAL, "make %s", temp);
        close(fd);
        d[0].layer = temp;
    }
    int rc = vmm_wiring_open(&w, d, o->tools ? 2 : 1, -1, STDOUT_FILENO, o->ctl, o->in,
                             (unsigned)o->memory_mib, (unsigned)o->vcpus, e);
    if (!o->layer)
        unlink(temp);
    if (rc < 0)
        return -1;
    int kernel = open(o->kernel, O_RDONLY | O_CLOEXEC);
    if (kernel < 0) {
        vmm_wiring_close(&w);
        return err_sys(e, ERR_NOT_FOUND, "open %s", o->kernel);
    }
    b.kernel_fd = vmm_wiring_add(&w, kernel);
    b.wiring = &w.msg;
    b.cmdline = (char *)(o->cmdline ? o->cmdline
                         : o->tools ? "root=/dev/vdb rootfstype=erofs ro init=/cube-init"
                                    : "root=/dev/vda rw");
    q.op_case = CUBE__VMM__V1__REQUEST__OP_BOOT;
    q.boot = &b;
    rc = vmm_call(c, &q, w.fds, w.nfds, NULL, e);
    vmm_wiring_close(&w);
    return rc;
}

int vm_run_command(int argc, char **argv)
{
    struct options o = {.memory_mib = 512, .vcpus = 1};
    struct vmm_client c = {.sock = -1};
    char path[PATH_MAX];
    struct err e = {0};

    int rc = parse(argc, argv, &o);
    if (rc)
        return rc < 0 ? 2 : 0;
    struct vmm_spawn s = {o.vmm ? o.vmm : vmm_path(path), (unsigned)o.memory_mib, (unsigned)o.vcpus,
                          !o.no_seccomp};
    if (vmm_spawn(&c, &s, &e) < 0 || boot(&c, &o, &e) < 0) {
        fprintf(stderr, "cube vm run: %s\n", e.msg);
        vmm_close(&c);
        return 1;
    }
    vmm_wait_exit(&c, -1);
    if (c.exit)
        fprintf(stderr, "guest ended: %s (%s)\n", c.exit->exit->reason, c.exit->exit->detail);
    int status = vmm_close(&c);
    return status == 10 ? 0 : 1;
}
