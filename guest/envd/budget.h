/* Memory that clients choose the size of (bodies, messages that wait), all connections together. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/** Takes n bytes; false, and nothing taken, when too many are taken already. */
bool budget_take(size_t n);
void budget_give(size_t n);
