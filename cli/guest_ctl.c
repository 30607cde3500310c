/* Owns the blocking client of the guest's control connection: one request at a time, each a 4-byte big-endian
 * length and one message. */
#include "cli/guest_ctl.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/ids.h"
#include "proto/init.pb-c.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define MESSAGE_MAX (1u << 20)

typedef Cube__Init__V1__Request Request;
typedef Cube__Init__V1__Reply Reply;

static int send_all(int fd, const uint8_t *p, size_t n, struct err *e)
{
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k < 0)
            return err_sys(e, ERR_UNAVAILABLE, "speaking to the guest");
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

static int recv_all(int fd, uint8_t *p, size_t n, int64_t end_ms, struct err *e)
{
    while (n > 0) {
        struct pollfd w = {.fd = fd, .events = POLLIN};
        int64_t left = end_ms - clock_boot_ms();
        if (left <= 0 || poll(&w, 1, (int)left) == 0)
            return err_set(e, ERR_DEADLINE, "the guest does not answer");
        ssize_t k = recv(fd, p, n, 0);
        if (k <= 0)
            return err_set(e, ERR_UNAVAILABLE, "the guest closed its control connection");
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

static int call(int fd, Request *q, int64_t end_ms, Reply **out, struct err *e)
{
    uint8_t head[4];
    size_t n = cube__init__v1__request__get_packed_size(q);
    _cleanup_free_ uint8_t *data = malloc(n + 4);
    if (!data)
        return err_set(e, ERR_INTERNAL, "out of memory");
    data[0] = (uint8_t)(n >> 24), data[1] = (uint8_t)(n >> 16), data[2] = (uint8_t)(n >> 8),
    data[3] = (uint8_t)n;
    cube__init__v1__request__pack(q, data + 4);
    if (send_all(fd, data, n + 4, e) < 0 || recv_all(fd, head, 4, end_ms, e) < 0)
        return -1;
    n = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
    if (n > MESSAGE_MAX)
        return err_set(e, ERR_INTERNAL, "the guest's answer has %zu bytes", n);
    _cleanup_free_ uint8_t *answer = malloc(n + 1);
    if (!answer || recv_all(fd, answer, n, end_ms, e) < 0)
        return -1;
    *out = cube__init__v1__reply__unpack(NULL, n, answer);
    if (!*out)
        return err_set(e, ERR_INTERNAL, "the guest's answer cannot be read");
    if (*(*out)->error_code)
        return err_set(e, err_code_parse((*out)->error_code), "%s", (*out)->error);
    return 0;
}

static int simple(int fd, Request *q, int64_t end_ms, struct err *e)
{
    Reply *r = NULL;
    int rc = call(fd, q, end_ms, &r, e);
    if (r)
        cube__init__v1__reply__free_unpacked(r, NULL);
    return rc;
}

static int identify(int fd, int64_t end_ms, struct err *e)
{
    uint8_t random[64], machine[16];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    random_bytes(random, sizeof random);
    random_bytes(machine, sizeof machine);
    Cube__Init__V1__SetIdentity id = CUBE__INIT__V1__SET_IDENTITY__INIT;
    id.sandbox_id = (char *)"vm";
    id.template_id = (char *)"vm";
    id.hostname = (char *)"vm";
    id.gen = 1;
    id.realtime_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    id.random = (ProtobufCBinaryData){sizeof random, random};
    id.machine_id = (ProtobufCBinaryData){sizeof machine, machine};
    id.default_user = (char *)"root";
    id.thaw = true;
    Request q = CUBE__INIT__V1__REQUEST__INIT;
    q.id = 2;
    q.op_case = CUBE__INIT__V1__REQUEST__OP_SET_IDENTITY;
    q.set_identity = &id;
    return simple(fd, &q, end_ms, e);
}

/* envd is started by cube-init at boot; the health answer says when it serves. */
static int wait_healthy(int fd, int64_t end_ms, struct err *e)
{
    Cube__Init__V1__Health health = CUBE__INIT__V1__HEALTH__INIT;
    Request q = CUBE__INIT__V1__REQUEST__INIT;
    q.op_case = CUBE__INIT__V1__REQUEST__OP_HEALTH;
    q.health = &health;
    for (q.id = 3;; q.id++) {
        Reply *r = NULL;
        int rc = call(fd, &q, end_ms, &r, e);
        bool ok = rc == 0 && r->result_case == CUBE__INIT__V1__REPLY__RESULT_HEALTH && r->health->envd_ok;
        if (r)
            cube__init__v1__reply__free_unpacked(r, NULL);
        if (rc < 0 || ok)
            return rc;
        poll(NULL, 0, 5);
    }
}

int guest_ctl_identify(int fd, int64_t timeout_ms, struct err *e)
{
    _cleanup_close_ int owned = fd;
    int64_t end_ms = clock_boot_ms() + timeout_ms;
    Cube__Init__V1__Hello hello = CUBE__INIT__V1__HELLO__INIT;
    Request q = CUBE__INIT__V1__REQUEST__INIT;
    hello.version = 1;
    q.id = 1;
    q.op_case = CUBE__INIT__V1__REQUEST__OP_HELLO;
    q.hello = &hello;
    if (fd < 0 || simple(fd, &q, end_ms, e) < 0 || identify(fd, end_ms, e) < 0)
        return -1;
    return wait_healthy(fd, end_ms, e);
}
