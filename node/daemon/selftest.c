/* Owns the verdict on this host: do its KVM and the guest kernel fit together? Invariant: a verdict comes
 * from a guest that booted or did not; what keeps the test from being made (no jailer, a damaged store) is no
 * verdict. A pass is remembered in <store>/selftest under a hash of all that it depends on, so only the first
 * start after a boot of the host, a new kernel or a new node costs a guest. */
#include "node/daemon/selftest.h"

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/net/crypto.h"
#include "lib/net/fiber.h"
#include "node/daemon/vm.h"
#include "node/template/catalog.h"
#include "node/template/image.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define FILE_NAME "selftest"
#define LIMIT_MS 90000 /* a guard against a hang: half a second where nothing else runs */
#define PASSED_MAX 16
#define KEY_BYTES 65
#define WAIT_STEP_MS 10
#define CONSOLE_BYTES (64 << 10) /* more than a guest says until the end of the probe */

static struct {
    struct fiber_lock lock;
    bool read; /* the file was */
    bool running;
    char passed[PASSED_MAX][KEY_BYTES]; /* newest last */
    unsigned count;
    bool fit;      /* a kernel passed on this host since it booted */
    char why[300]; /* of the last failure while none did */
} self;

static void key_of(struct node *n, const struct manifest *m, char out[KEY_BYTES])
{
    char text[512];
    const struct node_class *c = &n->class;
    int len = snprintf(text, sizeof text, "%s|%s|%s|%s|%u|" CUBE_VERSION, n->boot_id, m->kernel, c->kvm_kind,
                       c->cpu_features, c->device_layout);
    sha256_hex(text, (size_t)len, out);
}

static void read_passed(struct node *n)
{
    _cleanup_free_ char *text = NULL;
    size_t len;
    if (self.read)
        return;
    self.read = true;
    if (file_read(n->store.fd, FILE_NAME, PASSED_MAX * KEY_BYTES, &text, &len, NULL) < 0)
        return;
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line && self.count < PASSED_MAX;
         line = strtok_r(NULL, "\n", &save))
        if (strlen(line) == KEY_BYTES - 1)
            memcpy(self.passed[self.count++], line, KEY_BYTES);
}

static bool has_passed(const char *key)
{
    for (unsigned i = 0; i < self.count; i++)
        if (strcmp(self.passed[i], key) == 0)
            return true;
    return false;
}

static void note_passed(struct node *n, const char *key)
{
    char text[PASSED_MAX * KEY_BYTES + 1];
    size_t len = 0;
    if (self.count == PASSED_MAX)
        memmove(self.passed[0], self.passed[1], sizeof self.passed[0] * --self.count);
    memcpy(self.passed[self.count++], key, KEY_BYTES);
    for (unsigned i = 0; i < self.count; i++)
        len += (size_t)snprintf(text + len, sizeof text - len, "%s\n", self.passed[i]);
    struct err e = {0};
    if (file_replace(n->store.fd, FILE_NAME, text, len, false, &e) < 0)
        log_fail(&e, "remembering the self-test; the next start makes it again");
}

/* What the probe said, or why there is nothing of it. */
static int judge(struct vm *vm, bool ended, struct err *e)
{
    char text[600];
    vm_console_tail(vm, text, sizeof text);
    if (ended && strstr(text, "cube-probe: ok"))
        return 0;
    const char *said = strstr(text, "cube-probe: FAILED: ");
    size_t len = said ? strcspn(said += 20, "\n") : 0;
    while (len > 0 && said[len - 1] == ' ')
        len--;
    if (said)
        err_set(e, ERR_UNSUPPORTED, "%.*s", (int)len, said);
    else
        err_set(e, ERR_UNSUPPORTED, "the guest kernel %s; its last words: %s",
                ended ? "ended before the probe did" : "did not come to the probe in time",
                strlen(text) > 120 ? text + strlen(text) - 120 : text);
    return err_remedy(e, "the interface of this host's KVM may have changed: docs/kernel.md, \"Self-test\"");
}

