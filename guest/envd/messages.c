/* The message tables. Names and numbers are those of contracts/e2b.md §4.3 and §4.4. */
#include "guest/envd/messages.h"

#define NONE FIELD_NO_PRESENCE
#define FIELD(num_, kind_, name_, json_, type, member)                                                       \
    {                                                                                                        \
        .num = (num_), .kind = (kind_), .name = (name_), .json = (json_),                                    \
        .at = offsetof(struct type, member), .has_at = NONE                                                  \
    }
#define FIELD_HAS(num_, kind_, name_, json_, type, member, has)                                              \
    {                                                                                                        \
        .num = (num_), .kind = (kind_), .name = (name_), .json = (json_),                                    \
        .at = offsetof(struct type, member), .has_at = offsetof(struct type, has)                            \
    }
#define SUB(num_, name_, json_, type, member, message_)                                                      \
    {                                                                                                        \
        .num = (num_), .kind = F_MESSAGE, .name = (name_), .json = (json_),                                  \
        .at = offsetof(struct type, member), .has_at = NONE, .sub = &(message_)                              \
    }
#define SUB_HAS(num_, name_, json_, type, member, message_, has)                                             \
    {                                                                                                        \
        .num = (num_), .kind = F_MESSAGE, .name = (name_), .json = (json_),                                  \
        .at = offsetof(struct type, member), .has_at = offsetof(struct type, has), .sub = &(message_)        \
    }
