/* Owns the answers about the API itself. */
#include "api/handlers.h"
#include "api/openapi.h"
#include "api/server.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

void handle_health(struct call *c)
{
    static const char ok[] = "Health check successful";
    if (atomic_load_explicit(&c->w->api->draining, memory_order_relaxed)) {
        call_error(c, ERR_UNAVAILABLE, "the API is shutting down");
        return;
    }
    call_send_text(c, 200, "text/plain; charset=utf-8", ok, sizeof ok - 1);
}

static struct buf document;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_document(void)
{
    openapi_write(&document);
}

void handle_openapi(struct call *c)
{
    pthread_once(&once, make_document);
    call_send_text(c, 200, "application/json", document.data, document.len);
}
