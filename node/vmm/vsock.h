/* virtio-vsock (VIRTIO 1.2 §5.10): the only way into a guest. Host side are two listening Unix sockets
 * (internal.md §5): `ctl` → guest port 1; `in` → 2 bytes of port, then envd (49983) directly or any other
 * port through the gateway on guest port 2, after one status byte. Connections that the guest opens are
 * refused. */
#pragma once

#include "node/vmm/virtio.h"
#include "node/vmm/worker.h"

#include <linux/virtio_vsock.h>

#define VSOCK_CID_HOST 2u
#define VSOCK_CID_GUEST 3u
#define VSOCK_CONNS_MAX 512u /* a power of two: the slot is the low bits of the host's port */
#define VSOCK_BUF_BYTES (256u << 10)
#define VSOCK_CREDIT_STEP (64u << 10) /* announce freed space in steps of this */
#define VSOCK_PORT_CTL 1u
#define VSOCK_PORT_GATEWAY 2u
#define VSOCK_PORT_ENVD 49983u

/* A guest's kernel answers a REQUEST by itself; when it takes longer than this, somebody should look
 * (late.h). */
#define VSOCK_LATE_US 1000000
#define VSOCK_LATE_PAUSE_US 10000000 /* between two looks */

/* First byte that the relay reads (internal.md §5). */
#define VSOCK_STATUS_OK 0
#define VSOCK_STATUS_NOT_READY 4

enum vsock_kind { VSOCK_CTL, VSOCK_IN };
enum vsock_state {
    VSOCK_PORT_WANTED, /* in: the port has not been read yet */
    VSOCK_CONNECTING,  /* REQUEST to be sent, or sent and not answered */
    VSOCK_OPEN,
    VSOCK_ENDING, /* the socket is gone; waiting for the guest to forget the connection */
};

/* What a connection still has to tell the guest. */
#define VSOCK_SAY_REQUEST 1u
#define VSOCK_SAY_SHUTDOWN 2u
#define VSOCK_SAY_CREDIT 4u

struct vsock;
struct vsock_conn {
    struct watch io;
    struct vsock *v;
    enum vsock_kind kind;
    enum vsock_state state;
    uint32_t host_port, guest_port;
    uint32_t say;
    int64_t since_us;    /* of the accept */
    int64_t asked_us;    /* of the last REQUEST, or its being due */
    bool late;           /* not answered within VSOCK_LATE_US */
    int64_t retry_at_us; /* ctl: when to send REQUEST again; 0 = not waiting */
    bool readable, host_eof, host_gone, guest_wont_send, guest_wont_receive, shut_sent, wr_closed;
    uint8_t prefix[2]; /* gateway: the port, sent to the guest before anything else */
    uint8_t prefix_len, port_len;
    uint8_t port_bytes[2];
    uint32_t peer_buf, peer_fwd,
        tx_cnt; /* host → guest: the guest's buffer, what it consumed, what was sent */
    uint32_t rx_cnt, fwd_cnt, fwd_told; /* guest → host: received, passed on, last announced */
    uint8_t *buf; /* guest's bytes that the socket did not take; VSOCK_BUF_BYTES, made when needed */
    uint32_t buf_at, buf_len;
    struct vsock_conn *next_ready;
    bool queued;
};

struct vsock_ports {
    uint32_t host, guest;
};

struct vsock {
    struct virtio_dev dev;
    struct virtio_vsock_config config;
    struct worker *worker;
    struct watch kick[3], ctl, in, timer;
    bool listening, timer_armed, tx_blocked;
    bool drop_wanted; /* the driver reset the device: the worker has to drop every connection */
    uint32_t port_epoch;
    unsigned nconns;
    struct vsock_conn *conns[VSOCK_CONNS_MAX];
    struct vsock_conn *ready_head, *ready_tail; /* connections with something to tell or send to the guest */
    struct vsock_ports resets[VSOCK_CONNS_MAX + 64]; /* RSTs to send, oldest first */
    unsigned nresets;
    int late_fd; /* eventfd: tells the control thread that `late_port` does not answer */
    uint32_t late_port;
    int64_t late_next_us; /* no look before */
    uint64_t to_guest_bytes, from_guest_bytes;
};

int vsock_init(struct vsock *v, const struct guest_mem *mem, struct worker *w, struct err *e);

/** The listening sockets (taken over); accepts as soon as the guest's driver is ready. */
void vsock_attach(struct vsock *v, int ctl_fd, int in_fd);
void vsock_free(struct vsock *v);

/** Connections that the guest believes in, for a snapshot; at most VSOCK_CONNS_MAX. */
unsigned vsock_save(const struct vsock *v, struct vsock_ports *out);
/** After a restore: an RST for each goes out before any new REQUEST (experiments.md §5), on a new range of
 * host ports. */
int vsock_load(struct vsock *v, const struct vsock_ports *ports, unsigned n, struct err *e);

/* Between vsock.c (packets) and vsock_conn.c (sockets). The device's lock is held. */
void vsock_conn_ready(struct vsock_conn *c);                    /* has something for the guest: queue it */
void vsock_conn_free(struct vsock_conn *c);                     /* closes the socket, forgets everything */
void vsock_conn_reset(struct vsock_conn *c);                    /* tells the guest RST, then frees */
void vsock_conn_opened(struct vsock_conn *c);                   /* the guest accepted */
void vsock_conn_refused(struct vsock_conn *c);                  /* the guest sent RST */
void vsock_conn_shutdown(struct vsock_conn *c, uint32_t flags); /* the guest sent SHUTDOWN */
bool vsock_conn_receive(struct vsock_conn *c, const struct iovec *iov, unsigned n,
                        uint32_t len); /* false: reset it */
void vsock_reset_say(struct vsock *v, uint32_t host_port, uint32_t guest_port);
void vsock_accept(struct vsock *v, struct watch *x, enum vsock_kind kind);
void vsock_tick(struct vsock *v); /* deadlines of connections that are not open yet */
void vsock_listen(struct vsock *v, bool on);
/** Sends what is due into the guest's receive buffers; then continues with its transmissions if they waited.
 */
void vsock_pump(struct vsock *v);
