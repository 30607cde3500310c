/* The keys that programs of the control plane share: Redis, keys and certificates, the cell. Their defaults
 * are those of "common". */
#pragma once

#include "lib/net/config.h"

/** Rows for a table of keys; AT(member) is the offset of a `char *` of that name. config_schema.py reads the
 * names from here for every program that uses it. */
#define CONFIG_CLUSTER_ROWS(AT)                                                                              \
    {"redis", CONFIG_STR, AT(redis), NULL, 0, 0, "host:port, unix:/path or sentinel:NAME@host:port,…"},      \
        {"redis_user", CONFIG_STR, AT(redis_user), NULL, 0, 0, "ACL user of Redis"},                         \
        {"redis_password_file",                                                                              \
         CONFIG_STR,                                                                                         \
         AT(redis_password_file),                                                                            \
         NULL,                                                                                               \
         0,                                                                                                  \
         0,                                                                                                  \
         "file with the password of Redis"},                                                                 \
        {"state_dir", CONFIG_STR, AT(state_dir), NULL, 0, 0, "durable state"},                               \
        {"key_dir", CONFIG_STR, AT(key_dir), NULL, 0, 0, "role keys"},                                       \
        {"ca", CONFIG_STR, AT(ca), NULL, 0, 0, "CA of the cluster (PEM); with cert and key mTLS is used"},   \
        {"cert", CONFIG_STR, AT(cert), NULL, 0, 0, "certificate (PEM)"},                                     \
        {"key", CONFIG_STR, AT(key), NULL, 0, 0, "its key (PEM)"},                                           \
    {                                                                                                        \
        "cell", CONFIG_STR, AT(cell), NULL, 0, 0, "character of this cell: one of 0-9a-z"                    \
    }

/** Whether `cell` is one; `section` is for the message. */
int config_cell_check(const char *section, const char *cell, struct err *e);
