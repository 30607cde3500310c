/* One direction between two streams (lib/dp/io.h). */
#pragma once

#include "lib/dp/io.h"

/** One direction; `pipe` holds what the destination did not take. */
struct half {
    struct dp_io *from, *to;
    int pipe[2]; /* -1: none borrowed */
    uint32_t in_pipe;
    bool bulk; /* much is coming: move pages instead of copying */
    bool done; /* the end was passed on */
    uint64_t bytes;
};

enum pump_result {
    PUMP_WAIT,   /* for bytes, or for room */
    PUMP_AGAIN,  /* there is more; call again from the loop */
    PUMP_DONE,   /* everything was passed on */
    PUMP_FAILED, /* pump_bulk: writing failed; pump_half: reading */
    PUMP_COPY    /* pump_bulk alone: go on by reading; nothing is in the pipe */
};

/** Moves what can be moved without blocking, at most a few MiB per call, the end too. What a destination no
 * longer takes is dropped: it may have said something before that is still to be read. */
enum pump_result pump_half(struct half *h);

/** Both ends were passed on, or one side takes and says nothing more, and the other has got its last word. */
static inline bool pump_over(const struct half *a, const struct half *b)
{
    return (a->done || a->to->wfailed) && (b->done || b->to->wfailed) && !dp_io_blocked(a->to) &&
           !dp_io_blocked(b->to);
}

/** Moves at most `*left` bytes between plain streams through the pipe alone and counts them down; never
 * passes on an end. PUMP_WAIT with `bulk` cleared: little came, the next bytes are better copied. */
enum pump_result pump_bulk(struct half *h, uint64_t *left);

/** Gives the pipe back; what is in it is lost. */
void pump_release(struct half *h);
