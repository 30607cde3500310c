/* Listeners and routes. */
#pragma once

#include <stdint.h>

/** Listens on `address` ("127.0.0.1", "::1", …), port 0 = a free one; returns the port or -1 with errno. */
int server_listen_tcp(const char *address, uint16_t port);

/** Listens on AF_VSOCK, any context. */
int server_listen_vsock(uint32_t port);

/** Sets how many connections there may be (from RLIMIT_NOFILE). */
void server_limit(unsigned connections);
