/* Names in requests: sandbox IDs with the old client suffix, template references, and the shapes of addresses
 * and domains. */
#pragma once

#include "lib/base/err.h"

#include <stddef.h>

#define TEMPLATE_REF_MAX 128 /* contracts/e2b.md §1.5 */

/** Accepts "<sandboxID>" or "<sandboxID>-<clientID>" and writes the sandbox ID. Fails with ERR_INVALID
 * "Invalid sandbox ID" when there are more than two parts or other characters than [a-z0-9], and with
 * ERR_NOT_FOUND when it cannot be one of ours. `out` holds 22 bytes. */
int sandbox_id_parse(const char *s, char *out, struct err *e);

/** Trims, lower-cases and checks "[namespace/]alias[:tag]" or a template ID. `out` holds TEMPLATE_REF_MAX + 1
 * bytes. */
int template_ref_parse(const char *s, char *out, struct err *e);

/** Whether a reference (checked) has a tag. */
bool template_ref_tagged(const char *ref);

/** An Idempotency-Key: 1–255 of [a-z0-9-] (contracts/e2b.md §9.2). */
bool idempotency_key_valid(const char *s, size_t n);

bool name_is_ip_or_cidr(const char *s); /* IPv4 or IPv6, with or without a prefix length */
bool name_is_ipv4(const char *s);
bool name_is_domain(const char *s, bool wildcard); /* at most 128 bytes; "*.x" only when `wildcard` */
bool name_is_token(const char *s, size_t max);     /* an HTTP header field name (RFC 9110 §5.6.2) */
