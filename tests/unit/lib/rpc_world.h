/* A server with one echo service and its keys in a temporary directory, for the tests of rpc. */
#pragma once

#include "check.h"

#include "lib/net/rpc.h"
#include "proto/master.pb-c.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct loop *L;
static char key_dir[] = "/tmp/L-keys-XXXXXX";

static inline void world_write_key(const char *role, char digit)
{
    char path[128], text[65];
    snprintf(path, sizeof path, "%s/%s.key", key_dir, role);
    memset(text, digit, 64);
    text[64] = '\n';
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, text, 65) != 65)
        abort();
    close(fd);
}

static inline void world_start(void)
{
    L = loop_new();
    if (!mkdtemp(key_dir))
        abort();
    world_write_key("api", '1');
    world_write_key("master", '2');
    world_write_key("node", '3');
}

static inline void world_end(void)
{
    static const char *const names[] = {"api", "master", "node"};
    char path[128];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s.key", key_dir, names[i]);
        unlink(path);
    }
    rmdir(key_dir);
    loop_free(L);
}

static inline struct rpc_creds *world_creds(enum rpc_role role)
{
    struct err e = {0};
    struct rpc_creds *c = rpc_creds_load(&(struct rpc_auth){.role = role, .key_dir = key_dir}, &e);
    if (!c)
        abort();
    return c;
}
