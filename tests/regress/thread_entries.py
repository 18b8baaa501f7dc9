#!/usr/bin/env python3
"""Nothing is looked up below a thread's own entry in /proc when a process starts its first thread: on a loaded machine the end of such a
process, and the wait for it, spin in the kernel (11 to 45 ms for each forked child that made a thread; a thread of the program that does
it natively costs the same)."""
# run: timeout=60 needs=strace
import os
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'prog'))
from vthr_test import LIB, LOGS, environment, expect, finish, read_text, scratch, skip  # noqa: E402

trace = os.path.join(scratch(), 'trace')
program = os.path.join(os.environ['BUILD'], 'tests', 'prog', 'fork_threads')
tried = subprocess.run(['strace', '-o', '/dev/null', 'true'], capture_output=True, text=True, timeout=20, check=False)
if tried.returncode != 0:
    skip(f'strace does not work here: {tried.stderr.strip()[-200:]}')
done = subprocess.run(['strace', '-f', '-o', trace, '-e', 'trace=%file', '-E', f'LD_PRELOAD={LIB}', program],
                      env=environment(preload=False, VTHR_LOG=os.path.join(LOGS, 'log.%p'), VTHR_LOG_LEVEL='info'),
                      capture_output=True, text=True, timeout=50, check=False)
expect(done.returncode == 0, f'fork_threads ends with {done.returncode}', done.stdout + done.stderr[-500:])
seen = read_text(trace)
expect('libvthr.so' in seen or os.path.basename(LIB) in seen, 'the trace does not show the library', seen[-500:])
found = [line for line in seen.splitlines() if '/proc/thread-self' in line]
expect(not found, f'{len(found)} look-ups', '\n'.join(found[:3]))
finish()