static int probe(struct node *n, struct vm *vm, const struct image *img, bool *verdict, struct err *e)
{
    struct vm_image image;
    struct fiber_event ended = {0};
    _cleanup_close_ int layer = vm_layer_open(vm, e);
    _cleanup_close_ int console = layer < 0 ? -1 : vm_console_open(vm, e);
    if (console < 0)
        return -1;
    /* The probe speaks through it: on a full disk its words would be lost, and a sound host look unfit. */
    if (fallocate(console, FALLOC_FL_KEEP_SIZE, 0, CONSOLE_BYTES) < 0 && errno != EOPNOTSUPP)
        return err_sys(e, ERR_INTERNAL, "keeping place for the probe's words");
    image_to_vm(img, layer, &image);
    image.cmdline = IMAGE_CMDLINE " -- --probe";
    image.vcpus = VM_POOL_VCPUS;
    image.memory_mib = VM_POOL_MEMORY_MIB;
    vm->watcher = &ended;
    int rc = vm_boot(vm, "", 0, &image, e);
    if (rc == 0)
        rc = judge(vm, fiber_event_wait(&ended, LIMIT_MS), e);
    vm->watcher = NULL;
    /* Neither is one of the host: the VM process was lost, or the disk is full. */
    *verdict = !n->stopping && e->code != ERR_UNAVAILABLE && e->code != ERR_STORAGE_FULL;
    return rc;
}

static int run(struct node *n, const char *template_id, bool *verdict, struct err *e)
{
    struct image img;
    if (image_load_template(n, template_id, false, &img, e) < 0)
        return -1;
    struct vm *vm = vm_make(n, e);
    int rc = vm ? probe(n, vm, &img, verdict, e) : -1;
    vm_destroy(vm);
    image_close(&img);
    return rc;
}

static void passed(void)
{
    self.fit = true;
    self.why[0] = 0;
}

static void failed(struct node *n, const struct err *e)
{
    if (!self.fit) /* else the host is sound, and only this template is not offered */
        snprintf(self.why, sizeof self.why, "node %s failed its self-test: %.200s", n->cfg.id, e->msg);
}

int selftest_template(struct node *n, const char *template_id, struct err *e)
{
    struct manifest m;
    char key[KEY_BYTES];
    bool verdict = false;
    fiber_lock(&self.lock);
    struct fiber_lock *held _cleanup_unlock_ = &self.lock;
    if (image_template_manifest(n, template_id, &m, e) < 0)
        return -1;
    read_passed(n);
    key_of(n, &m, key);
    if (n->class.kvm_kind[0] && has_passed(key)) {
        passed();
        return 0;
    }
    int64_t began = clock_mono_us();
    if (run(n, template_id, &verdict, e) < 0) {
        err_wrap(e, "self-test with kernel %.12s", m.kernel);
        if (verdict)
            failed(n, e);
        return -1;
    }
    passed();
    key_of(n, &m, key); /* the test's VMM has told the class of this host */
    note_passed(n, key);
    log_info("self-test with kernel %.12s passed in %lld ms", m.kernel,
             (long long)(clock_mono_us() - began) / 1000);
    return 0;
}

static void test_all(void *arg)
{
    struct node *n = arg;
    size_t count;
    char **id;
    struct err e = {0};
    if (store_list(&n->store, "tpl", &id, &count, &e) == 0) {
        if (count > 0 && !n->class.kvm_kind[0])
            vm_destroy(
                vm_make(n, &e)); /* its hello tells the class, on which it depends what passed before */
        for (size_t i = 0; i < count && !n->stopping; i++) {
            e = (struct err){0};
            if (selftest_template(n, id[i], &e) < 0)
                log_fail(&e, "template %s", id[i]);
        }
        store_names_free(id, count);
    }
    self.running = false;
}

void selftest_start(struct node *n)
{
    self.running = true;
    fiber_spawn(test_all, n);
}

int selftest_admit(struct node *n, struct err *e)
{
    for (int64_t waited = 0; self.running && waited < LIMIT_MS && !n->stopping; waited += WAIT_STEP_MS)
        fiber_sleep(WAIT_STEP_MS);
    return self.why[0] ? err_set(e, ERR_UNAVAILABLE, "%s", self.why) : 0;
}

const char *selftest_unfit(void)
{
    return self.why;
}
