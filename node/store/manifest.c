/* Owns the format of manifest.json. Invariant: what `manifest_parse` accepts has only names that stay inside
 * the artifact's directory, hashes of the right shape and sizes that are not negative, so later code needs no
 * second check. */
#include "node/store/manifest.h"

#include "lib/base/cleanup.h"
#include "lib/base/ids.h"
#include "lib/base/jsonw.h"

#include <jansson.h>
#include <openssl/evp.h>
#include <string.h>

/* The last member, over all bytes before its comma: what jansson reads is what was written. */
#define SUM_START ",\"sum\":\""
#define SUM_END "\"}\n"
#define SUM_BYTES (sizeof SUM_START - 1 + 64 + sizeof SUM_END - 1)

static const char *const kinds[] = {"template", "class-snapshot", "snapshot", "object"};

static void cleanup_json(json_t **j)
{
    if (*j)
        json_decref(*j);
}

static bool is_hex64(const char *s)
{
    return strlen(s) == 64 && strspn(s, "0123456789abcdef") == 64;
}

static bool is_name(const char *s, size_t max)
{
    size_t n = strlen(s);
    return n > 0 && n < max && s[0] != '.' && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789.-") == n;
}

int manifest_add(struct manifest *m, const char *name, int64_t size, const char *hash, struct err *e)
{
    if (m->file_count == MANIFEST_MAX_FILES || !is_name(name, sizeof m->files[0].name))
        return err_set(e, ERR_INTERNAL, "manifest of %s: no room or bad name for file '%s'", m->id, name);
    struct manifest_file *f = &m->files[m->file_count++];
    *f = (struct manifest_file){.size = size};
    snprintf(f->name, sizeof f->name, "%s", name);
    if (hash)
        snprintf(f->hash, sizeof f->hash, "%s", hash);
    return 0;
}

const struct manifest_file *manifest_find(const struct manifest *m, const char *name)
{
    for (unsigned i = 0; i < m->file_count; i++)
        if (strcmp(m->files[i].name, name) == 0)
            return &m->files[i];
    return NULL;
}

static void sum_of(const char *text, size_t n, char out[65])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned len = 0;
    EVP_Digest(text, n, digest, &len, EVP_sha256(), NULL);
    hex_encode(digest, 32, out);
}

static bool sum_matches(const char *text, size_t n)
{
    char sum[65];
    if (n < SUM_BYTES)
        return false;
    const char *at = text + n - SUM_BYTES;
    sum_of(text, n - SUM_BYTES, sum);
    return memcmp(at, SUM_START, sizeof SUM_START - 1) == 0 &&
           memcmp(at + sizeof SUM_START - 1, sum, 64) == 0 &&
           memcmp(text + n - (sizeof SUM_END - 1), SUM_END, sizeof SUM_END - 1) == 0;
}

void manifest_write(const struct manifest *m, struct buf *out)
{
    size_t start = out->len;
    char sum[65];
    struct jsonw w = jsonw_start(out);
    jsonw_obj(&w);
    jsonw_kint(&w, "format", MANIFEST_FORMAT);
    jsonw_kstr(&w, "kind", kinds[m->kind]);
    jsonw_kstr(&w, "id", m->id);
    jsonw_kstr(&w, "parent", m->parent);
    jsonw_kstr(&w, "name", m->name);
    jsonw_kstr(&w, "sandbox", m->sandbox);
    jsonw_kint(&w, "created_ms", m->created_ms);
    jsonw_key(&w, "limits");
    jsonw_obj(&w);
    jsonw_kint(&w, "vcpus", m->vcpus);
    jsonw_kint(&w, "memory_mib", m->memory_mib);
    jsonw_kint(&w, "disk_mib", m->disk_mib);
    jsonw_obj_end(&w);
    jsonw_kstr(&w, "kernel", m->kernel);
    jsonw_kstr(&w, "tools", m->tools);
    jsonw_kstr(&w, "envd_version", m->envd_version);
    jsonw_kstr(&w, "default_user", m->default_user);
    jsonw_kstr(&w, "default_workdir", m->default_workdir);
    jsonw_kint(&w, "guest_protocol", m->guest_protocol);
    jsonw_kbool(&w, "has_memory", m->has_memory);
    jsonw_key(&w, "class");
    jsonw_obj(&w);
    jsonw_kstr(&w, "kvm_kind", m->class.kvm_kind);
    jsonw_kstr(&w, "cpu_features", m->class.cpu_features);
    jsonw_kint(&w, "device_layout", m->class.device_layout);
    jsonw_obj_end(&w);
    jsonw_key(&w, "files");
    jsonw_arr(&w);
    for (unsigned i = 0; i < m->file_count; i++) {
        jsonw_obj(&w);
        jsonw_kstr(&w, "name", m->files[i].name);
        jsonw_kint(&w, "size", m->files[i].size);
        jsonw_kstr(&w, "hash", m->files[i].hash);
        jsonw_obj_end(&w);
    }
    jsonw_arr_end(&w);
    sum_of(out->data + start, out->failed ? 0 : out->len - start, sum);
    jsonw_kstr(&w, "sum", sum);
    jsonw_obj_end(&w);
    buf_putc(out, '\n');
}

static bool get_str(const json_t *o, const char *key, char *out, size_t max)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_string(v) || json_string_length(v) >= max ||
        strlen(json_string_value(v)) != json_string_length(v))
        return false;
    memcpy(out, json_string_value(v), json_string_length(v) + 1);
    return true;
}

static bool get_uint(const json_t *o, const char *key, uint32_t *out)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > UINT32_MAX)
        return false;
    *out = (uint32_t)json_integer_value(v);
    return true;
}

