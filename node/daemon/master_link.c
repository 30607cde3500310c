/* Owns the connection to a master. Invariant: reports go out only on a stream whose first message was a full
 * report, so a master never has to guess what it missed. */
#include "node/daemon/master_link.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "node/daemon/capacity.h"
#include "lib/net/fiber.h"
#include "node/daemon/report.h"
#include "node/template/catalog.h"

#include <string.h>

#define MASTERS_MAX 16
#define REGISTER_MS 5000
#define FULL_MS 30000
#define BACKOFF_MS 100
#define BACKOFF_MAX_MS 2000

struct master_link {
    struct node *node;
    struct rpc_creds *creds;
    char *address[MASTERS_MAX];
    unsigned count, next;
    bool up;                  /* the stream is open and had its full report */
    struct fiber_event *poke; /* of the reporting fiber, while it sleeps */
    bool poked;
    char last_error[256];
};

struct call {
    struct fiber_event done, ended;
    struct err error;
    bool failed;
    int64_t report_ms;
};

static void on_registered(const ProtobufCMessage *reply, const struct err *e, void *data)
{
    struct call *c = data;
    if (reply)
        c->report_ms = ((const Cube__Master__V1__RegisterReply *)reply)->report_ms;
    else
        c->error = *e;
    c->failed = !reply;
    fiber_event_set(&c->done);
}

/* "k=v,k2=v2" of the configuration; what is no pair was refused when that was read. */
static size_t labels_split(char *text, Cube__V1__Pair pairs[NODE_LABELS], Cube__V1__Pair *out[NODE_LABELS])
{
    size_t n = 0;
    char *save = NULL;
    for (char *word = strtok_r(text, ", ", &save); word && n < NODE_LABELS;
         word = strtok_r(NULL, ", ", &save)) {
        char *eq = strchr(word, '=');
        if (!eq)
            continue;
        *eq = 0;
        cube__v1__pair__init(&pairs[n]);
        pairs[n].key = word;
        pairs[n].value = eq + 1;
        out[n] = &pairs[n];
        n++;
    }
    return n;
}

static int announce(struct master_link *l, struct rpc_client *client, struct call *c)
{
    struct node *n = l->node;
    Cube__Master__V1__RegisterRequest req = CUBE__MASTER__V1__REGISTER_REQUEST__INIT;
    Cube__Master__V1__NodeClass class = CUBE__MASTER__V1__NODE_CLASS__INIT;
    Cube__Master__V1__Capacity capacity;
    capacity_fill(n, &capacity);
    class.kvm_kind = n->class.kvm_kind;
    class.cpu_features = n->class.cpu_features;
    class.device_layout = n->class.device_layout;
    req.node_id = n->cfg.id;
    req.rpc_address = n->cfg.advertise;
    req.relay_address = n->cfg.relay_address;
    req.class_ = &class;
    req.capacity = &capacity;
    req.version = (char *)CUBE_VERSION;
    req.envd_version = (char *)catalog_envd_version(n->templates);
    req.templates = catalog_ids(n->templates, &req.n_templates);
    Cube__V1__Pair pairs[NODE_LABELS], *labels[NODE_LABELS];
    char *text = strdup(n->cfg.labels ? n->cfg.labels : "");
    if (!text)
        abort();
    req.n_labels = labels_split(text, pairs, labels);
    req.labels = labels;
    rpc_unary(client, "/cube.master.v1.NodeLink/Register", &req.base,
              &cube__master__v1__register_reply__descriptor, REGISTER_MS, "", on_registered, c);
    free(text);
    fiber_event_wait(&c->done, -1);
    return c->failed ? -1 : 0;
}

static void on_opened(struct rpc_out *o, void *data)
{
    (void)o;
    struct call *c = data;
    fiber_event_set(&c->done);
}

static void on_end(const ProtobufCMessage *reply, const struct err *e, void *data)
{
    (void)reply;
    struct call *c = data;
    if (e)
        c->error = *e;
    c->failed = true;
    fiber_event_set(&c->done);
    fiber_event_set(&c->ended);
}

static void send_report(struct node *n, struct rpc_out *o, bool full)
{
    struct report r;
    report_fill(n, full, &r);
    rpc_out_send(o, &r.message.base);
    report_free(&r);
}

