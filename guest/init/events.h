/* Operation events on their way to the node (contracts/internal.md §5): a short memory for those that come
 * before anybody listens, then a stream per subscriber. */
#pragma once

struct notify_msg;
struct ctl;

/** An 'E' message of envd. */
void events_from_envd(const struct notify_msg *m);

/** An event of our own: key and value may be NULL. */
void events_emit(const char *kind, const char *level, const char *message, const char *key,
                 const char *value);

/** Sends what is remembered, and from now on everything. */
void events_subscribe(struct ctl *c);
