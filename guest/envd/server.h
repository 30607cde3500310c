/* Listeners and routes. */
#pragma once

#include <stdint.h>

/** Listens on `address` ("127.0.0.1", "::1", …), port 0 = a free one; returns the port or -1 with errno. */
int server_listen_tcp(const char *address, uint16_t port);

/** Accepts on a socket that listens already (cube-init's, of any family). */
int server_listen_fd(int fd);

/** Sets how many connections there may be (from RLIMIT_NOFILE). */
void server_limit(unsigned connections);
