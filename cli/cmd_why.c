/* `cube why ID`: what happened to a sandbox, in sentences. */
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/sandbox_net.h"

#include <stdio.h>
#include <string.h>

#define NAME "why"

static int usage(int status)
{
    fputs("NAME\n    cube why - what happened to a sandbox, and why\n\nSYNOPSIS\n    cube why ID [--json]\n\n"
          "    Tells each state, the scheduler's choice and what it refused, wakes, retries and the node's "
          "answers.\n"
          "    Of a running one also which packets its network dropped, and why.\n"
          "    It works up to 24 hours after the sandbox's end.\n",
          status ? stderr : stdout);
    return status;
}

static void state_now(struct client *c, const char *id)
{
    struct err e = {0};
    char path[160];
    json_t *o = NULL;
    snprintf(path, sizeof path, "/cube/v1/sandboxes/%.64s", id);
    if (client_call(c, false, "GET", path, NULL, &o, &e) < 0)
        return;
    const json_t *awake = json_object_get(o, "awake");
    printf("Now: %s", client_text(o, "state"));
    if (json_string_value(json_object_get(o, "nodeID")))
        printf(" on node %s", client_text(o, "nodeID"));
    if (json_string_value(json_object_get(awake, "reason")))
        printf(", awake because of %s since %.19s", client_text(awake, "reason"),
               client_text(awake, "since"));
    if (json_string_value(json_object_get(o, "pausesAt")))
        printf(", pauses at %.19s", client_text(o, "pausesAt"));
    else if (json_string_value(json_object_get(o, "endAt")) &&
             strcmp(client_text(o, "state"), "running") == 0)
        printf(", on timeout (%.19s): %s", client_text(o, "endAt"), client_text(o, "onTimeout"));
    if (json_string_value(json_object_get(o, "reason")))
        printf(": %s", client_text(o, "reason"));
    putchar('\n');
    json_decref(o);
}

int cmd_why(int argc, char **argv)
{
    struct client c;
    struct err e = {0};
    const char *id = NULL;
    bool as_json = false;
    const struct client_flag flags[] = {{"--json", &as_json, NULL}, {0}};
    if (argc > 1 && strcmp(argv[1], "--help") == 0)
        return usage(0);
    client_init(&c);
    if (client_options(&c, argc, argv, 1, flags, &id) < 0 || !id || strpbrk(id, "/?#"))
        return usage(2);
    char path[160];
    json_t *answer = NULL, *line;
    size_t i;
    snprintf(path, sizeof path, "/cube/v1/sandboxes/%.64s/%s", id, as_json ? "timeline" : "why");
    if (client_call(&c, false, "GET", path, NULL, &answer, &e) < 0)
        return client_fail(NAME, &e);
    if (as_json)
        client_print_json(answer);
    json_array_foreach(as_json ? NULL : json_object_get(answer, "sentences"), i, line)
        printf("%s\n", json_string_value(line));
    if (!as_json) {
        state_now(&c, id);
        sandbox_net_denied(&c, id);
    }
    json_decref(answer);
    return 0;
}
