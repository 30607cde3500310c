/* One HTTP/2 client connection and its streams; the parts of the front share them. */
#pragma once

#include "proxy/h2.h"

struct front2 {
    struct dp_io io; /* first */
    struct front_link link;
    struct worker *worker;
    struct share *client;
    nghttp2_session *session;
    struct stream2 *all;
    bool closed, tls, draining, read_again;
    bool broken;      /* it broke the protocol, and the access log says so */
    bool client_left; /* its GOAWAY came: no new streams */
    bool leaving;     /* it was told that ours will come: streams that it has sent by then are still taken */
    uint32_t streams;
    size_t held; /* memory of its streams' bodies, both ways */
    int64_t active_ms;
    int64_t bodies_ms; /* when the bodies that are not complete were last looked at */
    int64_t head_ms;   /* when a head began that is not complete; 0 = none */
    struct dp_timer timer;
    struct dp_task send, bury;
    char address[46];
};

struct stream2 {
    struct front2 *c;
    struct stream2 *next, **link;
    int32_t id;
    struct exchange *x;
    struct buf fields, cookie, method, path, authority, host;
    uint32_t field_bytes, field_count;
    bool head_done, request_ended, too_large, refused;
    struct buf in;     /* body bytes that the back does not take yet */
    size_t unconsumed; /* received and not yet given back to flow control */
    size_t dropped;    /* received after the whole answer */
    struct h2_out out;
    bool has_body;  /* a data provider was submitted */
    bool held_back; /* the service was told to wait, and is to be told when it may go on */
};

extern const struct front_ops front2_ops; /* front2_answer.c */

/** A body's memory grew or shrank from `before` bytes to `after`. */
void front2_count(struct front2 *c, size_t before, size_t after);
void front2_stream_free(struct stream2 *s); /* cancels its exchange */
/** Sends what the session has, from the loop: never from inside its callbacks. */
void front2_send_soon(struct front2 *c);
/** Gives the received bytes back to flow control: the service has taken them. */
void front2_consume(struct stream2 *s);
/** Hands over what the back takes now. */
void front2_request_feed(struct stream2 *s);
/** The connection ends for the client's fault: says so once in the access log. */
void front2_broken(struct front2 *c, int status);
/** Counts the time that clients let services wait for bodies. Whether any body is due. */
bool front2_bodies_look(struct front2 *c);
/** Sets the callbacks that receive requests (front2_request.c). */
void front2_request_callbacks(nghttp2_session_callbacks *cb);
