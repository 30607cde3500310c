/* cube-faultnode: any number of simulated nodes in one process. */
#include "tests/control/faultnode/sim.h"
#include "lib/base/log.h"
#include "tests/lib/listen_somewhere.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static size_t split(char *list, char **out, size_t max)
{
    size_t n = 0;
    char *save = NULL;
    for (char *w = strtok_r(list, ",", &save); w && n < max; w = strtok_r(NULL, ",", &save))
        out[n++] = w;
    return n;
}

static int node_start(struct sim *s, struct sim_node *n, struct err *e)
{
    n->sim = s;
    n->server = rpc_server_new(s->loop, s->creds);
    if (!n->server)
        return err_set(e, ERR_UNAVAILABLE, "out of memory");
    rpc_server_add(n->server, sim_methods, n);
    if (listen_somewhere(n->server, e) < 0)
        return -1;
    snprintf(n->address, sizeof n->address, "127.0.0.1:%d", rpc_server_port(n->server));
    sim_report_start(n);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"masters", required_argument, NULL, 'm'},
                                            {"key-dir", required_argument, NULL, 'k'},
                                            {"nodes", required_argument, NULL, 'n'},
                                            {"prefix", required_argument, NULL, 'p'},
                                            {"memory", required_argument, NULL, 'M'},
                                            {"cpu", required_argument, NULL, 'C'},
                                            {"max", required_argument, NULL, 'x'},
                                            {"templates", required_argument, NULL, 't'},
                                            {"control", required_argument, NULL, 'c'},
                                            {"start-ms", required_argument, NULL, 's'},
                                            {"label", required_argument, NULL, 'l'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    static struct sim sim = {.report_ms = 1000, .n = 1};
    const char *key_dir = NULL, *prefix = "n", *control = NULL;
    uint64_t memory = 65536;
    uint32_t cpu = 16000, max = 0;
    int64_t start_ms = 0;
    struct err e = {0};
    log_init("cube-faultnode", LOG_INFO);
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (o) {
        case 'm':
            sim.master_count = split(optarg, sim.masters, 16);
            break;
        case 'k':
            key_dir = optarg;
            break;
        case 'n':
            sim.n = strtoul(optarg, NULL, 10);
            break;
        case 'p':
            prefix = optarg;
            break;
        case 'M':
            memory = strtoull(optarg, NULL, 10);
            break;
        case 'C':
            cpu = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'x':
            max = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 't':
            sim.template_count = split(optarg, sim.templates, 64);
            break;
        case 'c':
            control = optarg;
            break;
        case 's':
            start_ms = strtoll(optarg, NULL, 10);
            break;
        case 'l':
            sim.labels = optarg;
            break;
        default:
            puts("cube-faultnode --masters HOST:PORT,… --key-dir DIR [--nodes N] [--prefix P] [--memory MIB] "
                 "[--cpu MILLI] [--max N]\n"
                 "             [--templates ID,…] [--control SOCKET] [--start-ms MS] [--label K=V]\n"
                 "Control lines: NODE list|stats|silent 1|refuse_start CODE|start_ms N|die ID REASON|forget "
                 "ID|paused ID|active ID WHY|gen ID N|full …");
            return o == 'h' ? 0 : 2;
        }
    }
    if (!key_dir || !sim.master_count || sim.n < 1 || sim.n > 2000) {
        log_error("--key-dir and --masters are needed, --nodes is 1 to 2000");
        return 2;
    }
    struct rpc_auth auth = {.role = RPC_ROLE_NODE, .key_dir = key_dir};
    sim.creds = rpc_creds_load(&auth, &e);
    sim.loop = loop_new();
    sim.nodes = calloc(sim.n, sizeof *sim.nodes);
    if (!sim.creds || !sim.loop || !sim.nodes || fiber_start(sim.loop, 0, &e) < 0) {
        log_fail(&e, "starting: %s", e.msg);
        return 1;
    }
    for (size_t i = 0; i < sim.n; i++) {
        snprintf(sim.nodes[i].id, sizeof sim.nodes[i].id, "%s%zu", prefix, i + 1);
        sim.nodes[i].memory_mib = memory;
        sim.nodes[i].cpu_milli = cpu;
        sim.nodes[i].max_sandboxes = max;
        sim.nodes[i].start_ms = start_ms;
        if (node_start(&sim, &sim.nodes[i], &e) < 0) {
            log_fail(&e, "starting node %zu: %s", i + 1, e.msg);
            return 1;
        }
    }
    if (control && sim_control_start(&sim, control, &e) < 0) {
        log_fail(&e, "%s", e.msg);
        return 1;
    }
    loop_run(sim.loop);
    return 0;
}
