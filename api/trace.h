/* W3C trace context (https://www.w3.org/TR/trace-context): the caller's traceparent goes on, or a new one
 * begins. */
#pragma once

#define TRACEPARENT_LEN 55

/** Writes the traceparent for calls that serve a request with this header (NULL = none): same trace, new
 * parent span; a new trace when the header is absent or malformed. `out` holds TRACEPARENT_LEN + 1 bytes. */
void trace_continue(const char *header, char *out);
