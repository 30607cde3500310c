/* `cube vm run --image FILE -- COMMAND`: boots one VM outside the platform, gives it an identity as a node
 * would, runs the command through envd, prints its output and what each step took. Without a command it is
 * the plain boot of node/vmmctl. */
#include "cli/commands.h"
#include "cli/daemons.h"
#include "cli/envd.h"
#include "cli/guest_ctl.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "node/vmmctl/client.h"
#include "node/vmmctl/run.h"

#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define BOOT_MS 60000

struct vm_options {
    const char *image, *kernel, *tools, *user, *console;
    unsigned memory_mib, vcpus;
    char **command;
};

struct vm_run {
    struct vmm_client vmm;
    struct vmm_wiring wiring;
    pid_t forwarder; /* 0 = none */
};

static int usage(int status)
{
    printf("NAME\n    cube vm run - boot one virtual machine and run a command in it, for "
           "developers\n\nSYNOPSIS\n"
           "    cube vm run --image FILE [OPTION]... -- COMMAND [ARGUMENT]...\n    cube vm run --root FILE "
           "...   plain boot with the "
           "console on standard output (`cube vm run --root x --help`)\n\nOPTIONS\n"
           "    --image FILE      root file system; not changed\n"
           "    --kernel FILE     vmlinux ($CUBE_GUEST_KERNEL)\n    --tools FILE      the guest's programs "
           "($CUBE_GUEST_TOOLS)\n"
           "    --user USER       who runs the command (root)\n    --console FILE    keep the serial log "
           "here (forgotten)\n"
           "    --memory-mib N    512\n    --vcpus N         1\n\n"
           "Ends with the command's exit status; times go to standard error.\n");
    return status;
}

static int parse(int argc, char **argv, struct vm_options *o)
{
    static const struct option longopts[] = {
        {"image", 1, NULL, 'i'}, {"kernel", 1, NULL, 'k'},  {"tools", 1, NULL, 't'},
        {"user", 1, NULL, 'u'},  {"console", 1, NULL, 'c'}, {"memory-mib", 1, NULL, 'm'},
        {"vcpus", 1, NULL, 'v'}, {"help", 0, NULL, 'h'},    {0}};
    for (int c; (c = getopt_long(argc, argv, "+", longopts, NULL)) >= 0;) {
        switch (c) {
        case 'i':
            o->image = optarg;
            break;
        case 'k':
            o->kernel = optarg;
            break;
        case 't':
            o->tools = optarg;
            break;
        case 'u':
            o->user = optarg;
            break;
        case 'c':
            o->console = optarg;
            break;
        case 'm':
            o->memory_mib = (unsigned)atoi(optarg);
            break;
        case 'v':
            o->vcpus = (unsigned)atoi(optarg);
            break;
        default:
            return usage(c == 'h' ? 0 : 2) ? 2 : 1;
        }
    }
    o->command = argv + optind;
    if (o->image && o->kernel && o->tools && o->command[0] && o->memory_mib >= 64 && o->vcpus >= 1)
        return 0;
    fprintf(stderr, "cube vm run: --image, --kernel, --tools and a command are needed\n");
    return usage(2);
}

