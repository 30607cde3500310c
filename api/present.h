/* How sandboxes, templates, keys and nodes look in answers: which fields are there, null or absent
 * (contracts/e2b.md §1.4, §9.2). */
#pragma once

#include "lib/base/jsonw.h"
#include "proto/master.pb-c.h"

#define CLIENT_ID "6532622b" /* a constant that old clients append to IDs */

/** Answer of create, connect, resume, fork. `domain` NULL or "" = null. */
void present_sandbox(struct jsonw *w, const Cube__V1__Sandbox *s, const char *domain);
void present_detail(struct jsonw *w, const Cube__V1__Sandbox *s, const char *domain);
void present_listed(struct jsonw *w, const Cube__V1__Sandbox *s);
/** E2B's view of a state: "running", "paused", or NULL when it is gone (404). */
const char *present_state(Cube__V1__SandboxState s);
const char *present_state_name(Cube__V1__SandboxState s); /* ours: "creating", "pausing" … */
void present_metric(struct jsonw *w, const Cube__Master__V1__MetricPoint *p);
void present_snapshot(struct jsonw *w, const Cube__Master__V1__SnapshotReply *s);
void present_template(struct jsonw *w, const Cube__Master__V1__Template *t);
void present_template_builds(struct jsonw *w, const Cube__Master__V1__Template *t);
