#!/usr/bin/env python3
"""Prints the reports of crashed programs (lib/base/crash.h) as FAIL lines, with the functions and lines of their stacks: crashes.py FILE BUILD"""
import json
import os
import re
import subprocess
import sys


def programs(build):
    """The programs below a build directory, by name."""
    found = {}
    for where, _, names in os.walk(build):
        for name in names:
            path = os.path.join(where, name)
            if os.access(path, os.X_OK) and os.path.isfile(path):
                found.setdefault(name, path)
    return found


def place(word, known):
    """NAME+OFFSET as function, file and line, where the program is known."""
    name, _, offset = word.partition("+")
    if name not in known or not re.fullmatch("0x[0-9a-f]+", offset):
        return word
    said = subprocess.run(["addr2line", "-fse", known[name], offset], capture_output=True, text=True).stdout.split("\n")
    return f"{name}: {said[0]} ({said[1]})" if len(said) > 1 else word


def main():
    with open(sys.argv[1]) as f:
        lines = f.read().splitlines()
    known = programs(sys.argv[2]) if lines else {}
    for line in lines:
        try:
            said = json.loads(line)
            prog, msg = said["prog"], said["msg"]
        except (ValueError, KeyError):
            print("FAIL a program crashed: " + line[:600])
            continue
        if msg.startswith("its stack:"):
            print(f"{prog} at {said['ts']}, its stack:")
            for word in msg.split()[2:]:
                print("    " + place(word, known))
        else:
            words = [place(w.rstrip(":"), known) if "+0x" in w else w for w in msg.split()]
            print(f"FAIL a program crashed: {prog} at {said['ts']}: {' '.join(words)}")


main()
