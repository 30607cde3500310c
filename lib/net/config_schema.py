#!/usr/bin/env python3
"""Lists every section and key of cube.yaml, from the tables of the programs themselves (rows `"key", CONFIG_…`), so that each
program can refuse what none of them knows. Usage: config_schema.py SOURCE_ROOT OUT.c; writes only what has changed."""
import pathlib
import re
import sys

SECTIONS = {
    "api": ["api"], "master": ["master"], "proxy": ["proxy"], "lifecycle": ["lifecycle"],
    "node": ["node/daemon", "node/store", "node/template", "node/net"], "jailer": ["node/jailer"],
    "relay": ["node/relay"], "egress": ["node/egress"], "dns": ["node/dns"],
}
# Keys that several programs share, with their defaults.
COMMON = {
    "redis": "127.0.0.1:6379", "redis_user": "", "redis_password_file": "", "state_dir": "/var/lib/cube",
    "run_dir": "/run/cube", "key_dir": "${state_dir}/keys", "seed_file": "${key_dir}/seed", "log_level": "info",
    "domain": "", "cell": "0", "ca": "", "cert": "", "key": "",
}
NOT_COMMON = {"listen", "admin_listen"}
# White space, and the backslashes that continue the lines of a macro, may stand anywhere.
ROW = re.compile(r'"([a-z][a-z0-9_]*)"[\s\\]*,[\s\\]*(?:\.type\s*=\s*)?CONFIG_(?:STR|INT|BOOL|SIZE|MS)\b')


def keys_of(root, directories):
    found = set()
    for directory in directories:
        for path in sorted(pathlib.Path(root, directory).glob("*.[ch]")):
            text = path.read_text(encoding="utf-8")
            found |= set(ROW.findall(text))
            if "CONFIG_CLUSTER_ROWS(" in text:
                found |= set(ROW.findall(pathlib.Path(root, "lib/net/config_cluster.h").read_text(encoding="utf-8")))
    return found


def main():
    root, out = sys.argv[1], pathlib.Path(sys.argv[2])
    rows, everything = [], set(COMMON)
    for section, directories in SECTIONS.items():
        keys = keys_of(root, directories)
        everything |= keys - NOT_COMMON
        rows += [(section, key, None) for key in sorted(keys | {"log_level"})]
    rows += [("common", key, COMMON.get(key)) for key in sorted(everything)]
    text = "/* Made by lib/net/config_schema.py from the programs' own tables. */\n"
    text += '#include "lib/net/config_impl.h"\n\nconst struct config_known config_schema[] = {\n'
    for section, key, fallback in rows:
        text += '    {"%s", "%s", %s},\n' % (section, key, "NULL" if fallback is None else '"%s"' % fallback)
    for section in SECTIONS:
        text += '    {"%s", NULL, NULL},\n' % section
    text += "    {NULL, NULL, NULL},\n};\n"
    if not out.exists() or out.read_text(encoding="utf-8") != text:
        out.write_text(text, encoding="utf-8")


main()
