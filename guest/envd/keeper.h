/* Running processes outlive this daemon: cube-init keeps their descriptors and hands them to a restarted
 * envd. */
#pragma once

#include <sys/types.h>

struct proc;
struct notify_msg;

/** Uses this connected SEQPACKET socket (guest/common/notify.h). Adopts what the predecessor left. Without a
 * call, and when alone on a host, the others do nothing. */
int keeper_open(int fd);

void keeper_store(const struct proc *p);
void keeper_forget(pid_t pid);

/** As keeper_forget, but a successor is told how it ended, until this time of the loop's clock. */
void keeper_ended(const struct proc *p, int64_t until_ms);

/** Signals the group of an adopted process through cube-init, which reaps it. Returns 0 or -1 with errno. */
int keeper_signal(pid_t pid, int sig);

/** The process's stdin is closed: its keeper must let go of it, too, or the process never sees the end. */
void keeper_stdin_closed(pid_t pid);

/** Sends an event message; drops it when the channel is full or absent. */
void keeper_send(const struct notify_msg *m);
