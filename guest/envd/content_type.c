/* Content types: a short table of extensions, then a look at the first bytes, as browsers do. */
#include "guest/envd/content_type.h"

#include <string.h>
#include <strings.h>

#include "guest/envd/codec.h"

static const struct {
    const char *ext, *type;
} by_ext[] = {
    {"html", "text/html; charset=utf-8"},
    {"htm", "text/html; charset=utf-8"},
    {"css", "text/css; charset=utf-8"},
    {"js", "text/javascript; charset=utf-8"},
    {"mjs", "text/javascript; charset=utf-8"},
    {"json", "application/json"},
    {"txt", "text/plain; charset=utf-8"},
    {"md", "text/markdown; charset=utf-8"},
    {"csv", "text/csv; charset=utf-8"},
    {"xml", "text/xml; charset=utf-8"},
    {"svg", "image/svg+xml"},
    {"png", "image/png"},
    {"jpg", "image/jpeg"},
    {"jpeg", "image/jpeg"},
    {"gif", "image/gif"},
    {"webp", "image/webp"},
    {"ico", "image/vnd.microsoft.icon"},
    {"pdf", "application/pdf"},
    {"zip", "application/zip"},
    {"gz", "application/gzip"},
    {"tar", "application/x-tar"},
    {"wasm", "application/wasm"},
    {"mp3", "audio/mpeg"},
    {"wav", "audio/wav"},
    {"mp4", "video/mp4"},
    {"webm", "video/webm"},
};

static const struct {
    const char *magic;
    size_t n;
    const char *type;
} by_magic[] = {
    {"\x89PNG\r\n\x1a\n", 8, "image/png"},
    {"\xff\xd8\xff", 3, "image/jpeg"},
    {"GIF8", 4, "image/gif"},
    {"%PDF-", 5, "application/pdf"},
    {"PK\x03\x04", 4, "application/zip"},
    {"\x1f\x8b\x08", 3, "application/gzip"},
};

const char *content_type_of(const char *name, const void *head, size_t n)
{
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof(by_ext) / sizeof(*by_ext); i++)
        if (!strcasecmp(dot + 1, by_ext[i].ext))
            return by_ext[i].type;
    for (size_t i = 0; i < sizeof(by_magic) / sizeof(*by_magic); i++)
        if (n >= by_magic[i].n && !memcmp(head, by_magic[i].magic, by_magic[i].n))
            return by_magic[i].type;
    const unsigned char *p = head;
    for (size_t i = 0; i < n; i++)
        if (p[i] < 9 || (p[i] > 13 && p[i] < 32 && p[i] != 27))
            return "application/octet-stream";
    return "text/plain; charset=utf-8";
}
