/* Builds the proxy's own answers. Invariant: the two texts "was not found" and "port is not open" stay as
 * they are: SDKs decide by them whether a sandbox is alive (contracts/e2b.md §9.3). */
#include "proxy/answer.h"

#include "lib/base/jsonw.h"

#include <stdio.h>
#include <string.h>

static const struct {
    int status;
    const char *connect; /* code name of the Connect protocol */
    int grpc;
    const char *text;
    const char *title, *advice; /* for people */
} kinds[ANSWER_KINDS] = {
    [ANSWER_BAD_REQUEST] = {400, "invalid_argument", 3, "Bad request", "This address is not complete",
                            "Use https://&lt;port&gt;-&lt;sandbox ID&gt;.&lt;domain&gt;/, or the path "
                            "/sandbox/&lt;sandbox ID&gt;/&lt;port&gt;/."},
    [ANSWER_NOT_FOUND] = {502, "unavailable", 14, "The sandbox was not found", "This sandbox is not running",
                          "It may have reached its end, been deleted, or be paused. Start it again "
                          "(Sandbox.connect) or create a new one, then reload this page."},
    [ANSWER_PORT_CLOSED] =
        {502, "unavailable", 14, "The sandbox is running but port is not open",
         "Nothing listens on this port",
         "The sandbox is running. Start a server on the port inside it, then reload this page."},
    [ANSWER_UNREACHABLE] =
        {503, "unavailable", 14, "The sandbox is running but cannot be reached right now",
         "The sandbox does not answer",
         "It is running, but its node does not answer at the moment. Try again in a few seconds."},
    [ANSWER_TOKEN_MISSING] =
        {403, "permission_denied", 7,
         "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing",
         "This sandbox is private",
         "Send the header e2b-traffic-access-token with the sandbox's traffic access token."},
    [ANSWER_TOKEN_INVALID] = {403, "permission_denied", 7,
                              "Sandbox is secured with traffic access token. Provided token in header "
                              "'e2b-traffic-access-token' is invalid",
                              "This sandbox is private",
                              "The traffic access token that was sent is not this sandbox's."},
    [ANSWER_RESUME_DENIED] = {403, "permission_denied", 7,
                              "The sandbox is paused and resuming it needs valid credentials",
                              "This sandbox is paused", "Only a request with its access token wakes it."},
    [ANSWER_TOO_MANY_CONNECTIONS] = {429, "resource_exhausted", 8, "Too many connections to the sandbox",
                                     "Too many connections",
                                     "Close some connections to this sandbox, then try again."},
    [ANSWER_TEAM_LIMIT] = {429, "resource_exhausted", 8, "The team's limit of running sandboxes is reached",
                           "The team's limit is reached",
                           "Stop another sandbox, then reload this page to wake this one."},
    [ANSWER_TRANSITION] = {409, "aborted", 10, "The sandbox is still changing its state",
                           "The sandbox is changing its state",
                           "It is being paused or resumed. Try again in a few seconds."},
    [ANSWER_RESUME_FAILED] = {503, "unavailable", 14, "The sandbox could not be resumed",
                              "The sandbox could not be resumed",
                              "It stays paused and nothing is lost. Try again in a few seconds."},
    [ANSWER_INTERNAL_PATH] = {404, "not_found", 5, "Not found", "Not found",
                              "This path is not reachable from outside."},
    [ANSWER_BAD_GATEWAY] = {502, "unavailable", 14,
                            "The service in the sandbox closed the connection or sent no valid answer",
                            "The service broke off",
                            "The server inside the sandbox closed the connection or sent no valid answer."},
    [ANSWER_REQUEST_TIMEOUT] = {408, "deadline_exceeded", 4, "The request did not arrive in time",
                                "The request took too long", "Try again."},
    [ANSWER_HEAD_TOO_LARGE] = {431, "resource_exhausted", 8, "Request header fields too large",
                               "The request is too large",
                               "Its header fields are larger than 32 KiB or more than 100."},
    [ANSWER_METHOD] = {405, "unimplemented", 12, "Method not allowed", "Method not allowed",
                       "CONNECT is not served here."},
    [ANSWER_API_DOWN] = {502, "unavailable", 14, "The API does not answer", "The API does not answer",
                         "Try again in a few seconds."},
};

static bool contains(struct str s, const char *lower)
{
    size_t n = strlen(lower);
    for (uint32_t i = 0; i + n <= s.n; i++)
        if (str_is((struct str){s.p + i, (uint32_t)n}, lower))
            return true;
    return false;
}

static bool has_prefix(struct str s, const char *lower)
{
    size_t n = strlen(lower);
    return s.n >= n && str_is((struct str){s.p, (uint32_t)n}, lower);
}

/* The rule of contracts/e2b.md §7 for a browser's navigation. */
static bool is_navigation(const struct http_head *m)
{
    static const char *const agents[] = {"mozilla", "chrome", "safari", "firefox", "edge", "opera", "msie"};
    static const char *const modes[] = {"cors", "no-cors", "same-origin", "websocket"};
    struct str agent = http_get(m, HDR_USER_AGENT), mode = http_get(m, HDR_SEC_FETCH_MODE),
               accept = http_get(m, HDR_ACCEPT);
    bool browser = false;
    for (size_t i = 0; i < sizeof agents / sizeof agents[0]; i++)
        browser |= contains(agent, agents[i]);
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (str_is(mode, modes[i]))
            return false;
    bool json_only = contains(accept, "json") && !contains(accept, "html") && !contains(accept, "*/*");
    return browser && !json_only && !http_has(m, HDR_X_REQUESTED_WITH);
}

