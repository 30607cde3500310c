/* Every message from binary protobuf; what was decoded and encoded again decodes to the same. */
#include "guest/envd/messages.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct arena a = {.limit = 1 << 20};
    struct msg_start s, again;
    struct msg_send_input in;
    struct msg_stream_input stream;
    struct buf b = {0};
    codec_decode(CODEC_PROTO, &msg_send_input, (const char *)data, n, &in, &a);
    codec_decode(CODEC_PROTO, &msg_stream_input, (const char *)data, n, &stream, &a);
    if (!codec_decode(CODEC_PROTO, &msg_start, (const char *)data, n, &s, &a)) {
        struct msgw w;
        msgw_start(&w, CODEC_PROTO, &b);
        msgw_open(&w, "process", 1);
        msgw_str(&w, "cmd", 1, s.process.cmd);
        msgw_strings(&w, "args", 2, s.process.args.v, s.process.args.n);
        msgw_map(&w, "envs", 3, s.process.envs.v, s.process.envs.n);
        msgw_close(&w);
        msgw_end(&w);
        if (codec_decode(CODEC_PROTO, &msg_start, b.data, b.len, &again, &a) == NULL &&
            (strcmp(again.process.cmd, s.process.cmd) || again.process.args.n != s.process.args.n ||
             again.process.envs.n != s.process.envs.n))
            abort();
    }
    buf_free(&b);
    arena_free(&a);
    return 0;
}
