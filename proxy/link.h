/* A worker's link to the relay of its own host (lib/net/relay_link.h): streams whose route names that relay
 * get the guest's own descriptor, so that their bytes pass through this process alone. Where there is no
 * link, or it has too many unanswered questions, streams go over TCP. */
#pragma once

#include "proxy/proxy.h"

/** Starts to connect and connects again whenever the link ends; nothing when proxy.relay_link is empty. */
void link_start(struct worker *w);
/** Asks for the stream of a new connection; the answer is back_answered, or back_unlinked when the link ends
 * before. false: not this way. */
bool link_open(struct back *b);
/** The connection is given up: says so with the bytes that passed. Nothing for one that is not of a link. */
void link_leave(struct back *b);

/* ---- what pool.c does with it ---- */

/** The relay's answer to a preface; `fd` is the guest's when it says ok, and is taken over, else -1. */
void back_answered(struct back *b, const uint8_t answer[16], int fd);
/** The link ended before it answered: nothing was sent, so it goes over TCP. */
void back_unlinked(struct back *b);
/** No descriptor came with the answer. */
void back_failed(struct back *b);