enum answer_form answer_form(const struct http_head *m)
{
    struct str type = http_get(m, HDR_CONTENT_TYPE);
    if (has_prefix(type, "application/connect+"))
        return FORM_CONNECT;
    if (has_prefix(type, "application/grpc") && (type.n == 16 || type.p[16] == '+' || type.p[16] == ';'))
        return FORM_GRPC;
    return is_navigation(m) ? FORM_HTML : FORM_JSON;
}

int answer_status(const struct answer *a)
{
    return a->form == FORM_CONNECT || a->form == FORM_GRPC ? 200 : kinds[a->kind].status;
}

static const char *text_of(const struct answer *a)
{
    return a->detail ? a->detail : kinds[a->kind].text;
}

static void write_json(const struct answer *a, struct buf *body)
{
    struct jsonw w = jsonw_start(body);
    jsonw_obj(&w);
    if (a->kind == ANSWER_INTERNAL_PATH) {
        jsonw_kstr(&w, "message", text_of(a));
        jsonw_key(&w, "path");
        jsonw_strn(&w, a->path.p, a->path.n);
    } else {
        if (a->sandbox[0])
            jsonw_kstr(&w, "sandboxId", a->sandbox);
        jsonw_kstr(&w, "message", text_of(a));
        if (a->kind == ANSWER_PORT_CLOSED)
            jsonw_kint(&w, "port", a->port);
        if (a->kind == ANSWER_TOO_MANY_CONNECTIONS)
            jsonw_kint(&w, "connectionLimit", a->limit);
    }
    jsonw_kint(&w, "code", kinds[a->kind].status);
    jsonw_obj_end(&w);
}

static void html_escape(struct buf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '<')
            buf_puts(out, "&lt;");
        else if (*s == '>')
            buf_puts(out, "&gt;");
        else if (*s == '&')
            buf_puts(out, "&amp;");
        else if (*s == '"')
            buf_puts(out, "&quot;");
        else
            buf_putc(out, *s);
    }
}

static void write_html(const struct answer *a, struct buf *body)
{
    buf_printf(body,
               "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
               "content=\"width=device-width\"><title>%s</title><style>body{font:16px/1.5 "
               "system-ui,sans-serif;max-width:34em;"
               "margin:18vh auto 0;padding:0 1.5em;color:#222;background:#fafafa}h1{font-size:1.5em;margin:0 "
               "0 .5em}code{background:#eee;"
               "padding:.1em "
               ".35em;border-radius:4px}small{color:#777}@media(prefers-color-scheme:dark){body{color:#ddd;"
               "background:#1b1b1d}"
               "code{background:#333}}</style></head><body><h1>%s</h1><p>%s</p>",
               kinds[a->kind].title, kinds[a->kind].title, kinds[a->kind].advice);
    buf_puts(body, "<p><small>");
    html_escape(body, text_of(a));
    buf_printf(body, " (%d)", kinds[a->kind].status);
    if (a->sandbox[0]) {
        buf_puts(body, " · sandbox <code>");
        html_escape(body, a->sandbox);
        buf_printf(body, "</code> port <code>%u</code>", a->port);
    }
    buf_puts(body, "</small></p></body></html>\n");
}

/* One end-of-stream envelope: flag 2, length, JSON. */
static void write_connect(const struct answer *a, struct buf *body)
{
    _cleanup_buf_ struct buf json = {0};
    struct jsonw w = jsonw_start(&json);
    jsonw_obj(&w);
    jsonw_key(&w, "error");
    jsonw_obj(&w);
    jsonw_kstr(&w, "code", kinds[a->kind].connect);
    jsonw_kstr(&w, "message", text_of(a));
    jsonw_obj_end(&w);
    jsonw_obj_end(&w);
    char head[5] = {2, (char)(json.len >> 24), (char)(json.len >> 16), (char)(json.len >> 8), (char)json.len};
    buf_append(body, head, sizeof head);
    buf_append(body, json.data, json.len);
}

static void write_grpc(const struct answer *a, struct buf *extra)
{
    buf_printf(extra, "grpc-status: %d\r\ngrpc-message: ", kinds[a->kind].grpc);
    for (const char *s = text_of(a); *s; s++) {
        if (*s < 0x20 || *s > 0x7e || *s == '%')
            buf_printf(extra, "%%%02X", (unsigned char)*s);
        else
            buf_putc(extra, *s);
    }
    buf_puts(extra, "\r\n");
}

void answer_write(const struct answer *a, struct buf *body, const char **content_type, struct buf *extra)
{
    switch (a->form) {
    case FORM_HTML:
        *content_type = "text/html; charset=utf-8";
        write_html(a, body);
        return;
    case FORM_CONNECT:
        *content_type = "application/connect+json";
        write_connect(a, body);
        return;
    case FORM_GRPC:
        *content_type = "application/grpc";
        write_grpc(a, extra);
        return;
    case FORM_JSON:
        break;
    }
    if (a->kind == ANSWER_BAD_REQUEST && a->detail) {
        *content_type = "text/plain; charset=utf-8"; /* §2.4: a 400 of the routing is text */
        buf_puts(body, a->detail);
        return;
    }
    *content_type = "application/json";
    write_json(a, body);
}

const char *http_reason(int status)
{
    switch (status) {
    case 200:
        return "OK";
    case 400:
        return "Bad Request";
    case 403:
        return "Forbidden";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 408:
        return "Request Timeout";
    case 409:
        return "Conflict";
    case 429:
        return "Too Many Requests";
    case 431:
        return "Request Header Fields Too Large";
    case 502:
        return "Bad Gateway";
    case 503:
        return "Service Unavailable";
    default:
        return "Status";
    }
}
