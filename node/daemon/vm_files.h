/* Directories and sockets of a VM: <store>/vm/<name> (layer, console), <run>/warm/<name> (sockets before it
 * has an owner) and <run>/sb/<sandbox>/<gen> (the same directory, published). */
#pragma once

#include "node/daemon/node.h"

/** Makes both directories, the empty files in the first one and the two listening sockets. All descriptors
 * are the caller's. */
int vm_files_make(struct node *n, const char *name, int *file_dir, int *sock_dir, int *ctl_fd, int *in_fd,
                  struct err *e);

/** Opens the directories of a published VM. */
int vm_files_open(struct node *n, const char *name, const char *sandbox_id, uint64_t gen, int *file_dir,
                  int *sock_dir, struct err *e);

/** Removes <store>/vm/<name> and <run>/warm/<name>; when the process is known to have `ended` the first one
 * may be used again. */
void vm_files_remove(struct node *n, const char *name, bool ended);

/** A listening or connected stream socket named `name` in the directory `dir` (works for paths of any
 * length). */
int socket_listen_at(int dir, const char *name, int mode, struct err *e);
int socket_connect_at(int dir, const char *name, struct err *e);
