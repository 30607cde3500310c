/* cube-simnode: simulated nodes for tests and benchmarks of the control plane. */
#include "bench/simnode/simnode.h"

#include "lib/base/log.h"
#include "tests/lib/listen_somewhere.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void usage(void)
{
    puts("cube-simnode - simulated nodes for tests of the control plane\n\n"
         "usage: cube-simnode --master A[,B] --key-dir DIR [--nodes N] [--prefix sim] [--cpu MILLI] "
         "[--memory MIB]\n"
         "                    [--sandboxes N] [--template ID]... [--relay ADDRESS] [--envd-version V] [--kvm "
         "KIND] [--no-control]\n\n"
         "Each node has its own gRPC port on 127.0.0.1 and its own report stream. Control lines on stdin: "
         "delay OP MS, refuse OP CODE\n"
         "[PERCENT], die ID [REASON], silence NODE, speak NODE, count. It ends when stdin ends.");
}

static int start_nodes(struct sim *s, struct err *e)
{
    s->nodes = calloc(s->nnodes, sizeof *s->nodes);
    if (!s->nodes)
        return err_set(e, ERR_INTERNAL, "out of memory");
    for (unsigned i = 0; i < s->nnodes; i++) {
        struct sim_node *n = &s->nodes[i];
        n->sim = s;
        n->master = i;
        snprintf(n->id, sizeof n->id, "%s-%u", s->prefix, i + 1);
        n->server = rpc_server_new(s->loop, s->creds);
        sim_serve(n);
        if (listen_somewhere(n->server, e) < 0)
            return -1;
        rpc_server_set_serving(n->server, true);
        snprintf(n->address, sizeof n->address, "127.0.0.1:%d", rpc_server_port(n->server));
        sim_link(n);
    }
    return 0;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"master", 1, 0, 'm'},       {"key-dir", 1, 0, 'k'},
                                            {"nodes", 1, 0, 'n'},        {"prefix", 1, 0, 'p'},
                                            {"cpu", 1, 0, 'c'},          {"memory", 1, 0, 'M'},
                                            {"sandboxes", 1, 0, 's'},    {"template", 1, 0, 't'},
                                            {"relay", 1, 0, 'r'},        {"kvm", 1, 0, 'K'},
                                            {"envd-version", 1, 0, 'e'}, {"no-control", 0, 0, 'x'},
                                            {"help", 0, 0, 'h'},         {0}};
    struct sim s = {.prefix = "sim",
                    .relay = "127.0.0.1:9",
                    .envd_version = "0.6.13",
                    .kvm_kind = "pvm",
                    .nnodes = 1,
                    .cpu_milli = 64000,
                    .max_sandboxes = 5000,
                    .memory_mib = 256 << 10,
                    .report_ms = 1000};
    struct err e = {0};
    struct rpc_auth auth = {.role = RPC_ROLE_NODE};
    bool control = true;
    char *save = NULL;
    log_init("cube-simnode", LOG_INFO);
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (o) {
        case 'm':
            for (char *a = strtok_r(optarg, ",", &save); a && s.nmasters < SIM_MASTERS;
                 a = strtok_r(NULL, ",", &save))
                s.masters[s.nmasters++] = a;
            break;
        case 'k':
            auth.key_dir = optarg;
            break;
        case 'n':
            s.nnodes = (unsigned)atoi(optarg);
            break;
        case 'p':
            s.prefix = optarg;
            break;
        case 'c':
            s.cpu_milli = (uint32_t)atoi(optarg);
            break;
        case 'M':
            s.memory_mib = (uint64_t)atoll(optarg);
            break;
        case 's':
            s.max_sandboxes = (uint32_t)atoi(optarg);
            break;
        case 't':
            if (s.ntemplates < sizeof s.templates / sizeof *s.templates)
                s.templates[s.ntemplates++] = optarg;
            break;
        case 'r':
            s.relay = optarg;
            break;
        case 'K':
            s.kvm_kind = optarg;
            break;
        case 'e':
            s.envd_version = optarg;
            break;
        case 'x':
            control = false;
            break;
        default:
            usage();
            return o == 'h' ? 0 : 2;
        }
    }
    if (!auth.key_dir || s.nmasters == 0 || s.nnodes == 0) {
        usage();
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    s.loop = loop_new();
    s.creds = rpc_creds_load(&auth, &e);
    if (!s.loop || !s.creds || (control && sim_control(&s, &e) < 0) || start_nodes(&s, &e) < 0) {
        log_fail(&e, "starting");
        return 1;
    }
    loop_run(s.loop);
    return 0;
}
