/* The control API for people's commands: one JSON request, one JSON answer. */
#pragma once

#include "cli/settings.h"
#include "lib/base/err.h"

#include <jansson.h>
#include <stdbool.h>

struct client {
    struct settings s;
    char admin_token[129]; /* "" when this person has none */
};

/** Loads the settings, with the options that follow later still to be taken by settings_option. */
void client_init(struct client *c);

/** A request with the API key (or the operator's token when `admin`). `body` is consumed, may be NULL.
 * `answer` (may be NULL) gets the parsed body, or NULL when there is none; the caller decrefs it. An answer
 * that is not 2xx is an error with the API's message and remedy. */
int client_call(struct client *c, bool admin, const char *method, const char *path, json_t *body,
                json_t **answer, struct err *e);

/** Whether the operator's token is at hand. */
bool client_is_admin(struct client *c);

/** Prints "cube NAME: message" and the remedy to stderr; returns 1, the exit status. */
int client_fail(const char *command, const struct err *e);

/** Prints a JSON value, indented, to stdout. */
void client_print_json(const json_t *v);

/** The text of a member, or "-". */
const char *client_text(const json_t *o, const char *key);

struct client_flag {
    const char *name;   /* "--json" */
    bool *on;           /* set when it is there */
    const char **value; /* or: gets the word behind it */
};
/** Takes the options from argv[first] on: those of every command (settings.h), `flags` (ended by one without
 * a name), and at most one other word, stored in `what`. -1 when there is anything else. */
int client_options(struct client *c, int argc, char **argv, int first, const struct client_flag *flags,
                   const char **what);

/** "K=V" into an object of strings; false when there is no '='. */
bool client_pair(json_t *o, const char *text);
