/* Owns the look-ups of names. Invariants: one is freed on its loop's thread only, after the helper thread has
 * posted its result, so a cancelled one leaves nothing dangling; when the loop has ended before that, the
 * helper thread frees it and touches no loop. */
#include "lib/net/resolve.h"

#include <netdb.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct resolve {
    struct loop *loop;
    void (*done)(const struct sockaddr_storage *a, socklen_t len, const struct err *e,
                 void *data); /* NULL: cancelled */
    void *data;
    struct loop_task task;
    bool threaded, posted;
    struct resolve *next, **prev; /* of those with a thread, under `lock` as `loop` and `posted` then are */
    char host[256], port[8];
    struct sockaddr_storage addr;
    socklen_t len;
    bool failed;
    struct err err;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct resolve *threaded;

static void leave(struct resolve *r)
{
    *r->prev = r->next;
    if (r->next)
        r->next->prev = r->prev;
}

void resolve_loop_ends(struct loop *l)
{
    pthread_mutex_lock(&lock);
    for (struct resolve *r = threaded, *next; r; r = next) {
        next = r->next;
        if (r->loop != l)
            continue;
        leave(r);
        r->loop = NULL;
        if (r->posted) /* nobody will read it */
            free(r);
    }
    pthread_mutex_unlock(&lock);
}

static void finish(void *data)
{
    struct resolve *r = data;
    if (r->threaded) {
        pthread_mutex_lock(&lock);
        leave(r);
        pthread_mutex_unlock(&lock);
    }
    if (r->done)
        r->done(r->failed ? NULL : &r->addr, r->len, r->failed ? &r->err : NULL, r->data);
    free(r);
}

static void on_task(struct loop_task *t)
{
    finish(H2O_STRUCT_FROM_MEMBER(struct resolve, task, t));
}

static void *look_up(void *arg)
{
    struct resolve *r = arg;
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG};
    struct addrinfo *list = NULL;
    int code = getaddrinfo(r->host, r->port, &hints, &list);
    if (code != 0) {
        r->failed = true;
        err_set(&r->err, ERR_UNAVAILABLE, "resolving %.150s: %s", r->host, gai_strerror(code));
    } else {
        memcpy(&r->addr, list->ai_addr, list->ai_addrlen);
        r->len = list->ai_addrlen;
        freeaddrinfo(list);
    }
    pthread_mutex_lock(&lock);
    if (r->loop) {
        r->posted = true;
        loop_post(r->loop, finish, r);
    } else {
        free(r);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* "host:port" with a name of letters, digits, dots, dashes and underscores. */
static bool split(struct resolve *r, const char *address)
{
    const char *colon = strrchr(address, ':');
    if (!colon || colon == address || (size_t)(colon - address) >= sizeof r->host ||
        strlen(colon + 1) >= sizeof r->port || !colon[1])
        return false;
    for (const char *p = address; p < colon; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
              strchr(".-_", *p)))
            return false;
    memcpy(r->host, address, (size_t)(colon - address));
    strcpy(r->port, colon + 1);
    return strspn(r->port, "0123456789") == strlen(r->port);
}

struct resolve *resolve_start(struct loop *l, const char *address,
                              void (*done)(const struct sockaddr_storage *a, socklen_t len,
                                           const struct err *e, void *data),
                              void *data)
{
    struct resolve *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    *r = (struct resolve){.loop = l, .done = done, .data = data, .task.run = on_task};
    if (loop_address_parse(address, &r->addr, &r->len, &r->err) < 0) {
        pthread_t thread;
        pthread_mutex_lock(&lock); /* the thread waits for it before it ends */
        if (split(r, address) && pthread_create(&thread, NULL, look_up, r) == 0) {
            pthread_detach(thread);
            r->threaded = true;
            r->next = threaded;
            r->prev = &threaded;
            if (threaded)
                threaded->prev = &r->next;
            threaded = r;
        }
        pthread_mutex_unlock(&lock);
        if (r->threaded)
            return r;
        r->failed = true;
    }
    loop_defer(l, &r->task);
    return r;
}

void resolve_cancel(struct resolve *r)
{
    if (!r)
        return;
    if (r->threaded) {
        r->done = NULL;
        return;
    }
    loop_defer_cancel(r->loop, &r->task);
    free(r);
}
