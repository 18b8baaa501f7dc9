#!/usr/bin/env python3
"""All ways to end a process, with 10,000 threads parked: exit code, output and its order are those of the native run. How much later
than natively the process is gone is printed, from the moment in which it begins to end; nothing is asserted about that."""
# run: timeout=200
import os
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from vthr_test import LOGS, LIB, environment, expect, finish, program  # noqa: E402

THREADS, TIMES = 10_000, 1
WAYS = ('return', 'exit', '_exit', 'quick_exit', 'abort', 'fault', 'trap', 'kill', 'term', 'caught', 'exec', 'thread-exit', 'thread-_exit',
        'thread-quick_exit', 'thread-abort', 'thread-fault', 'thread-kill', 'thread-term', 'thread-exec')


def run(way, preload):
    """Exit code, stdout, seconds between the beginning of the end and the end, number of threads."""
    settings = {'LD_PRELOAD': LIB, 'VTHR_LOG': os.path.join(LOGS, 'log.%p'), 'VTHR_LOG_LEVEL': 'info'} if preload else {}
    child = subprocess.Popen([program('ends_parked'), str(THREADS), way], env=environment(preload=False, **settings),
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        _, status = os.waitpid(child.pid, 0)
        gone = time.time()
        child.returncode = os.waitstatus_to_exitcode(status)
        out, err = child.communicate(timeout=30)
    finally:
        if child.returncode is None:
            child.kill()
    lines = err.split('\n')
    threads, begun = int(lines[0].split()[0]), float(lines[-2])
    return child.returncode, out, gone - begun, threads


late = []
for way in WAYS:
    # natively not every machine allows so many threads: as many as there are wait
    native = [run(way, False) for _ in range(TIMES)]
    preloaded = [run(way, True) for _ in range(TIMES)]
    for code, out, _, threads in preloaded:
        expect(code == native[0][0], f'{way}: ends with {code}, natively {native[0][0]}')
        expect(out == native[0][1], f'{way}: output differs', f'{out!r}\nnatively\n{native[0][1]!r}')
        expect(threads == THREADS, f'{way}: {threads} threads')
    ms = [min(r[2] for r in runs) * 1000 for runs in (native, preloaded)]
    late.append(ms[1] - ms[0])
    print(f'{way}: code {native[0][0]}, gone after {ms[1]:.1f} ms, natively after {ms[0]:.1f} ms with {native[0][3]} threads')
print(f'later than natively: {statistics.median(late):.1f} ms in the median, {max(late):.1f} ms at most')
finish()
