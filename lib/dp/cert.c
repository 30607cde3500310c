/* Looks for one URI in a certificate's subject alternative names. */
#include "lib/dp/cert.h"

#include <openssl/x509v3.h>
#include <string.h>

bool dp_cert_has_uri(X509 *cert, const char *uri)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    bool found = false;
    for (int i = 0; i < sk_GENERAL_NAME_num(names) && !found; i++) {
        const GENERAL_NAME *n = sk_GENERAL_NAME_value(names, i);
        if (n->type != GEN_URI)
            continue;
        const ASN1_IA5STRING *s = n->d.uniformResourceIdentifier;
        found = (size_t)ASN1_STRING_length(s) == strlen(uri) &&
                memcmp(ASN1_STRING_get0_data(s), uri, strlen(uri)) == 0;
    }
    GENERAL_NAMES_free(names);
    return found;
}
