#!/usr/bin/env python3
"""OpenJDK 17's own tools against a preloaded process with a few hundred waiting threads: jcmd attaches (SIGQUIT, a socket),
prints every thread with its monitors, the heap; a second SIGQUIT prints a dump to stdout; the process goes on and ends."""
# run: timeout=200 needs=java,javac,jcmd
import os
import re
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
from server_test import LIB, expect, finish, wait_until  # noqa: E402
from openjdk_test import compile_java, is_fibers, java  # noqa: E402

WAITING = 300
classes = compile_java('Ends')


def jcmd(pid, *words):
    try:
        done = subprocess.run(['jcmd', str(pid), *words], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired as late:
        expect(False, f'jcmd {words}: no end', str(late.stdout)[-300:])
        return ''
    expect(done.returncode == 0, f'jcmd {words} ends with {done.returncode}', done.stdout[-500:] + done.stderr[-500:])
    return done.stdout


def threads_of(dump):
    """Names and states of the program's own threads."""
    found = re.findall(r'^"(Thread-\d+|main)".*\n   java\.lang\.Thread\.State: (.*)$', dump, re.M)
    return sorted(found)


dumps = {}
for label, preload in (('native', None), ('preloaded', LIB)):
    child = java(classes, 'Ends', 'signal', preload=preload, name=f'java-{label}')
    if not expect(wait_until(lambda: 'ready' in child.out or not child.running(), 40), f'{label}: not ready', child.err):  # noqa: B023
        continue
    for _ in range(3):
        dumps[label] = threads_of(jcmd(child.pid, 'Thread.print'))
    expect('garbage-first heap' in jcmd(child.pid, 'GC.heap_info') or 'generation' in jcmd(child.pid, 'GC.heap_info'), 'GC.heap_info')
    jcmd(child.pid, 'GC.run')
    expect('java.lang.Thread' in jcmd(child.pid, 'GC.class_histogram'), 'GC.class_histogram')
    os.kill(child.pid, signal.SIGQUIT)
    expect(wait_until(lambda: 'JNI global refs' in child.out, 30), f'{label}: SIGQUIT prints no dump', child.out[-300:])  # noqa: B023
    expect(child.running(), f'{label}: it ended', child.err)
    os.kill(child.pid, signal.SIGTERM)
    code = child.wait(30)
    expect(code == 143 and 'hook ran' in child.out, f'{label}: ends with {code}', child.out[-300:] + child.err[-300:])
    if preload:
        is_fibers(child)
expect(len(dumps.get('native', ())) == WAITING + 1, f'{len(dumps.get("native", ()))} threads in the native dump')
expect(dumps.get('native') == dumps.get('preloaded'), 'the threads of the dumps differ',
       f'{dumps.get("native")}\n{dumps.get("preloaded")}'[:1500])
finish()
