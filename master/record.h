/* A sandbox's record as the masters read it from `{c}:sb:<id>`, and its view for the API. */
#pragma once

#define IDLE_MS_MAX (30 * INT64_C(86400000)) /* of mode `idle` */

#include "lib/base/err.h"
#include "lib/base/ids.h"
#include "proto/master.pb-c.h"
#include "proto/states.h"

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stdint.h>

#define REPLY_WORD_MAX 15 /* bytes of a version or an isolation level, in what a node answers or reports */

/** Longest names that the control plane takes from outside (bytes, without NUL). */
#define NODE_ID_MAX 63
#define TEAM_ID_MAX 63
#define TEMPLATE_ID_MAX 127
#define SPEC_BYTES_MAX (512u << 10)

struct record {
    char id[SANDBOX_ID_LEN + 1];
    enum sandbox_state state;
    uint64_t gen, rev;
    char node[NODE_ID_MAX + 1], team[TEAM_ID_MAX + 1], owner[20], op[16];
    char envd[REPLY_WORD_MAX + 1], isolation[REPLY_WORD_MAX + 1], snapshot[64], reason[256];
    int64_t created_ms, started_ms, end_ms;
    bool auto_pause, filesystem_only, unresponsive, unconfirmed;
    int64_t idle_ms;
    Cube__V1__SandboxSpec *spec; /* owned */
    /* Figures of the node's last report, when the record was read for one sandbox. */
    char awake[16];
    int64_t last_activity_ms, awake_since_ms, last_answer_ms;
    uint32_t open_streams;
    bool healthy;
};

/** Reads a flat HGETALL reply. ERR_NOT_FOUND when it is empty; ERR_INTERNAL when it is not a record. Release
 * with record_free. */
int record_parse(const redisReply *hash, struct record *out, struct err *e);

/** Names of the fields that C reads, and a record from their values in that order (absent ones are nil). */
#define RECORD_FIELDS 20
const char *record_field(size_t i);
int record_parse_values(const redisReply *values, struct record *out, struct err *e);

/** Adds the activity line of `{c}:act:<node>`; nothing when it is empty or malformed. */
void record_parse_activity(struct record *r, const char *line, size_t n);

void record_free(struct record *r);
#define _cleanup_record_ __attribute__((cleanup(record_free)))

enum sandbox_state state_parse(const char *name, size_t n); /* STATE_NONE when unknown */

/** Tokens of a message, beside it so that the message needs no allocation. */
struct record_tokens {
    char envd[65], traffic[65];
};

/** Fills a message that points into `r` and `tokens`; tokens are NULL where the caller may not see them. */
void record_message(const struct record *r, struct record_tokens *tokens, Cube__V1__Sandbox *out);

/** First metadata value with this key, or NULL. */
const char *spec_metadata(const Cube__V1__SandboxSpec *spec, const char *key);
