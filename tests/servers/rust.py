#!/usr/bin/env python3
"""A Rust program (rust_threads.rs) behaves as natively: threads, locks, channels, thread-local values with Drop, panics, parking,
sockets, children; and the ways to end, a stack overflow among them, with its message."""
# run: timeout=200 needs=rustc
import os
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
from server_test import LIB, Child, expect, finish, scratch, skip  # noqa: E402

rustc = '/usr/bin/rustc' if os.path.exists('/usr/bin/rustc') else shutil.which('rustc')
program = os.path.join(scratch(), 'rust_threads')
source = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'rust_threads.rs')
version = subprocess.run([rustc, '--version'], capture_output=True, text=True, timeout=60, check=False)
number = re.match(r'rustc 1\.(\d+)', version.stdout)
if not number or int(number.group(1)) < 63:
    skip(f'needs rustc 1.63 for scoped threads, there is {version.stdout or version.stderr}')
built = subprocess.run([rustc, '--edition', '2021', '-O', '-A', 'warnings', '-o', program, source], capture_output=True, text=True,
                       timeout=150, check=False)
if not expect(built.returncode == 0, 'rustc', built.stdout + built.stderr):
    finish()
WAYS = ('', 'exit', 'abort', 'main-panics', 'overflow')
for way in WAYS:
    command = [program, way] if way else [program]
    native = Child(command, name=f'native-{way}')
    native_code = native.wait(60)
    for mode in ({}, {'VTHR_CARRIERS': '1'}):
        child = Child(command, preload=LIB, name=f'preloaded-{way}', env=mode)
        code = child.wait(60)
        where = f'{way or "all parts"} {mode}'
        expect(code == native_code, f'{where}: ends with {code}, natively {native_code}', child.out[-500:] + child.err[-800:])
        expect(child.out == native.out, f'{where}: stdout differs', child.out[-800:] + '\nnatively\n' + native.out[-800:])
        expect(child.err == native.err, f'{where}: stderr differs', child.err[-800:] + '\nnatively\n' + native.err[-800:])
        expect(child.mode() == 'fibers', f'{where}: mode: {child.mode() or "no start line"}')
        if way == '':
            expect(child.out.endswith('OK\n'), f'{where}: the last line', child.out[-300:])
print(f'{number.group(0)}: {len(WAYS)} runs natively, as many with default carriers and with one')
finish()
