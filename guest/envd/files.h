/* GET and POST /files, POST /files/compose (contracts/e2b.md §3.3–3.5). */
#pragma once

struct conn;
struct user;
struct err;

void files_get(struct conn *c);
void files_post(struct conn *c);
void files_compose(struct conn *c);

/** User of a /files request: `username`, else Basic, else the default. Returns 0, or -1 after having
 * answered. */
int files_user(struct conn *c, const char *username, struct user *out);

/** Answers with the status that fits the error of a file operation. */
void files_error(struct conn *c, const struct err *e);
