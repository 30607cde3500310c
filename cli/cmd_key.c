/* `cube key`: API keys, by the operator's token when it is at hand, else those of the own team. */
#include "cli/client.h"
#include "cli/commands.h"

#include <stdio.h>
#include <string.h>

#define NAME "key"

struct options {
    const char *team, *what;
    bool admin, as_json;
};

static int usage(int status)
{
    fputs("NAME\n    cube key - API keys\n\n"
          "SYNOPSIS\n"
          "    cube key create NAME [--team TEAM] [--admin] [--json]\n"
          "    cube key ls [--team TEAM] [--json]\n"
          "    cube key rm ID [--team TEAM]\n\n"
          "    A key is printed once, when it is made; the platform keeps only its digest. With the "
          "operator's\n"
          "    token (root on the cluster's machine, or CUBE_ADMIN_TOKEN) any team's keys, else your own "
          "team's.\n"
          "    --admin makes a key that may use the operator's routes.\n",
          status ? stderr : stdout);
    return status;
}

static int take_options(struct client *c, int argc, char **argv, struct options *o)
{
    *o = (struct options){.team = "default"};
    const struct client_flag flags[] = {
        {"--team", NULL, &o->team}, {"--admin", &o->admin, NULL}, {"--json", &o->as_json, NULL}, {0}};
    if (client_options(c, argc, argv, 2, flags, &o->what) < 0)
        return -1;
    return strspn(o->team, "abcdefghijklmnopqrstuvwxyz0123456789-_") == strlen(o->team) ? 0 : -1;
}

static int create(struct client *c, const struct options *o)
{
    struct err e = {0};
    json_t *answer = NULL;
    if (!o->what)
        return usage(2);
    bool operator= client_is_admin(c);
    json_t *body = operator
                       ? json_pack("{s:s, s:s, s:b}", "name", o->what, "teamID", o->team, "admin", o->admin)
                       : json_pack("{s:s}", "name", o->what);
    if (client_call(c, operator, "POST", operator? "/cube/v1/keys" : "/api-keys", body, &answer, &e) < 0)
        return client_fail(NAME, &e);
    if (o->as_json)
        client_print_json(answer);
    else
        puts(client_text(answer, "key"));
    json_decref(answer);
    return 0;
}

static int list(struct client *c, const struct options *o)
{
    struct err e = {0};
    json_t *answer = NULL, *k;
    size_t i;
    char path[128];
    bool operator= client_is_admin(c);
    snprintf(path, sizeof path, operator? "/cube/v1/keys?teamID=%s" : "/api-keys", o->team);
    if (client_call(c, operator, "GET", path, NULL, &answer, &e) < 0)
        return client_fail(NAME, &e);
    if (o->as_json) {
        client_print_json(answer);
    } else {
        printf("%-38s %-24s %-20s %s\n", "ID", "NAME", "KEY", "CREATED (UTC)");
        json_array_foreach(answer, i, k)
        {
            char mask[32];
            const json_t *m = json_object_get(k, "mask");
            snprintf(mask, sizeof mask, "%s%s...%s", client_text(m, "prefix"),
                     client_text(m, "maskedValuePrefix"), client_text(m, "maskedValueSuffix"));
            printf("%-38s %-24s %-20s %.19s\n", client_text(k, "id"), client_text(k, "name"), mask,
                   client_text(k, "createdAt"));
        }
    }
    json_decref(answer);
    return 0;
}

static int revoke(struct client *c, const struct options *o)
{
    struct err e = {0};
    char path[256];
    if (!o->what)
        return usage(2);
    bool operator= client_is_admin(c);
    if (operator)
        snprintf(path, sizeof path, "/cube/v1/keys/%.100s?teamID=%s", o->what, o->team);
    else
        snprintf(path, sizeof path, "/api-keys/%.100s", o->what);
    return client_call(c, operator, "DELETE", path, NULL, NULL, &e) < 0 ? client_fail(NAME, &e) : 0;
}

int cmd_key(int argc, char **argv)
{
    struct client c;
    struct options o;
    if (argc < 2 || strcmp(argv[1], "--help") == 0)
        return usage(argc < 2 ? 2 : 0);
    client_init(&c);
    if (take_options(&c, argc, argv, &o) < 0)
        return usage(2);
    if (strcmp(argv[1], "create") == 0)
        return create(&c, &o);
    if (strcmp(argv[1], "ls") == 0)
        return list(&c, &o);
    if (strcmp(argv[1], "rm") == 0)
        return revoke(&c, &o);
    return usage(2);
}
