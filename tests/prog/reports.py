#!/usr/bin/env python3
"""VTHR_REPORT: every process that used fibers leaves a report, however it ends; one that made no thread leaves none."""
# run: proof=own timeout=90
import os
import signal
import sys
import time

sys.dont_write_bytecode = True
from vthr_test import expect, files, finish, ours, program, read_json, read_text, run as run_it, scratch, start, wait_until  # noqa: E402

ENDS = program('ends')
here = scratch()


def run(command, **settings):
    """Events go to a file: on a busy machine there may be some."""
    return run_it(command, VTHR_LOG=os.path.join(here, 'events.log'), **settings)


def pid_in(name):
    return int(os.path.basename(name).split('.')[1])


def whole(name, final=None):
    """The report in a file, with what every report has."""
    report = read_json(name)
    if report is None:
        return {}
    seen = report.get('pins_seen') or {}
    expect({'count', 'total_ms', 'longest_ms'} <= set(seen), f'{os.path.basename(name)}: pins_seen', report)
    expect(isinstance(report.get('unseen_blocks'), int), f'{os.path.basename(name)}: unseen_blocks', report.get('unseen_blocks'))
    expect(report.get('pid') == pid_in(name), f'{os.path.basename(name)}: pid', report.get('pid'))
    if final is not None:
        expect(report.get('final') is final, f'{os.path.basename(name)}: final', report.get('final'))
    return report


# Three servers are killed later: by SIGTERM, by SIGKILL, and by a signal whose handler calls exit.
servers = {}
for kind in ('term', 'kill', 'usr1'):
    servers[kind] = start([ENDS, 'serve'], VTHR_LOG=os.path.join(here, 'events.log'), VTHR_REPORT=os.path.join(here, f'{kind}.%p.json'))
for process in servers.values():
    expect(process.stdout.readline() == 'ready\n', 'a server does not start')
begin = time.monotonic()

# Meanwhile: each way to end.
for way, code in (('exit', 6), ('_exit', 7), ('quick_exit', 8), ('return', 0), ('pthread_exit', 0)):
    result = run([ENDS, way], VTHR_REPORT=os.path.join(here, f'{way}.%p.json'))
    names = files(f'{way}.*.json')
    expect(result.returncode == code and result.stderr == '', f'{way}: exit code {result.returncode}, want {code}', result.stderr)
    expect(len(names) == 1, f'{way}: {len(names)} reports')
    for name in names:
        whole(name, True)

# A relative name, without %p and without .json: text, in the folder where the program started.
result = run([ENDS, 'return'], cwd=here, VTHR_REPORT='plain.txt')
text = read_text(os.path.join(here, 'plain.txt')) if files('plain.txt') else ''
expect('pins seen' in text and 'blocks that nobody saw' in text, 'the report as text', text)
expect(not ours(text), 'a report in a file has no prefix', text[:300])

# On stderr: every line is marked as ours.
result = run([ENDS, 'return'], VTHR_REPORT='stderr')
expect(result.stdout == '' or result.stdout == 'OK\n', 'stdout', result.stdout)
expect(len(ours(result.stderr)) >= 3 and len(ours(result.stderr)) == len(result.stderr.splitlines()), 'the report on stderr', result.stderr)

# No thread, no report; the same for a disabled library.
run([ENDS, 'none'], VTHR_REPORT=os.path.join(here, 'none.%p.json'))
run([ENDS, 'return'], VTHR_DISABLE='1', VTHR_REPORT=os.path.join(here, 'disabled.%p.json'))
expect(files('none.*') == [] and files('disabled.*') == [], 'a report without fibers', files('none.*') + files('disabled.*'))

# Twenty forked children: one each, and one of the parent only if it made threads itself.
for kind, parent in (('children', 1), ('plain-children', 0)):
    result = run([ENDS, kind, '20'], VTHR_REPORT=os.path.join(here, f'{kind}.%p.json'))
    names = files(f'{kind}.*.json')
    expect(result.returncode == 0, f'{kind}: exit code {result.returncode}', result.stdout)
    expect(len(names) == 20 + parent, f'{kind}: {len(names)} reports, want {20 + parent}')
    for name in names:
        whole(name, True)
# Without %p no child takes the parent's place.
result = run([ENDS, 'children', '3'], VTHR_REPORT=os.path.join(here, 'one.json'))
expect(len(files('one.json*')) == 4, 'children without %p: not one report each', files('one.json*'))
report = read_json(os.path.join(here, 'one.json'))
expect(report is not None and not os.path.exists(os.path.join(here, f'one.json.{report.get("pid")}')), 'the parent keeps the name')

# A daemon's report has the daemon's number.
result = run([ENDS, 'daemon'], VTHR_REPORT=os.path.join(here, 'daemon.%p.json'))
daemon = int(result.stdout.split()[0]) if result.stdout.split() else -1
name = os.path.join(here, f'daemon.{daemon}.json')
expect(wait_until(lambda: os.path.exists(name)), 'no report of the daemon', files('daemon.*'))
if os.path.exists(name):
    whole(name)

# The killed ones leave a report that is at most ten seconds old. It is replaced as a whole: never half a document.
time.sleep(max(0.0, begin + 11.3 - time.monotonic()))
for kind, number in (('term', signal.SIGTERM), ('kill', signal.SIGKILL), ('usr1', signal.SIGUSR1)):
    process = servers[kind]
    name = os.path.join(here, f'{kind}.{process.pid}.json')
    if expect(os.path.exists(name), f'{kind}: no report after 11 s'):
        whole(name, False)
        expect(time.time() - os.stat(name).st_mtime < 11, f'{kind}: the report is {time.time() - os.stat(name).st_mtime:.1f} s old')
    process.send_signal(number)
    try:
        process.wait(20)
    except Exception:
        process.kill()
        expect(False, f'{kind}: the server does not end')
    code = process.returncode
    expect(code == (5 if kind == 'usr1' else -number), f'{kind}: exit code {code}')
    expect(process.stderr.read() == '', f'{kind}: something on stderr')
    if os.path.exists(name):
        whole(name, kind == 'usr1')
expect([n for n in os.listdir(here) if n.endswith('.tmp') or n.startswith('.')] == [], 'temporary files are left', os.listdir(here))
finish()