#define MESSAGE(var, type, ...)                                                                              \
    static const struct field var##_fields[] = {__VA_ARGS__};                                                \
    const struct message var = {sizeof(struct type), sizeof(var##_fields) / sizeof(struct field),            \
                                var##_fields}

struct nothing {
    char unused;
};
const struct message msg_empty = {sizeof(struct nothing), 0, NULL};

static const struct enum_name signals[] = {
    {"SIGNAL_UNSPECIFIED", 0}, {"SIGNAL_SIGTERM", 15}, {"SIGNAL_SIGKILL", 9}, {NULL, 0}};

#define msg_selector_fields_def                                                                              \
    FIELD_HAS(1, F_UINT32, "pid", "pid", msg_selector, pid, has_pid),                                        \
        FIELD_HAS(2, F_STRING, "tag", "tag", msg_selector, tag, has_tag)
static const struct field selector_fields[] = {msg_selector_fields_def};
static const struct message selector = {sizeof(struct msg_selector), 2, selector_fields};

static const struct field size_fields[] = {FIELD(1, F_UINT32, "cols", "cols", msg_size, cols),
                                           FIELD(2, F_UINT32, "rows", "rows", msg_size, rows)};
static const struct message size = {sizeof(struct msg_size), 2, size_fields};

static const struct field pty_fields[] = {SUB_HAS(1, "size", "size", msg_pty, size, size, has_size)};
static const struct message pty = {sizeof(struct msg_pty), 1, pty_fields};

static const struct field process_fields[] = {
    FIELD(1, F_STRING, "cmd", "cmd", msg_process, cmd),
    FIELD(2, F_STRINGS, "args", "args", msg_process, args),
    FIELD(3, F_MAP, "envs", "envs", msg_process, envs),
    FIELD_HAS(4, F_STRING, "cwd", "cwd", msg_process, cwd, has_cwd),
};
static const struct message process = {sizeof(struct msg_process), 4, process_fields};

static const struct field input_fields[] = {
    FIELD_HAS(1, F_BYTES, "stdin", "stdin", msg_input, in, has_stdin),
    FIELD_HAS(2, F_BYTES, "pty", "pty", msg_input, pty, has_pty),
};
static const struct message input = {sizeof(struct msg_input), 2, input_fields};

static const struct field stream_start_fields[] = {
    SUB(1, "process", "process", msg_stream_start, process, selector)};
static const struct message stream_start = {sizeof(struct msg_stream_start), 1, stream_start_fields};
static const struct field stream_data_fields[] = {SUB(2, "input", "input", msg_stream_data, input, input)};
static const struct message stream_data = {sizeof(struct msg_stream_data), 1, stream_data_fields};

MESSAGE(msg_start, msg_start, SUB_HAS(1, "process", "process", msg_start, process, process, has_process),
        SUB_HAS(2, "pty", "pty", msg_start, pty, pty, has_pty),
        FIELD_HAS(3, F_STRING, "tag", "tag", msg_start, tag, has_tag),
        FIELD_HAS(4, F_BOOL, "stdin", "stdin", msg_start, stdin_on, has_stdin));
MESSAGE(msg_select, msg_select, SUB(1, "process", "process", msg_select, process, selector));
MESSAGE(msg_update, msg_update, SUB(1, "process", "process", msg_update, process, selector),
        SUB_HAS(2, "pty", "pty", msg_update, pty, pty, has_pty));
MESSAGE(msg_send_input, msg_send_input, SUB(1, "process", "process", msg_send_input, process, selector),
        SUB(2, "input", "input", msg_send_input, input, input));
MESSAGE(msg_stream_input, msg_stream_input,
        SUB_HAS(1, "start", "start", msg_stream_input, start, stream_start, has_start),
        SUB_HAS(2, "data", "data", msg_stream_input, data, stream_data, has_data),
        SUB_HAS(3, "keepalive", "keepalive", msg_stream_input, data, msg_empty, has_keepalive));
MESSAGE(msg_signal, msg_signal, SUB(1, "process", "process", msg_signal, process, selector),
        {.num = 2,
         .kind = F_ENUM,
         .name = "signal",
         .json = "signal",
         .at = offsetof(struct msg_signal, signal),
         .has_at = NONE,
         .names = signals});

MESSAGE(msg_path, msg_path, FIELD(1, F_STRING, "path", "path", msg_path, path));
MESSAGE(msg_list_dir, msg_list_dir, FIELD(1, F_STRING, "path", "path", msg_list_dir, path),
        FIELD_HAS(2, F_UINT32, "depth", "depth", msg_list_dir, depth, has_depth));
MESSAGE(msg_move, msg_move, FIELD(1, F_STRING, "source", "source", msg_move, source),
        FIELD(2, F_STRING, "destination", "destination", msg_move, destination));
MESSAGE(msg_watch, msg_watch, FIELD(1, F_STRING, "path", "path", msg_watch, path),
        FIELD(2, F_BOOL, "recursive", "recursive", msg_watch, recursive),
        FIELD(3, F_BOOL, "include_entry", "includeEntry", msg_watch, include_entry),
        FIELD(4, F_BOOL, "allow_network_mounts", "allowNetworkMounts", msg_watch, allow_network_mounts));
MESSAGE(msg_watcher, msg_watcher, FIELD(1, F_STRING, "watcher_id", "watcherId", msg_watcher, watcher_id));

/* JSON only: numbers are arbitrary but distinct. sandboxID and templateID are ours, sent by cube-init. */
MESSAGE(msg_init, msg_init, FIELD_HAS(1, F_MAP, "envVars", "envVars", msg_init, envs, has_envs),
        FIELD_HAS(2, F_STRING, "accessToken", "accessToken", msg_init, token, has_token),
        FIELD_HAS(3, F_STRING, "timestamp", "timestamp", msg_init, timestamp, has_timestamp),
        FIELD(4, F_STRING, "defaultUser", "defaultUser", msg_init, user),
        FIELD(5, F_STRING, "defaultWorkdir", "defaultWorkdir", msg_init, workdir),
        FIELD_HAS(6, F_STRING, "caBundle", "caBundle", msg_init, ca_bundle, has_ca_bundle),
        FIELD(7, F_STRING, "lifecycleID", "lifecycleID", msg_init, lifecycle_id),
        FIELD(8, F_STRING, "sandboxID", "sandboxID", msg_init, sandbox_id),
        FIELD(9, F_STRING, "templateID", "templateID", msg_init, template_id),
        FIELD(10, F_GIVEN, "volumeMounts", "volumeMounts", msg_init, mounts),
        FIELD(11, F_GIVEN, "hyperloopIP", "hyperloopIP", msg_init, hyperloop));
MESSAGE(msg_compose, msg_compose, FIELD(1, F_STRINGS, "source_paths", "sourcePaths", msg_compose, sources),
        FIELD(2, F_STRING, "destination", "destination", msg_compose, destination),
        FIELD(3, F_STRING, "username", "username", msg_compose, username));
