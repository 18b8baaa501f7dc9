#!/usr/bin/env python3
"""libjemalloc preloaded beside ours, before and behind it: threaded programs behave as natively, with its own threads too."""
# run: timeout=150
import glob
import itertools
import os
import sys

sys.dont_write_bytecode = True
from server_test import BUILD, LIB, Child, expect, finish, skip  # noqa: E402

PROGRAMS = ('create_join', 'cond_queue', 'stdio_threads', 'tls_dtors', 'cxx_sync', 'thread_exit', 'tcp_echo', 'fork_threads')
ORDERS = {'alone': '{other}', 'before': '{other}:{lib}', 'behind': '{lib}:{other}'}
CONFIGS = {'plain': 'stats_print:true', 'own threads': 'stats_print:true,background_thread:true'}

found = glob.glob('/usr/lib/*/libjemalloc.so.2')
if not found:
    skip('needs libjemalloc.so.2 (package libjemalloc2)')


def run(program, order, config):
    preload = ORDERS[order].format(other=found[0], lib=LIB)
    child = Child([os.path.join(BUILD, 'tests', 'prog', program)], preload=preload, name=f'{program}-{order}',
                  env={'MALLOC_CONF': CONFIGS[config]})
    code = child.wait(30)
    if code is None:
        finish()
    return child, code


for program, config in itertools.product(PROGRAMS, CONFIGS):
    native, native_code = run(program, 'alone', config)
    expect(native_code == 0 and 'jemalloc statistics' in native.err, f'{program} with jemalloc alone', native.out + native.err[:300])
    for order in ('before', 'behind'):
        child, code = run(program, order, config)
        what = f'{program}, jemalloc {order} us, {config}'
        expect(code == native_code, f'{what}: ended with {code}', child.out[-600:] + child.err[:600])
        expect(child.out == native.out, f'{what}: stdout differs', child.out + native.out)
        expect(child.mode() == 'fibers', f'{what}: mode: {child.mode() or "no start line"}')
        expect('jemalloc statistics' in child.err, f'{what}: the program does not use jemalloc', child.err[:300])
finish()
