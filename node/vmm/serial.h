/* A 16550 UART (COM1) that only speaks: the guest's boot log, bounded. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define SERIAL_PORT 0x3f8u
#define SERIAL_IRQ 4u
#define SERIAL_LOG_MAX (1u << 20) /* bytes a guest may put into its log file; the rest is dropped */

struct serial {
    int log_fd; /* -1: everything is dropped */
    uint8_t ier, lcr, mcr, scr, dll, dlm, fcr;
    bool panicked; /* a line said "Kernel panic": the reset that follows was a crash */
    uint32_t line_len;
    uint64_t logged, dropped;
    char line[256];
};

/** Registers that a snapshot keeps; part of state format 1. `pending` follows from ier and is not read. */
struct serial_state {
    uint8_t ier, lcr, mcr, scr, dll, dlm, fcr, pending;
};

uint8_t serial_read(struct serial *s, uint16_t port);
/** True while an interrupt is to be told of: "transmitter empty" is enabled. */
bool serial_pending(const struct serial *s);
/** Returns true when the interrupt line has to be pulsed. */
bool serial_write(struct serial *s, uint16_t port, uint8_t v);
/** Writes what was collected of an unfinished line. */
void serial_flush(struct serial *s);
