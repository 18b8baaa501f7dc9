#!/usr/bin/env python3
"""OpenJDK 17: 10,000 Java threads that wait 2 s, each inside a synchronized block of its own, on fewer than 40 kernel threads."""
# run: timeout=200 needs=java,javac
import sys
import time

sys.dont_write_bytecode = True
from server_test import LIB, Peak, expect, finish, wait_until  # noqa: E402
from openjdk_test import compile_java, is_fibers, java  # noqa: E402

THREADS, MS, MOST, WANTED = 10_000, 2_000, 40, 8
classes = compile_java('Synchronized')
begin = time.monotonic()
child = java(classes, 'Synchronized', str(THREADS), str(MS), preload=LIB)
peak = Peak(child)


def ended():
    peak.sample()
    return not child.running()


wait_until(ended, 120)
code = child.wait(1)
seconds = time.monotonic() - begin
expect(code == 0, f'java ended with {code}', child.out + child.err)
expect(child.out == f'all are inside\nsum {THREADS * (THREADS - 1) // 2}, too early 0\n', 'the output of java', child.out + child.err)
is_fibers(child)
expect(0 < peak.most < MOST, f'{peak.most} kernel threads at most, fewer than {MOST} are wanted')
print(f'{THREADS} Java threads waited {MS / 1000:g} s in {seconds:.1f} s ({WANTED} s are wanted), {peak.most} kernel threads at most')
finish()