static bool get_kind(const json_t *o, enum manifest_kind *out)
{
    char text[32];
    if (!get_str(o, "kind", text, sizeof text))
        return false;
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(text, kinds[i]) == 0) {
            *out = (enum manifest_kind)i;
            return true;
        }
    return false;
}

static bool get_files(const json_t *o, struct manifest *m)
{
    const json_t *files = json_object_get(o, "files");
    if (!json_is_array(files) || json_array_size(files) > MANIFEST_MAX_FILES)
        return false;
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *f = json_array_get(files, i);
        struct manifest_file *out = &m->files[m->file_count];
        const json_t *size = json_object_get(f, "size");
        if (!get_str(f, "name", out->name, sizeof out->name) || !is_name(out->name, sizeof out->name) ||
            manifest_find(m, out->name) || !json_is_integer(size) || json_integer_value(size) < 0 ||
            !get_str(f, "hash", out->hash, sizeof out->hash) || !is_hex64(out->hash))
            return false;
        out->size = json_integer_value(size);
        m->file_count++;
    }
    return true;
}

static bool get_hash(const json_t *o, const char *key, char out[65])
{
    return get_str(o, key, out, 65) && (!*out || is_hex64(out));
}

static bool get_fields(const json_t *o, struct manifest *m)
{
    const json_t *limits = json_object_get(o, "limits"), *class = json_object_get(o, "class");
    const json_t *created = json_object_get(o, "created_ms"), *memory = json_object_get(o, "has_memory");
    if (!json_is_integer(created) || !json_is_boolean(memory))
        return false;
    m->created_ms = json_integer_value(created);
    m->has_memory = json_is_true(memory);
    return get_kind(o, &m->kind) && get_str(o, "id", m->id, sizeof m->id) && is_name(m->id, sizeof m->id) &&
           get_str(o, "parent", m->parent, sizeof m->parent) && get_str(o, "name", m->name, sizeof m->name) &&
           get_str(o, "sandbox", m->sandbox, sizeof m->sandbox) && get_uint(limits, "vcpus", &m->vcpus) &&
           get_uint(limits, "memory_mib", &m->memory_mib) && get_uint(limits, "disk_mib", &m->disk_mib) &&
           get_hash(o, "kernel", m->kernel) && get_hash(o, "tools", m->tools) &&
           get_str(o, "envd_version", m->envd_version, sizeof m->envd_version) &&
           get_str(o, "default_user", m->default_user, sizeof m->default_user) &&
           get_str(o, "default_workdir", m->default_workdir, sizeof m->default_workdir) &&
           get_uint(o, "guest_protocol", &m->guest_protocol) &&
           get_str(class, "kvm_kind", m->class.kvm_kind, sizeof m->class.kvm_kind) &&
           get_str(class, "cpu_features", m->class.cpu_features, sizeof m->class.cpu_features) &&
           get_uint(class, "device_layout", &m->class.device_layout) && get_files(o, m);
}

int manifest_parse(const char *json, size_t n, const char *what, struct manifest *out, struct err *e)
{
    *out = (struct manifest){0};
    if (n > MANIFEST_MAX_BYTES)
        return err_set(e, ERR_INTERNAL, "manifest of %s is larger than %u bytes", what, MANIFEST_MAX_BYTES);
    json_error_t je;
    json_t *o __attribute__((cleanup(cleanup_json))) = json_loadb(json, n, JSON_REJECT_DUPLICATES, &je);
    if (!o)
        return err_set(e, ERR_INTERNAL, "manifest of %s: line %d: %s", what, je.line, je.text);
    if (!get_uint(o, "format", &out->format))
        return err_set(e, ERR_INTERNAL, "manifest of %s has no format version", what);
    if (out->format != MANIFEST_FORMAT && out->format + 1 != MANIFEST_FORMAT)
        return err_set(e, ERR_UNSUPPORTED, "manifest of %s has format %u; this node reads %d and %d", what,
                       out->format, MANIFEST_FORMAT, MANIFEST_FORMAT - 1);
    bool summed = out->format == MANIFEST_FORMAT; /* format 1 had no sum */
    if (summed ? !sum_matches(json, n) : json_object_get(o, "sum") != NULL)
        return err_set(e, ERR_INTERNAL, "manifest of %s is damaged: its sum differs", what);
    if (!get_fields(o, out))
        return err_set(e, ERR_INTERNAL, "manifest of %s is damaged", what);
    return 0;
}

int manifest_check_class(const struct manifest *m, const struct node_class *host, struct err *e)
{
    if (m->guest_protocol != GUEST_PROTOCOL && m->guest_protocol + 1 != GUEST_PROTOCOL)
        return err_set(e, ERR_NO_COMPATIBLE_NODE,
                       "snapshot %s speaks guest protocol %u; this node speaks %d and %d", m->id,
                       m->guest_protocol, GUEST_PROTOCOL, GUEST_PROTOCOL - 1);
    if (!m->has_memory)
        return 0;
    if (strcmp(m->class.kvm_kind, host->kvm_kind) != 0)
        return err_set(e, ERR_NO_COMPATIBLE_NODE, "snapshot %s was taken on a %s host; this one is %s", m->id,
                       m->class.kvm_kind, host->kvm_kind);
    if (strcmp(m->class.cpu_features, host->cpu_features) != 0)
        return err_set(e, ERR_NO_COMPATIBLE_NODE, "snapshot %s needs CPU features %.8s; this host has %.8s",
                       m->id, m->class.cpu_features, host->cpu_features);
    if (m->class.device_layout != host->device_layout)
        return err_set(e, ERR_NO_COMPATIBLE_NODE, "snapshot %s has device layout %u; this VMM has %u", m->id,
                       m->class.device_layout, host->device_layout);
    return 0;
}
