#!/usr/bin/env python3
"""VTHR_LIBC_ENTRY: what blocks inside libc parks and does not pin, with it off it does; refused, off: said, and the same output."""
# run: timeout=240 alone=yes
import os
import re
import sys

sys.dont_write_bytecode = True
from vthr_test import expect, finish, logged, ours, program, read_json, read_text, run, scratch  # noqa: E402

here = scratch()
INSIDE = program('libc_inside')
# Parts of libc_inside, and how many blocks there are about when nothing is redirected (how often threads meet at a lock is up to
# the machine); 0: one or few long ones.
PARTS = {0: 80, 1: 80, 2: 0, 3: 20, 4: 0, 5: 0, 6: 80}
# The programs block for 400 ms; an overloaded machine makes short ones longer.
LONG = '150ms'
# Not calls from inside libc: the start of a process, which the parent waits for, and a CPU that is not there.
OTHERS = {'clone', 'clone3', 'vfork', 'execve'}


def report_of(part, **settings):
    name = os.path.join(here, f'{part}.json')
    result = run([INSIDE, str(part)], **logged(VTHR_REPORT=name, VTHR_CARRIERS=1, VTHR_PIN_THRESHOLD=LONG, **settings))
    expect(result.returncode == 0 and result.stdout == 'OK\n', f'part {part} {settings}', result.stdout)
    report = read_json(name) or {}
    os.unlink(name)
    blocks = report.get('pins_seen', {}).get('count', 0) + report.get('unseen_blocks', 0)
    long_ones = [p for p in report.get('pins', []) if p.get('reason') != 'cpu' and p.get('call') not in OTHERS and p.get('count')]
    return report, blocks, long_ones


for part, least in PARTS.items():
    report, blocks, long_ones = report_of(part)
    libc = report.get('libc_entry', {})
    expect(libc.get('redirected') == libc.get('of') and libc.get('of', 0) > 30, 'not all is redirected', libc)
    expect(not long_ones, f'part {part}: pins over the threshold', long_ones)
    if least:
        expect(blocks <= least / 4, f'part {part}: {blocks} blocks, without redirection at least {least}')
    report, blocks, long_ones = report_of(part, VTHR_LIBC_ENTRY='off')
    expect(report.get('libc_entry', {}).get('redirected') == 0, 'off, and yet redirected', report.get('libc_entry'))
    if least:
        expect(blocks >= least / 2, f'part {part}, off: {blocks} blocks, want {least / 2}')
    else:
        expect(long_ones, f'part {part}, off: no pin over the threshold', report.get('pins_seen'))

# 1,000 connections on a handful of kernel threads.
name = os.path.join(here, 'server.json')
result = run([program('fgets_server'), 'count'], **logged(VTHR_REPORT=name, VTHR_CARRIERS=2))
found = re.match(r'(\d+) connections, (\d+) kernel threads\nOK\n$', result.stdout)
expect(found, 'the server', result.stdout)
if found:
    expect(int(found.group(2)) <= 12, f'{found.group(2)} kernel threads for {found.group(1)} connections')

# Refused: one line, once, and layer 1 goes on.
log = os.path.join(here, 'log')
for what, warned, why in (('mdwe', 1, "the system refuses to write to libc's text"), ('seccomp', 1, 'the system refuses'),
                          ('stranger', 0, 'the process has other threads already')):
    command = [program('libc_refused'), what] + ([INSIDE, '0'] if warned else [])
    for level in ('warn', 'info'):
        result = run(command, VTHR_LOG=log, VTHR_LOG_LEVEL=level, VTHR_PIN='off')
        expect(result.returncode == 0 and result.stdout == 'OK\n', f'{what}: the program', result.stdout)
        lines = ours(read_text(log)) if os.path.exists(log) else []
        about = [line for line in lines if 'inside libc' in line]
        expect(len(about) == warned, f'{what}: {len(about)} warnings', '\n'.join(lines))
        started = [line for line in lines if 'mode=fibers' in line]
        if level == 'info':
            expect(len(started) == 1 and f'libc-entry="off: {why}' in started[0], f'{what}: the start line', '\n'.join(lines))
        if os.path.exists(log):
            os.unlink(log)

# An unknown value.
result = run([INSIDE, '6'], VTHR_LIBC_ENTRY='perhaps')
expect(result.stdout == 'OK\n' and 'VTHR_LIBC_ENTRY' in result.stderr, 'an unknown value', result.stderr)
finish()
