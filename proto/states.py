#!/usr/bin/env python3
"""Reads proto/states.def and writes the C table, the Lua table or the page of the docs: states.py FORMAT states.def > out."""
import sys

FLAGS = {'': 0, 'gen': 1, 'adopt': 2}


def load(path):
    states, edges = [], []
    for number, line in enumerate(open(path, encoding='utf-8'), 1):
        words = line.split('#')[0].split()
        if not words:
            continue
        if words[0] == 'state' and len(words) == 7:
            states.append(dict(zip(('name', 'kind', 'view', 'owner', 'deadline', 'overdue'), words[1:])))
        elif words[0] == 'edge' and len(words) in (4, 5):
            flag = words[4] if len(words) == 5 else ''
            known = {s['name'] for s in states} | {'-'}
            if flag not in FLAGS or words[1] not in known or words[2] not in known:
                sys.exit(f'{path}:{number}: unknown state or flag')
            edges.append((words[1], words[2], words[3], flag))
        else:
            sys.exit(f'{path}:{number}: cannot read "{line.strip()}"')
    return states, edges


def c_header(states, edges):
    out = ['/* Generated from proto/states.def by proto/states.py. The numbers are those of cube.v1.SandboxState. */',
           '#pragma once', '', '#include <stdint.h>', '', 'enum sandbox_state {', '    STATE_NONE = 0,']
    out += [f'    STATE_{s["name"].upper()} = {i},' for i, s in enumerate(states, 1)]
    out += [f'    STATE_COUNT = {len(states) + 1}', '};', '',
            'enum state_view { VIEW_GONE, VIEW_RUNNING, VIEW_PAUSED };',
            'enum state_edge { EDGE_NONE = -1, EDGE_PLAIN = 0, EDGE_GEN = 1, EDGE_ADOPT = 2 };', '',
            'static const struct {', '    const char *name;', '    uint8_t transient;', '    uint8_t view;',
            '    int32_t deadline_ms;', '} state_table[STATE_COUNT] = {', '    [STATE_NONE] = {"none", 0, VIEW_GONE, 0},']
    out += [f'    [STATE_{s["name"].upper()}] = {{"{s["name"]}", {int(s["kind"] == "transient")}, VIEW_{s["view"].upper()}, '
            f'{s["deadline"]}}},' for s in states]
    out += ['};', '', '/** EDGE_NONE when the transition is illegal. */',
            'static const int8_t state_edges[STATE_COUNT][STATE_COUNT] = {']
    index = {'-': 0, **{s['name']: i for i, s in enumerate(states, 1)}}
    table = [[-1] * (len(states) + 1) for _ in range(len(states) + 1)]
    for a, b, _, flag in edges:
        table[index[a]][index[b]] = FLAGS[flag]
    out += ['    {' + ', '.join(f'{v:2d}' for v in row) + '},' for row in table]
    return out + ['};']


def lua(states, edges):
    out = ['-- Generated from proto/states.def by proto/states.py.', 'local STATE = {']
    out += [f'  {s["name"]} = {{transient = {str(s["kind"] == "transient").lower()}, final = {str(s["kind"] == "final").lower()}, '
            f'view = "{s["view"]}", deadline = {s["deadline"]}}},' for s in states]
    out += ['}', 'local EDGE = {}']
    for a in ['-'] + [s['name'] for s in states]:
        row = ', '.join(f'{b} = {FLAGS[flag]}' for x, b, _, flag in edges if x == a)
        out.append(f'EDGE["{a}"] = {{{row}}}')
    return out


def page(states, edges):
    out = ['# States of a sandbox', '',
           'Generated from `proto/states.def` (`meson compile -C build docs-states`, checked by a test). One Lua script, `proto/redis/commit.lua`,',
           'is the only writer; it refuses every transition that is not listed here.', '',
           '| state | kind | E2B shows | owner | deadline | when overdue |', '|---|---|---|---|---|---|']
    for s in states:
        deadline = f'{int(s["deadline"]) // 1000} s' if s['deadline'] != '0' else '–'
        out.append(f'| `{s["name"]}` | {s["kind"]} | {"404" if s["view"] == "gone" else s["view"]} | {s["owner"].replace("-", "–")} '
                   f'| {deadline} | {s["overdue"].replace("-", "–")} |')
    rule = {'': 'stays', 'gen': 'grows', 'adopt': 'follows the node'}
    out += ['', '| from | to | why | generation |', '|---|---|---|---|']
    out += [f'| {"–" if a == "-" else f"`{a}`"} | `{b}` | {why.replace("-", " ")} | {rule[flag]} |' for a, b, why, flag in edges]
    out += ['', '```mermaid', 'stateDiagram-v2']
    out += [f'    {"[*]" if a == "-" else a} --> {b}: {why.replace("-", " ")}' for a, b, why, _ in edges]
    return out + ['```']


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ('c', 'lua', 'md'):
        sys.exit(__doc__)
    states, edges = load(sys.argv[2])
    print('\n'.join({'c': c_header, 'lua': lua, 'md': page}[sys.argv[1]](states, edges)))


main()
