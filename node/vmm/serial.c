/* The serial log. Bytes are gathered to lines so that a guest costs one write per line, not per character.
 * Called only by vCPU threads under the VM's I/O lock.
 *
 * The transmitter is always empty, so "transmitter empty" is told as long as its interrupt is enabled, and a
 * read of IIR does not take it back as it does in a 16550. Linux enables it twice when the port is opened and
 * reads IIR after each; with two CPUs its own interrupt handler can read IIR on the other one in between, and
 * a port that then says "nothing" counts as one that forgets interrupts: the driver polls it by a timer ever
 * after, five times a second in each clone of the guest. */
#include "node/vmm/serial.h"

#include <string.h>
#include <unistd.h>

/* Registers and bits of the 16550 (National Semiconductor PC16550D). */
enum { REG_DATA, REG_IER, REG_IIR_FCR, REG_LCR, REG_MCR, REG_LSR, REG_MSR, REG_SCR };
#define IER_THRI 0x02
#define IIR_NONE 0x01
#define IIR_THRI 0x02
#define IIR_FIFO 0xc0
#define LCR_DLAB 0x80
#define LSR_EMPTY 0x60 /* transmitter and shift register are empty */
#define MSR_READY 0xb0 /* carrier, data set ready, clear to send */

void serial_flush(struct serial *s)
{
    uint32_t n = s->line_len;

    if (n > 12 && memmem(s->line, n, "Kernel panic", 12))
        s->panicked = true;
    s->line_len = 0;
    if (s->log_fd < 0 || n == 0)
        return;
    if (s->logged + n > SERIAL_LOG_MAX) {
        s->dropped += n;
        return;
    }
    if (write(s->log_fd, s->line, n) == (ssize_t)n)
        s->logged += n;
    else
        s->dropped += n;
}

static void put(struct serial *s, uint8_t c)
{
    s->line[s->line_len++] = (char)c;
    if (c == '\n' || s->line_len == sizeof s->line)
        serial_flush(s);
}

bool serial_pending(const struct serial *s)
{
    return s->ier & IER_THRI;
}

uint8_t serial_read(struct serial *s, uint16_t port)
{
    bool dlab = s->lcr & LCR_DLAB;

    switch (port - SERIAL_PORT) {
    case REG_DATA:
        return dlab ? s->dll : 0;
    case REG_IER:
        return dlab ? s->dlm : s->ier;
    case REG_IIR_FCR: {
        uint8_t fifo = s->fcr & 1 ? IIR_FIFO : 0;
        return (serial_pending(s) ? IIR_THRI : IIR_NONE) | fifo;
    }
    case REG_LCR:
        return s->lcr;
    case REG_MCR:
        return s->mcr;
    case REG_LSR:
        return LSR_EMPTY;
    case REG_MSR:
        return MSR_READY;
    default:
        return s->scr;
    }
}

bool serial_write(struct serial *s, uint16_t port, uint8_t v)
{
    bool dlab = s->lcr & LCR_DLAB;

    switch (port - SERIAL_PORT) {
    case REG_DATA:
        if (dlab) {
            s->dll = v;
            return false;
        }
        put(s, v);
        return serial_pending(s);
    case REG_IER:
        if (dlab) {
            s->dlm = v;
            return false;
        }
        s->ier = v & 0x0f;
        return serial_pending(s);
    case REG_IIR_FCR:
        s->fcr = v;
        return false;
    case REG_LCR:
        s->lcr = v;
        return false;
    case REG_MCR:
        s->mcr = v;
        return false;
    case REG_SCR:
        s->scr = v;
        return false;
    default:
        return false;
    }
}
