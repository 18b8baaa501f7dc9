#!/usr/bin/env python3
"""1,000 threads that sleep in all kinds of waits cost next to nothing: less than 0.5 % of a core over ten seconds."""
# run: timeout=60 alone=yes
import os
import sys
import time

sys.dont_write_bytecode = True
from vthr_test import expect, finish, logged, program, read_text, start  # noqa: E402


def cpu_seconds(pid):
    fields = read_text(f'/proc/{pid}/stat').rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


def status(pid, name):
    for line in read_text(f'/proc/{pid}/status').splitlines():
        if line.startswith(name + ':'):
            return int(line.split()[1])
    return -1


process = start([program('kernel_threads'), 'idle'], **logged())
expect(process.stdout.readline() == 'ready\n', 'the program does not start')
time.sleep(1)
threads, before = status(process.pid, 'Threads'), cpu_seconds(process.pid)
time.sleep(10)
used = cpu_seconds(process.pid) - before
most = (os.cpu_count() or 1) + 10
expect(threads <= most, f'{threads} kernel threads for 1,000 sleeping threads, allowed are {most}')
expect(used <= 0.05, f'{used:.2f} s of CPU time in ten seconds of sleep, allowed are 0.05')
rest, errors = process.communicate(timeout=30)
expect(process.returncode == 0 and rest == 'OK\n' and errors == '', 'the end', rest + errors)
finish()
