/* Every message from JSON; memory is bounded, strings are UTF-8 without NUL. */
#include "guest/envd/messages.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct message *const all[] = {&msg_start,  &msg_send_input, &msg_stream_input,
                                                &msg_signal, &msg_list_dir,   &msg_watch,
                                                &msg_init,   &msg_compose,    &msg_empty};
    union {
        struct msg_start start;
        struct msg_init init;
        struct msg_stream_input input;
    } out;
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        struct arena a = {.limit = 1 << 20};
        const char *bad = codec_decode(CODEC_JSON, all[i], (const char *)data, n, &out, &a);
        if (!bad && all[i] == &msg_start) {
            if (!utf8_valid(out.start.process.cmd, strlen(out.start.process.cmd)))
                abort();
            for (size_t k = 0; k < out.start.process.args.n; k++)
                if (!utf8_valid(out.start.process.args.v[k], strlen(out.start.process.args.v[k])))
                    abort();
        }
        arena_free(&a);
    }
    return 0;
}
