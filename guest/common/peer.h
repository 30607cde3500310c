/* Who is at the other end of a vsock connection. */
#pragma once

#include <stdbool.h>
#include <sys/socket.h>

#include <linux/vm_sockets.h>

/** Whether an accepted connection comes from inside the guest: any program there can reach our vsock ports
 * over the kernel's loopback transport, and must not get what is meant for the host. */
static inline bool peer_is_guest(const struct sockaddr_storage *from)
{
    return from->ss_family == AF_VSOCK && ((const struct sockaddr_vm *)from)->svm_cid != VMADDR_CID_HOST;
}
