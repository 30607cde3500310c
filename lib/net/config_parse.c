/* Owns the form of cube.yaml: sections of scalar keys; invariant: whatever is accepted is at most one value
 * per section and key, and every refusal names file, line and column. */
#include "lib/net/config_impl.h"

#include "lib/base/buf.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define MAX_SCALAR 4096
#define MAX_VALUES 1000

struct parsing {
    struct config_file *file;
    yaml_parser_t parser;
    yaml_event_t event;
    struct config_value **tail;
    size_t count;
    struct err *err;
};

static int bad(struct parsing *p, yaml_mark_t at, const char *why)
{
    return err_set(p->err, ERR_INVALID, "%s:%zu:%zu: %s", p->file->name, at.line + 1, at.column + 1, why);
}

static int next(struct parsing *p)
{
    yaml_event_delete(&p->event);
    if (yaml_parser_parse(&p->parser, &p->event))
        return p->event.type == YAML_ALIAS_EVENT ? bad(p, p->event.start_mark, "aliases are not supported")
                                                 : 0;
    memset(&p->event, 0, sizeof p->event);
    yaml_mark_t at = p->parser.problem_mark;
    return bad(p, at, p->parser.problem ? p->parser.problem : "not valid YAML");
}

/* The scalar of the present event as a fresh string, or NULL with an error. */
static char *take_scalar(struct parsing *p, const char *what)
{
    if (p->event.type != YAML_SCALAR_EVENT) {
        bad(p, p->event.start_mark, what);
        return NULL;
    }
    const char *text = (const char *)p->event.data.scalar.value;
    size_t n = p->event.data.scalar.length;
    if (n > MAX_SCALAR || strlen(text) != n) {
        bad(p, p->event.start_mark, n > MAX_SCALAR ? "the value is too long" : "the value contains a NUL");
        return NULL;
    }
    char *copy = strdup(text);
    if (!copy)
        bad(p, p->event.start_mark, "out of memory");
    return copy;
}

/* ["a", "b"] means "a,b". */
static char *take_sequence(struct parsing *p)
{
    _cleanup_buf_ struct buf b = {0};
    for (;;) {
        if (next(p) < 0)
            return NULL;
        if (p->event.type == YAML_SEQUENCE_END_EVENT)
            return strdup(buf_cstr(&b));
        char *item = take_scalar(p, "expected a plain value in the list");
        if (!item)
            return NULL;
        if (b.len > 0)
            buf_putc(&b, ',');
        buf_puts(&b, item);
        free(item);
        if (b.len > MAX_SCALAR) {
            bad(p, p->event.start_mark, "the list is too long");
            return NULL;
        }
    }
}

static int add(struct parsing *p, const char *section, char *key, char *text, yaml_mark_t at)
{
    struct config_value *v = calloc(1, sizeof *v);
    if (v)
        *v = (struct config_value){.section = strdup(section),
                                   .key = key,
                                   .text = text,
                                   .line = at.line + 1,
                                   .column = at.column + 1};
    if (!v || !v->section || ++p->count > MAX_VALUES) {
        free(key);
        free(text);
        if (v)
            free(v->section);
        free(v);
        return bad(p, at, "too many values");
    }
    for (struct config_value *o = p->file->values; o; o = o->next) {
        if (strcmp(o->section, section) == 0 && strcmp(o->key, key) == 0) {
            err_set(p->err, ERR_INVALID, "%s:%zu:%zu: %.60s.%.60s is set a second time (first in line %zu)",
                    p->file->name, v->line, v->column, section, key, o->line);
            *p->tail = v;
            p->tail = &v->next;
            return -1;
        }
    }
    *p->tail = v;
    p->tail = &v->next;
    return 0;
}

/* The mapping of one section; its start has been read. */
static int parse_section(struct parsing *p, const char *section)
{
    for (;;) {
        if (next(p) < 0)
            return -1;
        if (p->event.type == YAML_MAPPING_END_EVENT)
            return 0;
        char *key = take_scalar(p, "expected the name of a key");
        if (!key)
            return -1;
        if (next(p) < 0) {
            free(key);
            return -1;
        }
        yaml_mark_t at = p->event.start_mark;
        char *text = p->event.type == YAML_SEQUENCE_START_EVENT
                         ? take_sequence(p)
                         : take_scalar(p, "expected a value or a list of values");
        if (!text) {
            free(key);
            return -1;
        }
        if (add(p, section, key, text, at) < 0)
            return -1;
    }
}

static int parse_document(struct parsing *p)
{
    if (next(p) < 0)
        return -1;
    if (p->event.type == YAML_SCALAR_EVENT && p->event.data.scalar.length == 0)
        return next(p); /* only comments */
    if (p->event.type != YAML_MAPPING_START_EVENT)
        return bad(p, p->event.start_mark, "expected sections, for example `api:`");
    for (;;) {
        if (next(p) < 0)
            return -1;
        if (p->event.type == YAML_MAPPING_END_EVENT)
            return next(p);
        char *section = take_scalar(p, "expected the name of a section");
        if (!section)
            return -1;
        int r = next(p);
        bool empty = r == 0 && p->event.type == YAML_SCALAR_EVENT && p->event.data.scalar.length == 0;
        if (r == 0 && !empty)
            r = p->event.type == YAML_MAPPING_START_EVENT
                    ? parse_section(p, section)
                    : bad(p, p->event.start_mark, "expected keys below the section");
        free(section);
        if (r < 0)
            return -1;
    }
}

int config_parse(const char *name, const char *text, size_t n, struct config_file *out, struct err *e)
{
    *out = (struct config_file){.name = name};
    struct parsing p = {.file = out, .tail = &out->values, .err = e};
    if (!yaml_parser_initialize(&p.parser))
        return err_set(e, ERR_INTERNAL, "reading %s: out of memory", name);
    yaml_parser_set_encoding(&p.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&p.parser, (const unsigned char *)text, n);
    int r = next(&p); /* stream start */
    if (r == 0)
        r = next(&p);
    if (r == 0 && p.event.type == YAML_DOCUMENT_START_EVENT) {
        r = parse_document(&p);
        if (r == 0)
            r = next(&p); /* after the end of the document */
        if (r == 0 && p.event.type != YAML_STREAM_END_EVENT)
            r = bad(&p, p.event.start_mark, "only one document is allowed");
    }
    yaml_event_delete(&p.event);
    yaml_parser_delete(&p.parser);
    return r;
}

void config_file_free(struct config_file *f)
{
    while (f->values) {
        struct config_value *v = f->values;
        f->values = v->next;
        free(v->section);
        free(v->key);
        free(v->text);
        free(v);
    }
}
