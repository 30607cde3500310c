/* What sockets of lib/dp are made with: congestion control without pacing on loopback, the host's elsewhere.
 */
#include "lib/base/cleanup.h"
#include "lib/dp/io.h"
#include "lib/dp/loop.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static const char *control_of(int fd, char name[16])
{
    socklen_t len = 16;
    memset(name, 0, 16);
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len), 0);
    return name;
}

static const char *control_of_host(char name[16])
{
    FILE *f = fopen("/proc/sys/net/ipv4/tcp_congestion_control", "re");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%15s", name), 1);
    fclose(f);
    return name;
}

/* The congestion control of a connection to a listener at `address`, at the listener's end. */
static void accepted_control(const char *address, char name[16])
{
    struct err e = {0};
    _cleanup_close_ int listener = dp_listen(address, false, &e);
    assert_true(listener >= 0);
    struct sockaddr_in sa;
    socklen_t len = sizeof sa;
    assert_int_equal(getsockname(listener, (struct sockaddr *)&sa, &len), 0);
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    _cleanup_close_ int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(client, (struct sockaddr *)&sa, sizeof sa), 0);
    _cleanup_close_ int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(fd >= 0);
    control_of(fd, name);
}

static void loopback_is_not_paced(void **state)
{
    char name[16], host[16];
    accepted_control("127.0.0.1:0", name);
    assert_string_equal(name, "reno");
    accepted_control("0.0.0.0:0", name);
    assert_string_equal(name, control_of_host(host));
}

static void a_connection_is_paced_by_where_it_goes(void **state)
{
    static const struct {
        const char *address;
        bool loopback;
    } of[] = {{"127.0.0.1", true}, {"127.9.9.9", true}, {"10.0.0.1", false}, {"126.255.255.255", false}};
    char name[16], host[16];
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct sockaddr_in sa = {.sin_family = AF_INET};
        assert_int_equal(inet_pton(AF_INET, of[i].address, &sa.sin_addr), 1);
        _cleanup_close_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        dp_io_unpaced(fd, (struct sockaddr *)&sa);
        assert_string_equal(control_of(fd, name), of[i].loopback ? "reno" : control_of_host(host));
    }
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    _cleanup_close_ int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return; /* a host without IPv6 */
    dp_io_unpaced(fd, (struct sockaddr *)&six);
    assert_string_equal(control_of(fd, name), "reno");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(loopback_is_not_paced),
                                       cmocka_unit_test(a_connection_is_paced_by_where_it_goes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
