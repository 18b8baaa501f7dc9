#!/usr/bin/env python3
"""A Ruby program (ruby_threads.rb) behaves as natively: 500 sleeping and asking threads at once on few kernel threads, locks,
queues, time limits, deep stacks, children from threads, signals; and the ways to end, with what they print."""
# run: timeout=400 needs=/usr/bin/ruby
import difflib
import os
import re
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
from server_test import LIB, Child, expect, finish, read_text, scratch  # noqa: E402

RUBY = '/usr/bin/ruby'
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'ruby_threads.rb')
WAYS = ('', 'exit', 'raises', 'deadlock', 'term', 'int', 'hup', 'kill', 'abort', 'exec', 'main-returns')
NATIVE_THREADS, MOST = 500, 100


def plain_signals():
    # Ignored in what a shell runs in the background, and Ruby would leave it so.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def same(text):
    """Without addresses, and the order of threads in a list of them."""
    return sorted(re.sub(r'0x[0-9a-f]+', 'ADDRESS', text).splitlines())


def difference(native, preloaded):
    return '\n'.join(difflib.unified_diff(native, preloaded, 'natively', 'preloaded', n=0, lineterm=''))


def run(way, name, preload=None, **settings):
    """The process, its exit code, and how many kernel threads it had when all threads waited."""
    threads_to = os.path.join(scratch(), 'threads')
    child = Child([RUBY, PROGRAM, way] if way else [RUBY, PROGRAM], preload=preload, name=f'{name}-{way}', setup=plain_signals,
                  env=dict(settings, THREADS_TO=threads_to))
    code = child.wait(120)
    return child, code, int(read_text(threads_to)) if way == '' and os.path.exists(threads_to) else 0


for way in WAYS:
    native, native_code, native_threads = run(way, 'native')
    where = way or 'all parts'
    if way == '':
        expect(native.out.endswith('OK\n') and native_code == 0, f'natively: ends with {native_code}', native.out + native.err)
        expect(native_threads > NATIVE_THREADS, f'natively only {native_threads} kernel threads: the test does not test')
    for settings in ({}, {'VTHR_CARRIERS': '1'}):
        child, code, threads = run(way, 'preloaded', LIB, **settings)
        place = f'{where} {settings}'
        expect(code == native_code, f'{place}: ends with {code}, natively {native_code}', child.out[-600:] + child.err[-800:])
        expect(child.out == native.out, f'{place}: stdout differs', difference(native.out.splitlines(), child.out.splitlines()))
        expect(same(child.err) == same(native.err), f'{place}: stderr differs', difference(same(native.err), same(child.err)))
        expect(child.mode() == 'fibers', f'{place}: mode: {child.mode() or "no start line"}')
        expect(way != '' or 0 < threads < MOST, f'{place}: {threads} kernel threads, fewer than {MOST} are wanted')
        if way == '':
            print(f'{settings or "default"}: {threads} kernel threads, natively {native_threads}')
version = subprocess.run([RUBY, '--version'], capture_output=True, text=True, timeout=60, check=False).stdout.strip()
print(f'{version}: {len(WAYS)} runs natively, as many with default carriers and with one')
finish()
