/* Names in certificates of the cluster: roles and nodes are URIs in the SAN, cube://role/<role> and
 * cube://node/<id>. */
#pragma once

#include <openssl/x509.h>
#include <stdbool.h>

bool dp_cert_has_uri(X509 *cert, const char *uri);
