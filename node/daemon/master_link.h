/* The node's one stream of reports to a master (cube.master.v1.NodeLink): any of those configured, another
 * one when it breaks. A full report at each connect, then changes at once, and capacity from time to time. */
#pragma once

#include "lib/net/rpc.h"
#include "node/daemon/node.h"

struct sandbox;
struct master_link;

struct master_link *master_link_new(struct node *n, struct rpc_creds *creds);
bool master_link_up(const struct master_link *l);
void master_link_changed(struct sandbox *sb); /* the next report has it */
void master_link_poke(struct node *n);        /* templates or capacity changed: report now */
