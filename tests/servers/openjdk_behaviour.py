#!/usr/bin/env python3
"""OpenJDK 17 behaves as natively: collectors under load, interrupts of blocked threads, the ends of a process, overflowing
stacks. Exit code, stdout and stderr are those of the native run."""
# run: timeout=300 needs=java,javac name=gc args=gc
# run: timeout=200 needs=java,javac name=interrupts args=interrupts
# run: timeout=300 needs=java,javac name=ends args=ends
# run: timeout=200 needs=java,javac name=overflow args=overflow
import os
import signal
import sys

sys.dont_write_bytecode = True
from server_test import expect, finish, wait_until  # noqa: E402
from openjdk_test import compile_java, same  # noqa: E402


def gc():
    classes = compile_java('Garbage')
    for collector in ('G1', 'Serial', 'Parallel'):
        child = same(classes, 'Garbage', options=(f'-XX:+Use{collector}GC', '-Xms32m'))
        expect(child.out.startswith('wrong 0, ') and child.out.endswith('enough true\n'), f'{collector}: {child.out}')


def interrupts():
    child = same(compile_java('Interrupts'), 'Interrupts')
    expect('still blocked' not in child.out, 'a thread stays blocked', child.out)


def overflow():
    classes = compile_java('Overflow')
    for options in ((), ('-Xint',), ('-Xss256k',)):
        child = same(classes, 'Overflow', options=options, seconds=80)
        expect(child.out.endswith('all 231 0\n'), 'overflows', child.out)


def ready_then(number):
    def send(child):
        if expect(wait_until(lambda: 'ready' in child.out or not child.running(), 40), f'{child.name} is not ready', child.err):
            os.kill(child.pid, number)
    return send


def ends():
    classes = compile_java('Ends')
    for how in ('exit', 'exit-in-thread', 'halt', 'return', 'exception', 'exception-in-thread', 'last-thread'):
        same(classes, 'Ends', how)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
        child = same(classes, 'Ends', number.name, before=ready_then(number))
        expect(number == signal.SIGKILL or 'hook ran' in child.out, f'{number.name}: the hook did not run', child.out)


{'gc': gc, 'interrupts': interrupts, 'ends': ends, 'overflow': overflow}[sys.argv[1]]()
finish()
