/* Accept-Encoding (RFC 9110 §12.5.3). */
#pragma once

enum encoding { ENCODING_IDENTITY, ENCODING_GZIP, ENCODING_NONE };

/** What to answer with: identity unless only gzip is offered (contracts/e2b.md §10: a gzipped large read
 * makes the SDK's clients time out), NONE when nothing we have is acceptable. `header` may be NULL. */
enum encoding accept_encoding(const char *header);
