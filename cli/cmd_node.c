/* `cube node`: the nodes of the cluster, for the operator. */
#include "cli/client.h"
#include "cli/commands.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NAME "node"

static int usage(int status)
{
    fputs("NAME\n    cube node - nodes of the cluster\n\n"
          "SYNOPSIS\n"
          "    cube node ls [--json]\n"
          "    cube node cordon ID | uncordon ID | drain ID\n\n"
          "    A cordoned node gets no new sandboxes; draining one also moves away what runs there.\n"
          "    Needs the operator's token (root on the cluster's machine, or CUBE_ADMIN_TOKEN).\n",
          status ? stderr : stdout);
    return status;
}

static int64_t number(const json_t *o, const char *group, const char *key)
{
    return json_integer_value(json_object_get(json_object_get(o, group), key));
}

static int list(struct client *c, bool as_json)
{
    struct err e = {0};
    json_t *answer = NULL, *n;
    size_t i;
    if (client_call(c, true, "GET", "/cube/v1/nodes", NULL, &answer, &e) < 0)
        return client_fail(NAME, &e);
    if (as_json) {
        client_print_json(answer);
    } else {
        printf("%-20s %-10s %-10s %-10s %-16s %-20s %s\n", "ID", "STATUS", "KVM", "SANDBOXES",
               "CPU (taken/all)", "MEMORY MB (taken/all)", "LAST REPORT (UTC)");
        json_array_foreach(answer, i, n)
        {
            char cpu[32], memory[48];
            snprintf(cpu, sizeof cpu, "%.1f/%.1f", (double)number(n, "reserved", "cpuMilli") / 1000,
                     (double)number(n, "capacity", "cpuMilli") / 1000);
            snprintf(memory, sizeof memory, "%" PRId64 "/%" PRId64, number(n, "reserved", "memoryMB"),
                     number(n, "capacity", "memoryMB"));
            printf("%-20s %-10s %-10s %-10" PRId64 " %-16s %-20s %.19s\n", client_text(n, "nodeID"),
                   client_text(n, "status"), client_text(json_object_get(n, "class"), "kvmKind"),
                   number(n, "capacity", "sandboxes"), cpu, memory, client_text(n, "lastReportAt"));
        }
    }
    json_decref(answer);
    return 0;
}

int cmd_node(int argc, char **argv)
{
    struct client c;
    const char *id = NULL;
    bool as_json = false;
    if (argc < 2 || strcmp(argv[1], "--help") == 0)
        return usage(argc < 2 ? 2 : 0);
    client_init(&c);
    for (int i = 2; i < argc; i++) {
        if (settings_option(&c.s, argc, argv, &i))
            continue;
        if (strcmp(argv[i], "--json") == 0)
            as_json = true;
        else if (argv[i][0] != '-' && !id)
            id = argv[i];
        else
            return usage(2);
    }
    if (strcmp(argv[1], "ls") == 0 && !id)
        return list(&c, as_json);
    bool known =
        strcmp(argv[1], "cordon") == 0 || strcmp(argv[1], "uncordon") == 0 || strcmp(argv[1], "drain") == 0;
    if (!known || !id || strchr(id, '/') || strchr(id, '?'))
        return usage(2);
    struct err e = {0};
    char path[256];
    snprintf(path, sizeof path, "/cube/v1/nodes/%.128s/%s", id, argv[1]);
    return client_call(&c, true, "POST", path, NULL, NULL, &e) < 0 ? client_fail(NAME, &e) : 0;
}