/* Sleeps until something changed, `ms` passed or the stream ended. */
static void wait_for_news(struct master_link *l, struct call *c, int64_t ms)
{
    struct fiber_event wake = {0};
    if (l->poked || c->failed)
        return;
    l->poke = &wake;
    int64_t step = ms < 1000 ? ms : 1000;
    for (int64_t left = ms; left > 0 && !c->failed && !wake.set; left -= step)
        fiber_event_wait(&wake, step);
    l->poke = NULL;
}

static void stream(struct master_link *l, struct rpc_client *client)
{
    struct node *n = l->node;
    struct call open = {0};
    struct call reg = {0};
    char class[16];
    snprintf(class, sizeof class, "%s", n->class.kvm_kind);
    if (announce(l, client, &reg) < 0) {
        if (strcmp(l->last_error, reg.error.msg) != 0)
            log_fail(&reg.error, "registering with the master at %s", rpc_client_address(client));
        snprintf(l->last_error, sizeof l->last_error, "%s", reg.error.msg);
        return;
    }
    struct rpc_out *o = rpc_upload(client, "/cube.master.v1.NodeLink/Report",
                                   &cube__master__v1__empty__descriptor, on_opened, on_end, &open);
    fiber_event_wait(&open.done, REGISTER_MS);
    if (!open.done.set) {
        rpc_out_cancel(o);
        return;
    }
    if (open.failed)
        return;
    int64_t every = reg.report_ms > 0 ? reg.report_ms : n->cfg.report_ms;
    log_info("reporting to the master at %s", rpc_client_address(client));
    l->last_error[0] = 0;
    l->poked = false;
    l->up = true;
    send_report(n, o, true);
    int64_t full_at = clock_boot_ms() + FULL_MS;
    while (!open.failed && !n->stopping) {
        wait_for_news(l, &open, every);
        if (open.failed ||
            strcmp(class, n->class.kvm_kind) != 0) /* a class that became known is registered anew */
            break;
        l->poked = false;
        n->last_master_ms = clock_boot_ms();
        bool full = clock_boot_ms() >= full_at;
        send_report(n, o, full);
        if (full)
            full_at = clock_boot_ms() + FULL_MS;
    }
    l->up = false;
    n->last_master_ms = clock_boot_ms();
    if (!open.failed)
        rpc_out_cancel(o);
    else
        log_warn("the report stream to %s ended: %s", rpc_client_address(client), open.error.msg);
}

static void keep_linked(void *arg)
{
    struct master_link *l = arg;
    struct node *n = l->node;
    for (int64_t pause = BACKOFF_MS; !n->stopping;) {
        if (!n->ready) { /* nothing true could be reported yet */
            fiber_sleep(20);
            continue;
        }
        struct rpc_client *client = rpc_client_new(n->loop, l->creds, l->address[l->next++ % l->count], NULL);
        rpc_client_set_node(client, n->cfg.id);
        int64_t began = clock_mono_us();
        stream(l, client);
        rpc_client_free(client);
        pause = clock_mono_us() - began > 5000000 ? BACKOFF_MS
                : pause * 2 < BACKOFF_MAX_MS      ? pause * 2
                                                  : BACKOFF_MAX_MS;
        fiber_sleep(pause);
    }
}

struct master_link *master_link_new(struct node *n, struct rpc_creds *creds)
{
    struct master_link *l = calloc(1, sizeof *l);
    if (!l)
        abort();
    l->node = n;
    l->creds = creds;
    n->link = l;
    n->last_master_ms = clock_boot_ms();
    char *save = NULL, *copy = strdup(n->cfg.master);
    for (char *a = strtok_r(copy, ", ", &save); a && l->count < MASTERS_MAX; a = strtok_r(NULL, ", ", &save))
        l->address[l->count++] = strdup(a);
    free(copy);
    if (l->count)
        fiber_spawn(keep_linked, l);
    else
        log_warn("no master is configured (node.master): this node reports to nobody");
    return l;
}

bool master_link_up(const struct master_link *l)
{
    return l && l->up;
}

void master_link_poke(struct node *n)
{
    struct master_link *l = n->link;
    if (!l)
        return;
    l->poked = true;
    if (l->poke)
        fiber_event_set(l->poke);
}

void master_link_changed(struct sandbox *sb)
{
    sb->changed = true;
    master_link_poke(sb->node);
}
