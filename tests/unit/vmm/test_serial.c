/* The serial port as Linux's driver sees it, above all where two CPUs look at it at once. */
#include "node/vmm/serial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { DATA = SERIAL_PORT, IER, IIR, LCR, MCR, LSR };
#define THRI 0x02
#define NO_INTERRUPT 0x01

static bool pending(struct serial *s)
{
    return !(serial_read(s, IIR) & NO_INTERRUPT);
}

/* What the driver does when the port is opened; its interrupt handler on another CPU reads IIR at any of
 * these moments. A port that once says "nothing" while the interrupt is enabled is polled for ever. */
static void test_opened_while_the_handler_looks(void **state)
{
    for (unsigned reads = 0; reads < 4; reads++) {
        struct serial s = {.log_fd = -1};

        for (unsigned round = 0; round < 2; round++) {
            assert_true(serial_write(&s, IER, THRI));
            for (unsigned n = 0; n < reads; n++)
                assert_true(pending(&s));
            assert_true(serial_read(&s, LSR) & 0x20);
            assert_true(pending(&s));
            assert_false(serial_write(&s, IER, 0));
            assert_false(pending(&s));
        }
    }
}

/* Each byte of a driver that waits for the interrupt raises it; one that polls is left alone. */
static void test_bytes_raise_the_interrupt_when_enabled(void **state)
{
    struct serial s = {.log_fd = -1};

    assert_false(serial_write(&s, DATA, 'a'));
    assert_false(pending(&s));
    assert_true(serial_write(&s, IER, THRI));
    assert_true(serial_write(&s, DATA, 'b'));
    assert_true(pending(&s));
    assert_int_equal(s.line_len, 2);
}

/* With the divisor latch open the first two registers are the baud rate. */
static void test_divisor_is_no_interrupt_register(void **state)
{
    struct serial s = {.log_fd = -1};

    serial_write(&s, LCR, 0x80);
    assert_false(serial_write(&s, IER, THRI));
    assert_false(serial_write(&s, DATA, 'a'));
    assert_false(pending(&s));
    assert_int_equal(s.line_len, 0);
    assert_int_equal(serial_read(&s, DATA), 'a');
    assert_int_equal(serial_read(&s, IER), THRI);
    serial_write(&s, LCR, 3);
    assert_int_equal(serial_read(&s, IER), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opened_while_the_handler_looks),
        cmocka_unit_test(test_bytes_raise_the_interrupt_when_enabled),
        cmocka_unit_test(test_divisor_is_no_interrupt_register),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
