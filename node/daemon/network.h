/* The sandboxes' network as cube-node runs it: CubeVS loaded and kept, a slot per VM, the sandbox's rules,
 * and the conversation with the name service. */
#pragma once

#include "node/daemon/sandbox.h"

/** Starts it, in a fiber, after the jailer is connected. With node.uplink "none" sandboxes have no network
 * and network_state says so. Where it cannot be had it is tried again every 5 s, and meanwhile the node is
 * unfit. */
void network_start(struct node *n);

/** Why the network that the configuration asks for is not there; "" when it is, or is not asked for. */
const char *network_fault(void);

/** 0, or -1 with ERR_UNAVAILABLE: no sandbox may start while its network would be missing in silence. */
int network_admit(struct err *e);

/** Does what can be done before a sandbox is known, for a VM with a TAP; a failure is only logged. */
void network_prepare(struct vm *vm);

/** After adoption: forgets TAPs that no VM has. */
void network_settle(struct node *n);

/** The VM of a slot, or NULL. */
struct vm *network_vm(uint32_t slot);

/** Interface number of the VM's TAP; 0 when there is none. */
unsigned network_tap(const struct vm *vm);

/** Lets the sandbox's VM send by its rules. Without a network: success, unless the sandbox asks for rules
 * that would then not hold for what it reaches. */
int network_attach(struct node *n, struct sandbox *sb, struct vm *vm, struct err *e);

/** Applies changed rules of a running sandbox at once. */
int network_update(struct node *n, struct sandbox *sb, struct err *e);

/** Ends the VM's sessions and forgets it; before its TAP goes. */
void network_detach(struct vm *vm);

/** After a restart of the daemon: finds the slot of an adopted VM again and repeats its rules. */
void network_adopt(struct node *n, struct sandbox *sb, struct vm *vm);

struct vs_totals;
/** Counters of a VM; false when it has no network. */
bool network_read(struct vm *vm, struct vs_totals *out);

/** "" when there is a network, else why not. */
const char *network_state(void);
