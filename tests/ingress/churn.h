/* What churn_link.c needs of churn.c, which stands for a relay with all its VMs, and the other way round. */
#pragma once

#include "lib/dp/loop.h"
#include "lib/net/preface.h"

/** The relay's answer to a preface, and the generation that goes with it. */
enum preface_status churn_admit(const uint8_t bytes[PREFACE_LEN], uint64_t *gen);
/** Serves a stream whose preface was admitted. */
void churn_serve(int fd, const uint8_t bytes[PREFACE_LEN]);

/** Serves links (lib/net/relay_link.h) at `path` as the relay at `address`. */
void churn_link_start(struct dp_loop *l, const char *path, const char *address);
/** As a relay that crashes and comes back: all links end. */
void churn_link_break(void);
