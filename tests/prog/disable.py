#!/usr/bin/env python3
"""VTHR_DISABLE=1: nothing is printed, nothing is started, the program runs on threads of the kernel."""
# run: proof=own
import os
import sys

sys.dont_write_bytecode = True
from vthr_test import expect, files, finish, first_number, program, run, scratch  # noqa: E402

COUNT = [program('kernel_threads'), 'count']
native = run(COUNT, preload=False)
expect(native.returncode == 0 and first_number(native.stdout) == 201, 'natively', native.stdout)

report = os.path.join(scratch(), 'report.json')
log = os.path.join(scratch(), 'log')
for more in ({}, {'VTHR_LOG': log}, {'VTHR_REPORT': report}, {'VTHR_STATS': '50ms'}, {'VTHR_CARRIERS': 'wrong'}):
    off = run(COUNT, VTHR_DISABLE='1', VTHR_LOG_LEVEL='info', **more)
    expect((off.returncode, off.stdout, off.stderr) == (native.returncode, native.stdout, native.stderr),
           f'with VTHR_DISABLE=1 {more} the output is not the native one', off.stdout + off.stderr)
expect(files('*') == [], 'a disabled library writes files', files('*'))

on = run(COUNT, VTHR_LOG_LEVEL='info')
threads, most = first_number(on.stdout), (os.cpu_count() or 1) + 10
expect(on.returncode == 0 and threads is not None and threads <= most, f'preloaded: more than {most} kernel threads', on.stdout)
expect('mode=fibers' in on.stderr, 'preloaded: no start line', on.stderr)
finish()
