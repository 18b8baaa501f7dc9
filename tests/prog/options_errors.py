#!/usr/bin/env python3
"""Wrong VTHR_ settings: one line each, which names the variable, the value and what is allowed; the program runs on.

A process without threads prints nothing, and neither do those that it starts.
"""
# run: proof=own timeout=90
import os
import re
import sys

sys.dont_write_bytecode = True
from vthr_test import environment, expect, finish, ours, program, run  # noqa: E402

# variable, value, what the line must name as allowed
WRONG = [
    ('VTHR_CARRIERS', '0', r'\b1\b'),
    ('VTHR_CARRIERS', '-1', r'\b1\b'),
    ('VTHR_CARRIERS', 'many', r'\b1\b'),
    ('VTHR_CARRIERS', '2x', r'\b1\b'),
    ('VTHR_CARRIERS', ' 2', r'\b1\b'),
    ('VTHR_CARRIERS', '99999999999999999999999', r'\b1\b'),
    ('VTHR_MAX_WORKERS', '0', r'\b1\b'),
    ('VTHR_MAX_CONCURRENCY', '4.5', r'\b0\b'),
    ('VTHR_ADMISSION', 'maybe', r'queue.*block.*reject'),
    ('VTHR_ADMISSION', 'queue,block', r'queue.*block.*reject'),
    ('VTHR_ADMISSION', 'QUEUE', r'queue.*block.*reject'),
    ('VTHR_IO', 'kqueue', r'auto.*uring'),
    ('VTHR_STACK_SIZE', '12q', r'k'),
    ('VTHR_STACK_SIZE', '1', r'k'),
    ('VTHR_PIN', 'loud', r'off.*report.*abort'),
    ('VTHR_PIN_THRESHOLD', '20parsecs', r'ms'),
    ('VTHR_PIN_THRESHOLD', '-5ms', r'ms'),
    ('VTHR_LOG_FORMAT', 'xml', r'text.*json'),
    ('VTHR_LOG_LEVEL', 'debug', r'error.*warn.*info'),
    ('VTHR_STATS', 'often', r'ms'),
    ('VTHR_DISABLE', '2', r'0.*1'),
    ('VTHR_NONSENSE', '17', r''),
    ('VTHR_carriers', '1', r''),
    ('VTHR_', '3', r''),
]
THREADED, PLAIN = program('create_join'), program('ends')

for name, value, allowed in WRONG:
    setting = f'{name}={value}'
    result = run([THREADED], **{name: value})
    lines = ours(result.stderr)
    expect(result.returncode == 0 and result.stdout == 'OK\n', f'{setting}: the program does not run as ever', result.stdout)
    expect(result.stderr.count('\n') == len(lines) == 1, f'{setting}: {len(lines)} lines of ours, want one', result.stderr)
    if lines:
        rest = lines[0].replace(value, '', 1) if value not in ('0', '1', '2') else lines[0]
        expect(re.search(rf'\b{re.escape(name)}(?!\w)', lines[0]), f'{setting}: the variable is not named', lines[0])
        expect(value.strip() in lines[0], f'{setting}: the value is not named', lines[0])
        expect(re.search(allowed, rest), f'{setting}: what is allowed is not named', lines[0])
        expect(len(lines[0]) < 400, f'{setting}: the line is too long', lines[0])
    result = run([PLAIN, 'none'], **{name: value})
    expect(result.returncode == 0 and result.stderr == '', f'{setting}: a program without threads prints something', result.stderr)

# Several wrong ones: a line each. Right ones beside them are used.
several = run([program('kernel_threads'), 'count'], VTHR_CARRIERS='none', VTHR_PIN='loud', VTHR_NONSENSE='1', VTHR_DISABLE='1')
text = several.stderr
expect(several.returncode == 0 and 'OK' in several.stdout, 'several wrong settings: the program fails', several.stdout)
expect(text == '' or len(ours(text)) == 3, 'several wrong settings beside VTHR_DISABLE=1', text)
several = run([THREADED], VTHR_CARRIERS='none', VTHR_PIN='loud', VTHR_NONSENSE='1')
expect(len(ours(several.stderr)) == 3, 'three wrong settings do not make three lines', several.stderr)

# In a forked child the lines are those of a process that starts afresh, or none: never more than one for each setting.
result = run([PLAIN, 'plain-children', '3'], VTHR_CARRIERS='none')
expect(result.returncode == 0 and len(ours(result.stderr)) <= 3, 'children repeat the line', result.stderr)

# A long value is cut, a strange one does not break the line.
for value in ('x' * 5000, 'two\nlines', 'bell\x07 and \x1b[31m red', 'percent %s %n %d'):
    result = run([THREADED], VTHR_ADMISSION=value)
    expect(result.returncode == 0, 'a strange value: the program fails', result.stdout)
    expect(len(result.stderr.splitlines()) == 1 and len(result.stderr) < 600, 'a strange value: not one line', repr(result.stderr[:300]))
    expect('\x1b' not in result.stderr and '\x07' not in result.stderr, 'control characters reach the terminal', repr(result.stderr[:300]))

# Good values say nothing.
good = {'VTHR_CARRIERS': '1', 'VTHR_MAX_WORKERS': '64', 'VTHR_MAX_CONCURRENCY': '1000', 'VTHR_ADMISSION': 'queue', 'VTHR_IO': 'auto',
        'VTHR_STACK_SIZE': '256k', 'VTHR_PIN': 'off', 'VTHR_PIN_THRESHOLD': '50ms', 'VTHR_LOG_FORMAT': 'text',
        'VTHR_LOG_LEVEL': 'warn', 'VTHR_DISABLE': '0', 'VTHR_REPORT': 'off', 'VTHR_STATS': 'off'}
result = run([THREADED], **good)
expect(result.returncode == 0 and result.stderr == '', 'good settings are complained about', result.stderr)
assert 'LD_PRELOAD' in environment() and os.path.exists(environment()['LD_PRELOAD'])
finish()
