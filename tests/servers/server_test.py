"""What the scripts in this folder share beyond tests/prog/vthr_test.py: children with a time limit, seen from outside.

Every child writes to files, is ended by its own process id at the latest when the script ends, and a hang is described.
"""
import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'prog'))
import vthr_test  # noqa: E402
from vthr_test import LIB, LOGS, environment, expect, finish, read_text, scratch, skip, wait_until  # noqa: E402,F401

BUILD = os.path.abspath(os.environ['BUILD'])
MODE = re.compile(r'^vthr: start mode=(\w+)(?:.* why="([^"]*)")?', re.M)
_children = []
if 'LOGS' not in os.environ:  # not under the runner
    os.chmod(LOGS, 0o1777)
    atexit.register(shutil.rmtree, LOGS, True)


class Child:
    """A running program. Its output is in .out and .err, its start line (if preloaded) in .log."""

    _count = 0

    def __init__(self, command, preload=None, name=None, stdin=None, setup=None, env=None, cwd=None):
        Child._count += 1
        self.name = (name or os.path.basename(command[0])).replace(' ', '-').replace('/', '')
        self.path = os.path.join(scratch(), f'{Child._count}-{self.name}')
        # In the runner's folder for logs, which any user may write to.
        self.log = os.path.join(LOGS, f'{os.path.basename(self.path)}.log')
        settings = dict(env or {})
        if preload:
            settings = dict({'VTHR_LOG': self.log, 'VTHR_LOG_LEVEL': 'info', 'LD_PRELOAD': preload}, **settings)
        with open(self.path + '.out', 'wb') as out, open(self.path + '.err', 'wb') as err:
            self.process = subprocess.Popen(command, env=environment(preload=False, **settings), stdout=out, stderr=err,
                                            stdin=stdin or subprocess.DEVNULL, preexec_fn=setup, cwd=cwd)
        self.pid = self.process.pid
        _children.append(self)

    out = property(lambda self: read_text(self.path + '.out'))
    err = property(lambda self: read_text(self.path + '.err'))

    def mode(self):
        """'fibers', or 'native' with the reason, or '' before the runtime started."""
        found = MODE.search(read_text(self.log)) if os.path.exists(self.log) else None
        return '' if found is None else found.group(1) + (f' ({found.group(2)})' if found.group(2) else '')

    def running(self):
        return self.process.poll() is None

    def kernel_threads(self):
        """0 when the process is gone."""
        return status(self.pid, 'Threads')

    def wait(self, seconds):
        """The exit code, or None with a finding that tells where it hangs; it is killed then."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            expect(False, f'{self.name}: no end after {seconds} s', f'{describe(self.pid)}\n{self.out[-500:]}{self.err[-500:]}')
            self.kill()
            return None

    def kill(self):
        """Ends it and what it started: a tracer's end would let its program run on."""
        if self.running():
            for pid in [*descendants(self.pid), self.pid]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.process.wait()


@atexit.register
def _end_children():
    for child in _children:
        child.kill()
    if vthr_test._scratch:
        shutil.rmtree(vthr_test._scratch, ignore_errors=True)


def findings():
    return vthr_test._findings


def descendants(pid):
    found = []
    try:
        for tid in os.listdir(f'/proc/{pid}/task'):
            for child in read_text(f'/proc/{pid}/task/{tid}/children').split():
                found += [int(child), *descendants(int(child))]
    except OSError:
        pass
    return found


def status(pid, name):
    """A number of /proc/PID/status; 0 when there is none."""
    try:
        found = re.search(rf'^{name}:\s*(\d+)', read_text(f'/proc/{pid}/status'), re.M)
    except OSError:
        return 0
    return int(found.group(1)) if found else 0


def describe(pid):
    """Where the kernel threads of a process are: name and system call of each."""
    lines = []
    try:
        tids = sorted(os.listdir(f'/proc/{pid}/task'), key=int)
    except OSError:
        return 'it is gone'
    for tid in tids[:8]:
        words = []
        for file in ('comm', 'wchan', 'syscall'):
            try:
                words.append(read_text(f'/proc/{pid}/task/{tid}/{file}').strip())
            except OSError as error:
                words.append(error.strerror)
        lines.append(f'{tid} {words[0]} in {words[1]}: {words[2]}')
    return f'{len(tids)} kernel threads\n' + '\n'.join(lines)


class Peak:
    """The largest number of kernel threads that sample() saw."""

    def __init__(self, child):
        self.child, self.most = child, 0

    def sample(self):
        self.most = max(self.most, self.child.kernel_threads())
        return self.most


def sleep_sampling(peak, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        peak.sample()
        time.sleep(0.01)
