/* The command line of cube-envd. */
#include "guest/envd/options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "guest/envd/version.h"

#define DEFAULT_PORT 49983
#define END_KEPT_MS 30000 /* contracts/e2b.md §4.3 */
#define END_KEPT_MAX_MS 3600000

static const char usage[] =
    "NAME\n"
    "    cube-envd - processes and files of a sandbox over HTTP\n"
    "SYNOPSIS\n"
    "    cube-envd [--port N] [--listen ADDRESS]...\n"
    "DESCRIPTION\n"
    "    Serves the E2B envd interface. Alone on a host it listens on loopback; with E2B_DEBUG=true the SDKs "
    "use\n"
    "    http://localhost:49983.\n"
    "OPTIONS\n"
    "    --port N          port (49983); 0 takes a free one and prints it\n"
    "    --listen ADDRESS  IP address to listen on; may be repeated (127.0.0.1 and ::1)\n"
    "    --end-kept-ms N   how long a late Connect finds the end of a process (30000)\n"
    "    --version, --help\n"
    "    Given by cube-init:\n"
    "    --listen-fd N     a listening socket, instead of opening some; may be repeated\n"
    "    --control-fd N    connected stream socket for the platform's requests; makes the daemon wait for "
    "its identity\n"
    "    --notify-fd N     connected SEQPACKET socket: events, and processes that outlive a restart\n"
    "    --cgroup DIR      cgroup v2 directory with the children user, pty and system\n";

void options_parse(struct options *o, int argc, char **argv)
{
    *o = (struct options){.port = DEFAULT_PORT, .control_fd = -1, .notify_fd = -1};
    static const struct option longs[] = {
        {"port", 1, NULL, 'p'},        {"listen", 1, NULL, 'l'},
        {"listen-fd", 1, NULL, 'k'},   {"control-fd", 1, NULL, 'c'},
        {"notify-fd", 1, NULL, 'n'},   {"cgroup", 1, NULL, 'g'},
        {"end-kept-ms", 1, NULL, 'e'}, {"version", 0, NULL, 'v'},
        {"help", 0, NULL, 'h'},        {NULL, 0, NULL, 0},
    };
    long kept = END_KEPT_MS;
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        switch (c) {
        case 'p':
            o->port = strtol(optarg, NULL, 10);
            break;
        case 'l':
            if (o->n_listen < OPTIONS_LISTENERS)
                o->listen[o->n_listen++] = optarg;
            break;
        case 'k':
            if (o->n_listen_fds < OPTIONS_LISTENERS)
                o->listen_fds[o->n_listen_fds++] = atoi(optarg);
            break;
        case 'c':
            o->control_fd = atoi(optarg);
            break;
        case 'n':
            o->notify_fd = atoi(optarg);
            break;
        case 'g':
            o->cgroup = optarg;
            break;
        case 'e':
            kept = strtol(optarg, NULL, 10);
            break;
        case 'v':
            printf("cube-envd %s (envd %s)\n", CUBE_VERSION, ENVD_VERSION);
            exit(0);
        default:
            fputs(usage, c == 'h' ? stdout : stderr);
            exit(c == 'h' ? 0 : 2);
        }
    }
    if (optind < argc || o->port < 0 || o->port > 65535 || kept < 1 || kept > END_KEPT_MAX_MS) {
        fputs(usage, stderr);
        exit(2);
    }
    o->end_kept_ms = (unsigned)kept;
}
