/* The resource use of each sandbox over time, asked from its guest, and with it the guest's liveness. */
#pragma once

#include "node/daemon/node.h"
#include "proto/master.pb-c.h"

struct samples;
struct sandbox;

struct samples *samples_new(void);
void samples_free(struct samples *s);
/** Of a sandbox that is over: its points go, tens of KiB of memory that nobody may ask for any more. */
void samples_end(struct samples *s);

/** Starts the fiber that samples all running sandboxes. */
void samples_start(struct node *n);

/** Asks the guest now and keeps the answer; also updates `healthy`, `cpu_milli` and `rss_mib`. In a fiber. */
int samples_take(struct sandbox *sb, struct err *e);

/** Milliseconds since the last sample; INT64_MAX when there is none. */
int64_t samples_age_ms(const struct sandbox *sb);

/** Points between `start_ms` and `end_ms` (0: no bound), appended to `out`; `latest` only the newest. They
 * are lent: `out` must be sent before the fiber lets another one run. */
void samples_fill(struct sandbox *sb, int64_t start_ms, int64_t end_ms, bool latest,
                  Cube__Master__V1__MetricsReply *out);
