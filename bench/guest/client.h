/* A blocking HTTP client for measuring: one connection, kept alive, to TCP on loopback or through a guest's
 * in.sock. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Where the daemon is: `port` on 127.0.0.1, or the guest behind `in_sock`. */
struct target {
    int port;
    const char *in_sock;
};

/** Connects; ends the program when it cannot. */
int dial(const struct target *t);

/** dial without ending the program; -1 when refused. */
int dial_try(const struct target *t);

/** Sends a request and reads the whole answer. Returns the status; the body (chunk framing kept out) is in
 * *body, which is valid until the next call. */
int call(int fd, const char *method, const char *path, const char *type, const void *data, size_t n,
         const char **body, size_t *body_len);

/** As `call`, but only counts the bytes of the body, chunk framing included. */
int call_count(int fd, const char *method, const char *path, const char *type, const void *data, size_t n,
               uint64_t *bytes);

/** The envelope of a Start request for argv (NULL-terminated) in `out`; returns its length. */
size_t start_body(char *out, size_t cap, const char *const *argv);

/** Start of argv, the whole stream read; returns whether it ended with exit status 0 and contains `want`
 * (NULL = any). */
bool run(int fd, const char *const *argv, const char *want);

/** What `die` does before it exits; NULL = nothing. */
extern void (*client_on_die)(void);

_Noreturn void die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
double now_ms(void);

/** A child that copies files without envd (plain.c); returns its TCP port. It speaks as raw.c does. */
int plain_start(void);
void plain_end(void);