static int boot(struct vm_run *r, const struct vm_options *o, const char *layer, struct err *e)
{
    char program[512];
    struct vmm_disk_spec disks[2] = {{o->image, layer, 0}, {o->tools, NULL, 0}};
    _cleanup_close_ int console = open(o->console, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (console < 0)
        return err_sys(e, ERR_INTERNAL, "opening %s", o->console);
    snprintf(program, sizeof program, "%s/node/vmm/cube-vmm", daemon_build_dir());
    struct vmm_spawn s = {program, o->memory_mib, o->vcpus, true};
    if (vmm_spawn(&r->vmm, &s, e) < 0 ||
        vmm_wiring_open(&r->wiring, disks, 2, -1, console, NULL, NULL, o->memory_mib, o->vcpus, e) < 0)
        return -1;
    Cube__Vmm__V1__Boot b = CUBE__VMM__V1__BOOT__INIT;
    Cube__Vmm__V1__Request q = CUBE__VMM__V1__REQUEST__INIT;
    Cube__Vmm__V1__Reply *reply = NULL;
    int kernel = open(o->kernel, O_RDONLY | O_CLOEXEC);
    if (kernel < 0)
        return err_sys(e, ERR_NOT_FOUND, "opening %s", o->kernel);
    b.kernel_fd = vmm_wiring_add(&r->wiring, kernel);
    b.cmdline = (char *)"root=/dev/vdb rootfstype=erofs ro init=/cube-init";
    b.wiring = &r->wiring.msg;
    q.op_case = CUBE__VMM__V1__REQUEST__OP_BOOT;
    q.boot = &b;
    int rc = vmm_call(&r->vmm, &q, r->wiring.fds, r->wiring.nfds, &reply, e);
    vmm_reply_free(reply);
    return rc;
}

static void print_output(int stream, const char *p, size_t n, void *data)
{
    fwrite(p, 1, n, stream == 1 ? stdout : stderr);
    fflush(stream == 1 ? stdout : stderr);
}

/* A connection into the guest's envd: what a relay would have after its preface (contracts/internal.md §5).
 */
static int open_envd(struct vm_run *r, struct err *e)
{
    static const unsigned char port[2] = {49983 >> 8, 49983 & 0xff};
    unsigned char status = 0xff;
    _cleanup_close_ int fd = vmm_connect_to(r->wiring.in_listener, e);
    if (fd < 0)
        return -1;
    if (write(fd, port, 2) != 2 || read(fd, &status, 1) != 1 || status != 0)
        return err_set(e, ERR_UNAVAILABLE, "envd does not take connections (status %u)", status);
    return fd_steal(&fd);
}

static bool copy_some(int from, int to)
{
    char bytes[65536];
    ssize_t n = read(from, bytes, sizeof bytes);
    for (ssize_t done = 0, k; done < n; done += k) {
        k = write(to, bytes + done, (size_t)(n - done));
        if (k <= 0)
            return false;
    }
    return n > 0;
}

/* A child that carries one TCP connection of our HTTP client into the guest; ends with either side. */
static int forward(struct vm_run *r, char url[64], struct err *e)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    _cleanup_close_ int guest = open_envd(r, e);
    _cleanup_close_ int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (guest < 0)
        return -1;
    if (listener < 0 || bind(listener, (struct sockaddr *)&a, sizeof a) < 0 || listen(listener, 1) < 0 ||
        getsockname(listener, (struct sockaddr *)&a, &len) < 0)
        return err_sys(e, ERR_INTERNAL, "listening for our own HTTP client");
    snprintf(url, 64, "http://127.0.0.1:%u", ntohs(a.sin_port));
    r->forwarder = fork();
    if (r->forwarder < 0)
        return err_sys(e, ERR_INTERNAL, "starting the forwarder");
    if (r->forwarder > 0)
        return 0;
    int client = accept(listener, NULL, NULL);
    struct pollfd p[2] = {{.fd = client, .events = POLLIN}, {.fd = guest, .events = POLLIN}};
    while (client >= 0 && poll(p, 2, -1) > 0)
        if ((p[0].revents && !copy_some(client, guest)) || (p[1].revents && !copy_some(guest, client)))
            break;
    _exit(0);
}

static int run(struct vm_run *r, const struct vm_options *o, const char *layer, struct envd_result *result,
               struct err *e)
{
    int64_t t0 = clock_mono_us();
    if (boot(r, o, layer, e) < 0)
        return -1;
    int64_t t1 = clock_mono_us();
    if (guest_ctl_identify(vmm_connect_to(r->wiring.ctl_listener, e), BOOT_MS, e) < 0)
        return err_wrap(e, "the guest (see --console)");
    int64_t t2 = clock_mono_us();
    char url[64];
    if (forward(r, url, e) < 0)
        return -1;
    struct envd_target t = {.base_url = url, .sandbox_id = "vm", .user = o->user};
    int rc = envd_run(&t, o->command, NULL, 0, print_output, NULL, result, e);
    int64_t t3 = clock_mono_us();
    fprintf(stderr, "vmm %.1f ms, guest %.1f ms, command %.1f ms: %s\n", (double)(t1 - t0) / 1000,
            (double)(t2 - t1) / 1000, (double)(t3 - t2) / 1000, rc < 0 ? "failed" : result->status);
    return rc;
}

int cmd_vm(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "run") != 0)
        return usage(argc > 1 && strcmp(argv[1], "--help") == 0 ? 0 : 2);
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--root") == 0)
            return vm_run_command(argc - 1, argv + 1);
    struct vm_options o = {.kernel = getenv("CUBE_GUEST_KERNEL"),
                           .tools = getenv("CUBE_GUEST_TOOLS"),
                           .user = "root",
                           .console = "/dev/null",
                           .memory_mib = 512,
                           .vcpus = 1};
    int rc = parse(argc - 1, argv + 1, &o);
    if (rc)
        return rc == 1 ? 0 : rc;
    char layer[] = "/tmp/cube-vm-layer-XXXXXX";
    int fd = mkstemp(layer);
    if (fd >= 0)
        close(fd);
    struct vm_run r = {.vmm = {.sock = -1}};
    struct envd_result result = {0};
    struct err e = {0};
    rc = run(&r, &o, layer, &result, &e);
    if (r.forwarder > 0) {
        kill(r.forwarder, SIGKILL);
        waitpid(r.forwarder, NULL, 0);
    }
    vmm_close(&r.vmm);
    vmm_wiring_close(&r.wiring);
    unlink(layer);
    if (rc == 0)
        return result.exit_code;
    fprintf(stderr, "cube vm run: %s\n", e.msg);
    return 1;
}
