/* The DNS reader, on what guests ask and on what the world answers. */
#include "node/dns/message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct dns_question q;
    struct dns_answer a;
    if (dns_question_parse(p, n, &q)) {
        uint8_t out[512];
        if (q.end > n || strlen(q.name) >= DNS_NAME_MAX)
            abort();
        if (dns_refusal(p, &q, DNS_RCODE_REFUSED, out, sizeof out) > sizeof out)
            abort();
    }
    if (dns_answer_parse(p, n, &a) && a.n_addresses > 32)
        abort();
    return 0;
}
