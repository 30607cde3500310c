/* One counter, used by the loop's thread only. Invariant: what was taken is given back by whoever took it,
 * when its request ends at the latest. */
#include "guest/envd/budget.h"

#include <unistd.h>

#define BUDGET_MAX ((size_t)96 << 20) /* an eighth of the machine's memory between these */
#define BUDGET_MIN ((size_t)20 << 20)

static size_t taken;

static size_t budget_max(void)
{
    static size_t max;
    if (!max) {
        max = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE) / 8;
        max = max < BUDGET_MIN ? BUDGET_MIN : max > BUDGET_MAX ? BUDGET_MAX : max;
    }
    return max;
}

bool budget_take(size_t n)
{
    if (taken + n > budget_max())
        return false;
    taken += n;
    return true;
}

void budget_give(size_t n)
{
    taken -= n;
}
