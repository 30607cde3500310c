/* Where this machine's cluster lives and how a person's command reaches it. */
#pragma once

#include "lib/base/err.h"

/** What `cube up` decided, kept in <state>/up.json and overridable by environment and options. */
struct settings {
    char state_dir[200]; /* /var/lib/cube, $CUBE_STATE_DIR or --state */
    char run_dir[200];   /* /run/cube, $CUBE_RUN_DIR or --run */
    char api_url[256];   /* $E2B_API_URL, else from up.json, else http://127.0.0.1:3000 */
    char sandbox_url[256];
    char api_key[64]; /* $E2B_API_KEY, else <state>/keys/api_key */
    char redis[256];  /* "" = started by `cube up` */
    int port_base; /* api = +0, master = +10, proxy = +20/+21, lifecycle = +30, node = +40, relay = +41; admin
                      = +100 */
};

/** Fills from defaults, environment and <state>/up.json. Never fails: what is missing stays at its default.
 */
void settings_load(struct settings *s);

/** Writes <state>/up.json (0644; holds no secret). */
int settings_save(const struct settings *s, struct err *e);

/** Takes `--state DIR`, `--run DIR`, `--port-base N` or `--redis ADDRESS` at argv[*i]; true when it was one
 * of them, in any order. An unusable port base ends the program with a word. */
bool settings_option(struct settings *s, int argc, char **argv, int *i);

/** Reads the API key file into s->api_key when it is still empty. */
int settings_key(struct settings *s, struct err *e);
