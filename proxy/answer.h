/* The proxy's own answers: error bodies exactly as contracts/e2b.md §7, in the form that the client can read:
 * JSON, a page for a browser navigation, or the framing of Connect streams and gRPC. */
#pragma once

#include "proxy/http1.h"

#include "lib/base/buf.h"

enum answer_kind {
    ANSWER_BAD_REQUEST,          /* 400, text */
    ANSWER_NOT_FOUND,            /* 502: unknown, dead or paused sandbox */
    ANSWER_PORT_CLOSED,          /* 502 */
    ANSWER_UNREACHABLE,          /* 503: it runs, but its node or envd does not answer right now */
    ANSWER_TOKEN_MISSING,        /* 403 */
    ANSWER_TOKEN_INVALID,        /* 403 */
    ANSWER_RESUME_DENIED,        /* 403 */
    ANSWER_TOO_MANY_CONNECTIONS, /* 429 */
    ANSWER_TEAM_LIMIT,           /* 429 */
    ANSWER_TRANSITION,           /* 409 */
    ANSWER_RESUME_FAILED,        /* 503 */
    ANSWER_INTERNAL_PATH,        /* 404 */
    ANSWER_BAD_GATEWAY,          /* 502: the service broke the protocol or the connection */
    ANSWER_REQUEST_TIMEOUT,      /* 408 */
    ANSWER_HEAD_TOO_LARGE,       /* 431 */
    ANSWER_METHOD,               /* 405: CONNECT */
    ANSWER_API_DOWN,             /* 502 */
    ANSWER_KINDS
};

enum answer_form { FORM_JSON, FORM_HTML, FORM_CONNECT, FORM_GRPC };

/** The form that fits the request. */
enum answer_form answer_form(const struct http_head *request);

struct answer {
    enum answer_kind kind;
    enum answer_form form;
    const char *sandbox; /* "" = none */
    uint16_t port;
    struct str path;    /* ANSWER_INTERNAL_PATH */
    const char *detail; /* text of a 400, reason of a failed resume; NULL = the standard text */
    int64_t limit;      /* ANSWER_TOO_MANY_CONNECTIONS */
};

int answer_status(const struct answer *a); /* HTTP status; 200 for the framed forms */
/** Body and content type; for gRPC the body is empty and `extra` gets the status headers as "name: value\r\n"
 * lines. */
void answer_write(const struct answer *a, struct buf *body, const char **content_type, struct buf *extra);

const char *http_reason(int status);
