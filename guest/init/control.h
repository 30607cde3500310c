/* The infrastructure plane: vsock port 1, proto/init.proto (4-byte big-endian length, one message). */
#pragma once

#include "lib/base/err.h"
#include "proto/init.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

#define CONTROL_PORT 1
#define CONTROL_MESSAGE_MAX ((size_t)1 << 20)

struct ctl;

/** Listens on vsock, or on the given descriptor in tests (-1 = vsock). */
int control_listen(int fd, struct err *e);

/** Sends a reply; a connection whose peer does not read is closed at a bound. */
void control_reply(struct ctl *c, const Cube__Init__V1__Reply *reply);
void control_error(struct ctl *c, uint64_t id, const struct err *e);

/** The same for an already packed reply. */
void control_send_packed(struct ctl *c, const uint8_t *data, size_t n);

/** Bytes that the peer has not taken yet. */
size_t control_pending(const struct ctl *c);

/** Sends to all subscribers; returns false when there is none. */
bool control_broadcast(const uint8_t *data, size_t n);
void control_subscribe(struct ctl *c);

/** Dispatches one request (requests.c). */
void request_handle(struct ctl *c, const Cube__Init__V1__Request *req);

/** The connection is going away (exec.c drops its sessions). */
void exec_conn_gone(struct ctl *c);
void exec_conn_drained(struct ctl *c);
