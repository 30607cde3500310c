/* Shared by the two decoders. */
#pragma once

#include "guest/envd/codec.h"

const char *codec_decode_json(const struct message *m, const char *p, size_t n, void *out, struct arena *a);
const char *codec_decode_proto(const struct message *m, const char *p, size_t n, void *out, struct arena *a);

bool strings_add(struct strings *l, const char *s, struct arena *a);
bool pairs_add(struct pairs *l, struct pair p, struct arena *a);
