/* Owns the telling of a sandbox's network. */
#include "cli/sandbox_net.h"

#include <stdio.h>
#include <string.h>

#define NAME "sandbox"

static int ask(struct client *c, const char *id, json_t **answer, struct err *e)
{
    char path[160];
    snprintf(path, sizeof path, "/cube/v1/sandboxes/%.64s/net", id);
    return client_call(c, false, "GET", path, NULL, answer, e);
}

static long long number(const json_t *o, const char *key)
{
    return (long long)json_integer_value(json_object_get(o, key));
}

static void print_list(const char *title, const json_t *list)
{
    size_t i;
    json_t *one;
    if (json_array_size(list) == 0)
        return;
    printf("%-12s", title);
    json_array_foreach(list, i, one)
    {
        if (i == 16) {
            printf(" … %zu in all", json_array_size(list));
            break;
        }
        printf(" %s", json_string_value(one));
    }
    putchar('\n');
}

static void print_rules(const json_t *o)
{
    size_t i;
    json_t *one;
    printf("%-12s %s\n", "internet",
           json_is_true(json_object_get(o, "allowInternetAccess")) ? "allowed" : "denied");
    print_list("allow", json_object_get(o, "allowOut"));
    print_list("deny", json_object_get(o, "denyOut"));
    json_array_foreach(json_object_get(o, "names"), i, one)
        printf("%-12s %s = %s for %lld s\n", i ? "" : "open by name", client_text(one, "name"),
               client_text(one, "address"), number(one, "secondsLeft"));
}

static void print_sessions(const json_t *o)
{
    size_t i;
    json_t *one;
    printf("%-12s %lld\n", "connections", number(o, "sessionCount"));
    json_array_foreach(json_object_get(o, "sessions"), i, one)
        printf("  %-5s %s:%lld from port %lld, %s, idle %lld s\n", client_text(one, "protocol"),
               client_text(one, "remote"), number(one, "remotePort"), number(one, "localPort"),
               client_text(one, "state"), number(one, "idleSeconds"));
}

/* A counted drop has no destination when the packet was too broken to have one. */
static void print_denied(const json_t *o, const char *indent)
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(o, "denied"), i, one)
    {
        long long n = number(one, "packets");
        printf("%sat least %lld packet%s", indent, n, n == 1 ? "" : "s");
        if (strcmp(client_text(one, "remote"), "0.0.0.0") != 0)
            printf(" to %s", client_text(one, "remote"));
        if (number(one, "remotePort"))
            printf(":%lld", number(one, "remotePort"));
        if (json_string_value(json_object_get(one, "protocol")))
            printf(" (%s)", client_text(one, "protocol"));
        printf(" dropped: %s, last at %.19s\n", client_text(one, "reason"), client_text(one, "lastAt"));
    }
}

int sandbox_net_show(struct client *c, const char *id, bool as_json)
{
    struct err e = {0};
    json_t *o = NULL, *v;
    const char *key;
    if (ask(c, id, &o, &e) < 0)
        return client_fail(NAME, &e);
    if (as_json) {
        client_print_json(o);
        json_decref(o);
        return 0;
    }
    print_rules(o);
    if (json_string_value(json_object_get(o, "away"))) {
        printf("%-12s none now: %s\n", "network", client_text(o, "away"));
        json_decref(o);
        return 0;
    }
    printf("%-12s %lld packets, %lld bytes\n", "sent", number(o, "upPackets"), number(o, "upBytes"));
    printf("%-12s %lld packets, %lld bytes\n", "received", number(o, "downPackets"), number(o, "downBytes"));
    print_sessions(o);
    bool first = true;
    json_object_foreach(json_object_get(o, "drops"), key, v)
    {
        printf("%-12s %s: %lld\n", first ? "dropped" : "", key, (long long)json_integer_value(v));
        first = false;
    }
    print_denied(o, "  ");
    json_decref(o);
    return 0;
}

void sandbox_net_denied(struct client *c, const char *id)
{
    struct err e = {0};
    json_t *o = NULL;
    if (ask(c, id, &o, &e) < 0)
        return;
    print_denied(o, "Network: ");
    json_decref(o);
}
