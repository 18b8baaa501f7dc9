#!/usr/bin/env python3
"""Where events go: stderr or a file, text or JSON, %p, relative names, and files that cannot be written."""
# run: proof=own
import json
import os
import re
import sys

sys.dont_write_bytecode = True
from vthr_test import expect, files, finish, ours, program, read_text, run, scratch  # noqa: E402

THREADED, ENDS, PIN = program('create_join'), program('ends'), program('pin_in_flockfile')
here = scratch()
NO_PINS = {'VTHR_PIN': 'off'}  # where lines are counted: on a loaded machine a thread that computes may be reported

# The start line comes first, at level info; at the default level there is none.
result = run([THREADED], VTHR_LOG_LEVEL='info', **NO_PINS)
expect(re.match(r'vthr: start .*mode=fibers\b.*carriers=\d+', result.stderr), 'the start line', result.stderr)
expect(len(result.stderr.splitlines()) == 1, 'more than the start line', result.stderr)
result = run([THREADED], **NO_PINS)
expect(result.stderr == '' and result.stdout == 'OK\n', 'a quiet run prints something', result.stderr)

# To a file: nothing on stderr. A relative name is taken from where the program started, %p is the process.
result = run([THREADED], cwd=here, VTHR_LOG='events.%p.log', VTHR_LOG_LEVEL='info', **NO_PINS)
names = files('events.*.log')
expect(result.stderr == '' and len(names) == 1 and re.fullmatch(r'events\.\d+\.log', os.path.basename(names[0])), 'VTHR_LOG with %p', names)
for name in names:
    expect(len(ours(read_text(name))) == 1 and 'mode=fibers' in read_text(name), 'the log', read_text(name))
    os.remove(name)
result = run([ENDS, 'daemon'], cwd=here, VTHR_LOG='daemon.%p.log', VTHR_LOG_LEVEL='info')  # a daemon changes its folder only by choice
expect(len(files('daemon.*.log')) == 2, 'the daemon and its first process have a log each', files('*'))

# Each process in which the runtime starts says so, the others do not.
result = run([ENDS, 'plain-children', '4'], cwd=here, VTHR_LOG='child.%p.log', VTHR_LOG_LEVEL='info')
expect(result.returncode == 0 and len(files('child.*.log')) == 4, 'four children with threads, a parent without', files('child.*'))
result = run([ENDS, 'plain-children', '4'], cwd=here, VTHR_LOG='all.log', VTHR_LOG_LEVEL='info', **NO_PINS)
lines = read_text(os.path.join(here, 'all.log')).splitlines() if files('all.log') else []
expect(len(lines) == 4 and all('mode=fibers' in line for line in lines), 'one file for all: it is appended to', '\n'.join(lines))

# JSON: one object a line.
result = run([PIN], cwd=here, VTHR_LOG='events.json', VTHR_LOG_FORMAT='json', VTHR_LOG_LEVEL='info', VTHR_STATS='100ms')
text = read_text(os.path.join(here, 'events.json')) if files('events.json') else ''
objects = []
for line in text.splitlines():
    try:
        objects.append(json.loads(line))
    except ValueError as error:
        expect(False, f'a line of the JSON log is no object: {error}', line)
expect(any('fibers' in json.dumps(o) for o in objects), 'JSON: no start line', text[:500])
pins = [o for o in objects if o.get('event') == 'pin']
expect(len(pins) >= 1 and all(o.get('ms', 0) >= 20 and o.get('reason') for o in pins), 'JSON: the pin', text[-1500:])
expect(sum(o.get('event') == 'stats' for o in objects) >= 2, 'JSON: figures every 100 ms', text[-500:])
expect(result.stderr == '', 'JSON: something on stderr', result.stderr)

# Files that cannot be written: one line, and the program goes on.
blocked = os.path.join(here, 'no', 'such', 'folder', 'file')
for settings in ({'VTHR_LOG': blocked}, {'VTHR_LOG': here}, {'VTHR_LOG': '/dev/full'}):
    result = run([THREADED], VTHR_LOG_LEVEL='info', **settings)
    complaints = [line for line in ours(result.stderr) if 'VTHR_LOG' in line and list(settings.values())[0] in line]
    expect(result.returncode == 0 and result.stdout == 'OK\n', f'{settings}: the program', result.stdout)
    expect(len(complaints) == 1, f'{settings}: {len(complaints)} complaints', result.stderr)
for settings in ({'VTHR_REPORT': blocked}, {'VTHR_REPORT': here}):
    result = run([THREADED], **NO_PINS, **settings)
    expect(result.returncode == 0 and result.stdout == 'OK\n', f'{settings}: the program', result.stdout)
    expect(len(ours(result.stderr)) == 1 and 'VTHR_REPORT' in result.stderr, f'{settings}: not one line', result.stderr)

# Standard error that is closed, full, or a pipe without a reader does no harm.
for redirect in ('2>&-', '2>/dev/full', '2> >(exec true)'):
    result = run(['bash', '-c', f'{PIN} {redirect}'], VTHR_LOG_LEVEL='info')
    expect(result.returncode == 0 and result.stdout == 'OK\n', f'with {redirect}', result.stdout + result.stderr)
finish()
