/* The REST endpoints of the platform side: /init, /envs, /metrics, freeze hooks (contracts/e2b.md §3, §3.1).
 */
#pragma once

struct conn;

void api_health(struct conn *c);
void api_init(struct conn *c);
void api_envs(struct conn *c);
void api_metrics(struct conn *c);
void api_freeze(struct conn *c);
void api_unfreeze(struct conn *c);
void api_fsfreeze(struct conn *c);
void api_nothing(struct conn *c); /* hooks of the original that need no work here */
