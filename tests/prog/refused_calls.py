#!/usr/bin/env python3
"""Functions on a thread's id that are not built yet: ENOTSUP, and one line for each function, however often it is called."""
import os
import sys

sys.dont_write_bytecode = True
from vthr_test import expect, finish, logged, ours, program, read_text, run, scratch  # noqa: E402

log = os.path.join(scratch(), 'log')
native = run([program('not_yet')], preload=False)
expect(native.returncode == 0 and 'not supported' not in native.stdout, 'natively', native.stdout)
result = run([program('not_yet')], VTHR_LOG=log)
expect(result.returncode == 0 and result.stderr == '', 'the program', result.stdout + result.stderr)
lines = ours(read_text(log)) if os.path.exists(log) else []
refused = [line.split()[0] for line in result.stdout.splitlines() if line.endswith('is not supported')]
for name in refused:
    about = [line for line in lines if name in line]
    expect(len(about) == 1 and 'ENOTSUP' in about[0], f'{name}: {len(about)} lines', '\n'.join(lines))
expect(len(lines) == len(refused), f'{len(refused)} functions were refused, with {len(lines)} lines', '\n'.join(lines))
run([program('create_join')], **logged())
finish()
