/* The request messages of process.Process and filesystem.Filesystem, and of the JSON bodies of /init and
 * /files/compose (contracts/e2b.md §3.1, §3.5, §4.3, §4.4). */
#pragma once

#include "guest/envd/codec.h"

struct msg_selector {
    bool has_pid, has_tag;
    uint32_t pid;
    const char *tag;
};
struct msg_size {
    uint32_t cols, rows;
};
struct msg_pty {
    bool has_size;
    struct msg_size size;
};
struct msg_process {
    const char *cmd, *cwd;
    bool has_cwd;
    struct strings args;
    struct pairs envs;
};
struct msg_start {
    bool has_process, has_pty, has_tag, has_stdin, stdin_on;
    struct msg_process process;
    struct msg_pty pty;
    const char *tag;
};
struct msg_select { /* Connect, CloseStdin */
    struct msg_selector process;
};
struct msg_update {
    struct msg_selector process;
    bool has_pty;
    struct msg_pty pty;
};
struct msg_input {
    bool has_stdin, has_pty;
    struct bytes in, pty;
};
struct msg_send_input {
    struct msg_selector process;
    struct msg_input input;
};
struct msg_stream_start {
    struct msg_selector process;
};
struct msg_stream_data {
    struct msg_input input;
};
struct msg_stream_input {
    bool has_start, has_data, has_keepalive;
    struct msg_stream_start start;
    struct msg_stream_data data;
};
struct msg_signal {
    struct msg_selector process;
    int32_t signal;
};
struct msg_path {
    const char *path;
};
struct msg_list_dir {
    const char *path;
    bool has_depth;
    uint32_t depth;
};
struct msg_move {
    const char *source, *destination;
};
struct msg_watch {
    const char *path;
    bool recursive, include_entry, allow_network_mounts;
};
struct msg_watcher {
    const char *watcher_id;
};
struct msg_init {
    bool has_envs, has_token, has_timestamp, has_ca_bundle;
    bool mounts, hyperloop; /* not empty: options that nothing here can honour */
    struct pairs envs;
    const char *token, *timestamp, *user, *workdir, *ca_bundle, *lifecycle_id, *sandbox_id, *template_id;
};
struct msg_compose {
    struct strings sources;
    const char *destination, *username;
};

extern const struct message msg_empty, msg_start, msg_select, msg_update, msg_send_input, msg_stream_input,
    msg_signal, msg_path, msg_list_dir, msg_move, msg_watch, msg_watcher, msg_init, msg_compose;
