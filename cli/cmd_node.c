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
          "    cube node cordon ID | uncordon ID | drain ID\n"
          "    cube node rm ID [--force]\n\n"
          "    A cordoned node gets no new sandboxes; draining one also pauses what runs there.\n"
          "    rm forgets a node that does not report any more; --force also when it held sandboxes,\n"
          "    which are lost then.\n"
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

static int drop(struct client *c, const char *id, bool force)
{
    struct err e = {0};
    char path[256];
    json_t *answer = NULL;
    snprintf(path, sizeof path, "/cube/v1/nodes/%.128s%s", id, force ? "?force=true" : "");
    if (client_call(c, true, "DELETE", path, NULL, &answer, &e) < 0)
        return client_fail(NAME, &e);
    int64_t lost = json_integer_value(json_object_get(answer, "lost"));
    if (lost)
        printf("%" PRId64 " sandboxes were there; they are lost\n", lost);
    json_decref(answer);
    return 0;
}

static int change(struct client *c, const char *id, const char *verb)
{
    struct err e = {0};
    char path[256];
    snprintf(path, sizeof path, "/cube/v1/nodes/%.128s/%s", id, verb);
    return client_call(c, true, "POST", path, NULL, NULL, &e) < 0 ? client_fail(NAME, &e) : 0;
}

int cmd_node(int argc, char **argv)
{
    struct client c;
    const char *id = NULL;
    bool as_json = false, force = false;
    const struct client_flag flags[] = {{"--json", &as_json, NULL}, {"--force", &force, NULL}, {0}};
    if (argc < 2 || strcmp(argv[1], "--help") == 0)
        return usage(argc < 2 ? 2 : 0);
    client_init(&c);
    const char *verb = argv[1];
    if (client_options(&c, argc, argv, 2, flags, &id) < 0)
        return usage(2);
    if (strcmp(verb, "ls") == 0 && !id && !force)
        return list(&c, as_json);
    bool rm = strcmp(verb, "rm") == 0;
    bool known =
        rm || strcmp(verb, "cordon") == 0 || strcmp(verb, "uncordon") == 0 || strcmp(verb, "drain") == 0;
    if (!known || as_json || (force && !rm) || !id || strpbrk(id, "/?#"))
        return usage(2);
    return rm ? drop(&c, id, force) : change(&c, id, verb);
}
