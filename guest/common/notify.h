/* The channel between cube-envd and cube-init: a SEQPACKET socket pair. One datagram is one message: a type
 * byte and NUL-terminated strings; some carry descriptors (SCM_RIGHTS).
 *
 * envd → init
 *   'S' pid flags cmd cwd tag user deadline arg…   + [pidfd, stdin?, stdout, stderr?]: keep these for a
 * successor. flags: letters of p (PTY), i (stdin descriptor present), e (stderr present), c (cwd given), t
 * (tag given) deadline: when it is killed, in milliseconds of CLOCK_MONOTONIC, or "-" 'F' pid       forget:
 * the process is over 'C' pid       close its stdin 'K' pid signal   signal the group of an adopted process:
 * only who reaps it knows that its pid is still its own 'Z' pid code how until tag   the process is over:
 * forget it, but keep how it ended until then (CLOCK_MONOTONIC, ms) for a successor. how: letters of s (by a
 * signal, which `code` is) and t (tag given) 'E' kind level message key value…   an operation event
 *
 * init → envd, to a restarted one before anything else: 'S' and 'Z' as above, 'X' for what ended meanwhile,
 * and 'D': that was all. Later 'X' pid code status: an adopted process ended and was reaped (waitid's code
 * and status)
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define NOTIFY_MAX (64 * 1024)
#define NOTIFY_FDS 4
#define NOTIFY_STRINGS 600

struct notify_msg {
    char type;
    int n_strings, n_fds;
    const char *s[NOTIFY_STRINGS]; /* inside `data` */
    int fds[NOTIFY_FDS];
    char data[NOTIFY_MAX + 1];
};

/** Starts a message; `notify_add` appends one string and truncates at the end of the buffer. */
void notify_start(struct notify_msg *m, char type);
bool notify_add(struct notify_msg *m, const char *s);

/** Sends without blocking; returns 0 or -1 with errno. `len` is computed from the strings added. */
int notify_send(int fd, const struct notify_msg *m);

/** Receives without blocking. 1 = a message (caller owns its descriptors), 0 = none now, -1 = the peer is
 * gone. */
int notify_recv(int fd, struct notify_msg *m);
