#!/usr/bin/env python3
"""Pins of 300 ms while the pinned thread holds the loader's lock, a malloc's own mutex, or the lock of stderr.

The event appears within a second of the pin's end, with its length, call and stack, and 20 threads go on meanwhile
(the programs check that). Short pins are counted, not printed; VTHR_PIN=off and abort do what they say.
"""
# run: timeout=120
import json
import os
import re
import sys

sys.dont_write_bytecode = True
from vthr_test import expect, finish, logged, ours, program, read_text, run, scratch, start, wait_until  # noqa: E402

here = scratch()
FRAMES = {  # program: a function of the program that must be in the stack, if symbols can be had at all
    'pin_in_dlopen': ('load', 'slow_constructor', 'pin_in_dlopen'),
    'pin_in_malloc': ('hold_heap', 'inline_sleep', 'pin_in_malloc'),
    'pin_in_flockfile': ('hold_stderr', 'inline_sleep', 'pin_in_flockfile'),
}


def events(log):
    return re.findall(r'^vthr: pin \d.*(?:\n    .*|\n > .*)*', read_text(log) if os.path.exists(log) else '', re.M)


for name, words in FRAMES.items():
    for carriers in (None, 1):
        log = os.path.join(here, f'{name}.{carriers}.log')
        process = start([program(name), 'linger'], VTHR_LOG=log, VTHR_CARRIERS=carriers)
        line = process.stdout.readline()
        if not expect(line.startswith('pin ended at '), f'{name}: no "pin ended" line', line):
            process.kill()
            continue
        seen = wait_until(lambda: events(log), 2.4)  # the program stays for 2.5 s
        expect(seen, f'{name}: no event', read_text(log) if os.path.exists(log) else 'no log')
        rest, errors = process.communicate(timeout=30)
        expect(process.returncode == 0 and rest == 'OK\n' and errors == '', f'{name}: the program', rest + errors)
        if not seen:
            continue
        text = '\n'.join(events(log))
        head = text.splitlines()[0]
        ms = float(re.match(r'vthr: pin ([\d.]+) ms', head).group(1))
        expect(200 <= ms <= 5000, f'{name}: a pin of 300 ms is reported with {ms} ms', head)
        expect(re.search(r'reason=\S+', head) and re.search(r'call=\S*nanosleep', head), f'{name}: reason and call', head)
        expect(re.search(r'fiber=\d+', head) and 'handed-off=yes' in head, f'{name}: fiber and hand-off', head)
        expect(any(word in text for word in words), f'{name}: no frame of the program', text)
        expect(re.search(r'^\s*>', text, re.M), f'{name}: no frame is marked', text)

# The same place is printed once, then counted. Every place in the same run has its own event.
log = os.path.join(here, 'again.log')
result = run([program('inline_pins')], VTHR_LOG=log)
text = read_text(log) if os.path.exists(log) else ''
expect(result.returncode == 0, 'inline_pins', result.stdout)
heads = [event.splitlines()[0] for event in events(log)]
expect(1 <= len(heads) <= 20, f'{len(heads)} events for 49 pins at four places', text[-2000:])
for call in ('nanosleep', 'read', 'flock', 'wait4'):
    expect(any(f'call={call}' in head or f'call=clock_{call}' in head for head in heads), f'no event of {call}', '\n'.join(heads))
expect(re.search(r'pin x\d+ more', text), 'the pins that followed are not counted', text[-2000:])

# Pins below the threshold are not printed, those above it are.
log = os.path.join(here, 'threshold.log')
run([program('pin_in_flockfile')], VTHR_LOG=log, VTHR_PIN_THRESHOLD='5s')
expect(not events(log), 'an event below the threshold', events(log))

# off: nothing is printed. abort: the program ends with SIGABRT at the first, after the event.
log = os.path.join(here, 'off.log')
result = run([program('pin_in_flockfile')], VTHR_LOG=log, VTHR_PIN='off')
expect(result.returncode == 0 and not events(log), 'VTHR_PIN=off', result.stdout)
log = os.path.join(here, 'abort.log')
result = run(['bash', '-c', f'ulimit -c 0; exec {program("pin_in_flockfile")}'], VTHR_LOG=log, VTHR_PIN='abort')
expect(result.returncode == -6 and len(events(log)) == 1, f'VTHR_PIN=abort: exit code {result.returncode}', events(log))
result = run([program('create_join')], VTHR_LOG=log, VTHR_PIN='abort', VTHR_PIN_THRESHOLD='20s')  # a busy machine makes hogs
expect(result.returncode == 0, 'VTHR_PIN=abort ends a program without pins', result.stderr)

# On stderr, which the pinned thread has locked.
result = run([program('pin_in_flockfile')])
expect(result.returncode == 0 and len([x for x in ours(result.stderr) if x.startswith('vthr: pin ')]) >= 1, 'on stderr', result.stderr)

# As JSON, with frames.
log = os.path.join(here, 'pins.json')
run([program('pin_in_malloc')], VTHR_LOG=log, VTHR_LOG_FORMAT='json')
pins = []
for line in (read_text(log) if os.path.exists(log) else '').splitlines():
    event = json.loads(line)
    if event.get('event') == 'pin':
        pins.append(event)
expect(len(pins) >= 1 and 200 <= max(p['ms'] for p in pins) <= 5000, 'JSON: the pin', pins)
expect(any('hold_heap' in json.dumps(p) or 'pin_in_malloc' in json.dumps(p) for p in pins), 'JSON: frames', pins)

run([program('create_join')], **logged())  # the runner's proof that there was a library
finish()
