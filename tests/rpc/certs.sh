#!/bin/sh
# Makes a cluster CA and certificates for tests: certs.sh DIR. Names and URIs as lib/net/rpc.h wants them.
set -eu
cd "$1"
ca() { # NAME
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=$1" \
        -addext basicConstraints=critical,CA:TRUE -keyout "$1.key" -out "$1.pem" 2>/dev/null
}
cert() { # CA NAME URIS
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$2" -keyout "$2.key" -out "$2.csr" 2>/dev/null
    printf 'subjectAltName=DNS:cube.internal%s\n' "$3" > "$2.ext"
    openssl x509 -req -in "$2.csr" -CA "$1.pem" -CAkey "$1.key" -CAcreateserial -days 2 -extfile "$2.ext" -out "$2.pem" 2>/dev/null
}
ca ca
ca other
cert ca master ,URI:cube://role/master
cert ca api ,URI:cube://role/api
cert ca n1 ,URI:cube://role/node,URI:cube://node/n1
cert ca plain ''
cert other stranger ,URI:cube://role/api
