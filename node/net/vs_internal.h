/* Shared by the files of node/net only. */
#pragma once

#include "node/net/vs.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/types.h>
#include <linux/bpf.h>

#include "node/net/vs_abi.h"

struct cubevs;

struct vs {
    char pin_dir[200];
    struct cubevs *skel;
    struct vs_config config;
};

int vs_sweep_tap(struct vs *v, unsigned tap_ifindex, uint32_t *removed, uint32_t *left, struct err *e);
void vs_forget_policy(struct vs *v, uint32_t slot);
