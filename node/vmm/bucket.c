/* Token bucket. Invariant: over any second a device passes at most rate + burst + one request. */
#include "node/vmm/bucket.h"

void bucket_init(struct bucket *b, uint64_t rate, uint64_t burst_min, int64_t now_us)
{
    uint64_t burst = rate / 10 > burst_min ? rate / 10 : burst_min;

    *b = (struct bucket){.rate = rate, .burst = burst, .tokens = (int64_t)burst, .at_us = now_us};
}

bool bucket_open(struct bucket *b, int64_t now_us)
{
    if (b->rate == 0)
        return true;
    int64_t passed = now_us - b->at_us;
    if (passed > 10000000)
        passed = 10000000;
    if (passed > 0) {
        int64_t fresh = (int64_t)((double)passed * (double)b->rate / 1e6);
        if (fresh > 0) {
            b->tokens += fresh;
            b->at_us = now_us;
        }
        if (b->tokens > (int64_t)b->burst)
            b->tokens = (int64_t)b->burst;
    }
    return b->tokens > 0;
}

void bucket_take(struct bucket *b, uint64_t n)
{
    if (b->rate)
        b->tokens -= (int64_t)n;
}

int64_t bucket_wait_us(const struct bucket *b)
{
    if (b->rate == 0 || b->tokens > 0)
        return 0;
    return (int64_t)((double)(1 - b->tokens) * 1e6 / (double)b->rate) + 1;
}
