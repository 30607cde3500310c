/* Owns how people's commands speak to the API; invariant: the key and the token are sent only to the API's
 * own address and never printed. */
#include "cli/client.h"
#include "cli/http.h"
#include "lib/base/cleanup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL_TIMEOUT_MS 90000 /* longer than any operation of the API */

void client_init(struct client *c)
{
    memset(c, 0, sizeof *c);
    settings_load(&c->s);
}

bool client_is_admin(struct client *c)
{
    if (c->admin_token[0])
        return true;
    const char *env = getenv("CUBE_ADMIN_TOKEN");
    if (env && *env) {
        snprintf(c->admin_token, sizeof c->admin_token, "%s", env);
        return true;
    }
    char path[300];
    snprintf(path, sizeof path, "%s/keys/admin_token", c->s.state_dir);
    _cleanup_fclose_ FILE *f = fopen(path, "re");
    if (!f || !fgets(c->admin_token, sizeof c->admin_token, f))
        return false;
    c->admin_token[strcspn(c->admin_token, "\r\n")] = '\0';
    return c->admin_token[0] != '\0';
}

static int authorization(struct client *c, bool admin, char *out, size_t cap, struct err *e)
{
    if (admin) {
        if (!client_is_admin(c)) {
            err_set(e, ERR_UNAUTHENTICATED, "no operator's token: %s/keys/admin_token cannot be read",
                    c->s.state_dir);
            return err_remedy(e, "run this as root on the cluster's machine, or set CUBE_ADMIN_TOKEN");
        }
        snprintf(out, cap, "X-Admin-Token: %s", c->admin_token);
        return 0;
    }
    if (settings_key(&c->s, e) < 0)
        return -1;
    snprintf(out, cap, "X-API-Key: %s", c->s.api_key);
    return 0;
}

int client_call(struct client *c, bool admin, const char *method, const char *path, json_t *body,
                json_t **answer, struct err *e)
{
    if (answer)
        *answer = NULL;
    _cleanup_free_ char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    char key[192], url[1024];
    if (authorization(c, admin, key, sizeof key, e) < 0)
        return -1;
    snprintf(url, sizeof url, "%s%s", c->s.api_url, path);
    const char *headers[] = {key, "Content-Type: application/json", NULL};
    _cleanup_buf_ struct buf out = {0};
    long status = 0;
    if (http_call(method, url, headers, text, CALL_TIMEOUT_MS, &status, &out, e) < 0)
        return err_remedy(e, "is the cluster up? `cube status` tells");
    if (status < 200 || status > 299)
        return http_api_error(status, &out, e);
    if (answer && out.len) {
        *answer = json_loadb(out.data, out.len, 0, NULL);
        if (!*answer)
            return err_set(e, ERR_INTERNAL, "%s %s: the answer is not JSON", method, path);
    }
    return 0;
}

int client_fail(const char *command, const struct err *e)
{
    fprintf(stderr, "cube %s: %s\n", command, e->msg);
    if (e->remedy[0])
        fprintf(stderr, "  %s\n", e->remedy);
    return 1;
}

void client_print_json(const json_t *v)
{
    json_dumpf(v, stdout, JSON_INDENT(2) | JSON_ENCODE_ANY);
    putchar('\n');
}

const char *client_text(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s && *s ? s : "-";
}

static bool take_flag(const struct client_flag *flags, int argc, char **argv, int *i)
{
    for (; flags->name; flags++) {
        if (strcmp(argv[*i], flags->name) != 0)
            continue;
        if (flags->on) {
            *flags->on = true;
            return true;
        }
        if (*i + 1 >= argc)
            return false;
        *flags->value = argv[++*i];
        return true;
    }
    return false;
}

int client_options(struct client *c, int argc, char **argv, int first, const struct client_flag *flags,
                   const char **what)
{
    *what = NULL;
    for (int i = first; i < argc; i++) {
        if (settings_option(&c->s, argc, argv, &i) || take_flag(flags, argc, argv, &i))
            continue;
        if (argv[i][0] == '-' || *what)
            return -1;
        *what = argv[i];
    }
    return 0;
}

bool client_pair(json_t *o, const char *text)
{
    const char *eq = strchr(text, '=');
    if (!eq || eq == text)
        return false;
    return json_object_setn_new_nocheck(o, text, (size_t)(eq - text), json_string(eq + 1)) == 0;
}
