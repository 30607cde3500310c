/* Questions about socket addresses. */
#pragma once

#include <stdbool.h>
#include <sys/socket.h>

/** Whether the address is on the loopback interface (IPv4, IPv6, IPv4 within IPv6) or a Unix path: plaintext
 * is allowed only there (internal.md §4). */
bool sockaddr_is_local(const struct sockaddr *a);
