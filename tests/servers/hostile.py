#!/usr/bin/env python3
"""Programs in bad surroundings: one processor, under strace and valgrind, without privileges, threads or /proc, with the
library twice. Each behaves as it does there without us; what does not work there natively either is left out and said.
"""
# run: timeout=300 name=surroundings args="taskset nobody no-proc twice a-copy few-descriptors no-memlock"
# run: timeout=300 name=strace args=strace needs=strace
# run: timeout=300 name=valgrind args=valgrind needs=valgrind
# run: timeout=120 name=few-threads args="few-threads two-threads" alone=yes
import os
import resource
import shutil
import socket
import subprocess
import sys

sys.dont_write_bytecode = True
from server_test import BUILD, LIB, Child, expect, findings, finish, scratch, skip, wait_until  # noqa: E402

PROGRAMS = ('create_join', 'cond_queue', 'tcp_echo', 'pipe_io', 'sleeps', 'exceptions', 'fork_threads', 'signal_handlers')
USER = 20_000 + os.getpid() % 40_000  # nobody else's: limits by user count only our processes
open_folder = os.path.join(scratch(), 'open')  # readable to that user, wherever the build is
ran = []


def copy_in(path):
    os.makedirs(open_folder, exist_ok=True)
    os.chmod(scratch(), 0o755)
    os.chmod(open_folder, 0o755)
    to = os.path.join(open_folder, os.path.basename(path))
    if not os.path.exists(to):
        shutil.copy(path, to)
        os.chmod(to, 0o755)
    return to


def program(name):
    return copy_in(os.path.join(BUILD, 'tests', 'prog', name))


def works(*command, seconds=20):
    """'' or why this command does not work here."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return '' if done.returncode == 0 else f'{" ".join(command[:3])} ...: {done.stderr.strip()[-200:] or done.returncode}'


def same(where, names, around=(), preload=None, setup=None, env=None, seconds=60, mode='fibers', stderr=True):
    """Each program natively and preloaded inside `around`."""
    for name in names:
        command = [*around, program(name)]
        native = Child(command, name=f'{where}-{name}-native', setup=setup, env=env)
        native_code = native.wait(seconds)
        if native_code is None or (native_code != 0 and mode == 'fibers'):
            expect(False, f'{where}: {name} ends with {native_code} natively', native.out + native.err)
            continue
        child = Child(command, preload=preload or copy_in(LIB), name=f'{where}-{name}', setup=setup, env=env)
        code = child.wait(seconds)
        if code is None:
            break
        shown = child.out[-500:] + child.err[-500:]
        expect(code == native_code, f'{where}: {name} ends with {code}, natively {native_code}', shown)
        expect(child.out == native.out, f'{where}: {name}: stdout differs', shown + '\nnatively\n' + native.out[-300:])
        if stderr:
            expect(child.err == native.err, f'{where}: {name}: stderr differs', child.err[-500:])
        expect(child.mode().startswith(mode), f'{where}: {name}: mode={child.mode() or "none"}, wanted is {mode}')
        ran.append(f'{where} {name}')


def without(where, why):
    print(f'{where}: not tried: {why}')


def taskset():
    why = works('taskset', '-c', '0', 'true')
    if why:
        return without('taskset', why)
    cpu = str(min(os.sched_getaffinity(0)))
    same('one processor', PROGRAMS, ('taskset', '-c', cpu))
    return server(('taskset', '-c', cpu))


def server(around):
    """The example server on it, with its client, which checks every answer."""
    child = Child([*around, copy_in(os.path.join(BUILD, 'examples', 'legacy_server')), '0', '20'], preload=copy_in(LIB))
    if not expect(wait_until(lambda: 'admin ' in child.out or not child.running(), 20), 'legacy_server does not start', child.err):
        return
    words = dict(line.split() for line in child.out.splitlines())
    client = Child([os.path.join(BUILD, 'examples', 'legacy_client'), words['listening'], '100', '10', str(child.pid), '40'])
    code = client.wait(60)
    expect(code == 0 and 'wrong=0\n' in client.out, f'legacy_client ends with {code}', client.out + client.err + child.err)
    with socket.create_connection(('127.0.0.1', int(words['admin'])), timeout=20) as admin:
        admin.sendall(b'QUIT\n')
        code = child.wait(20)
    expect(code == 0 and child.mode() == 'fibers', f'legacy_server ends with {code}, mode={child.mode()}', child.err)


def strace():
    why = works('strace', '-f', '-o', '/dev/null', 'true')
    if why:
        return without('strace', why)
    around = ('strace', '-f', '-o', '/dev/null')
    return same('strace', ('cond_queue', 'tcp_echo', 'pipe_io', 'exceptions', 'fork_threads'), around)


def valgrind():
    if os.environ.get('STRESS', '1') == '1':
        skip('valgrind 3.19 itself aborts in some runs on a loaded machine: make check-long runs this')
    why = works('valgrind', '--tool=none', '-q', program('cond_queue'), seconds=60)
    if why:
        return without('valgrind', why)
    # Its own warnings about system calls that it does not know are on stderr.
    return same('valgrind', ('cond_queue', 'create_join', 'tcp_echo', 'exceptions'), ('valgrind', '--tool=none', '-q'), stderr=False)


AS_USER = ('setpriv', f'--reuid={USER}', f'--regid={USER}', '--clear-groups')


def nobody():
    """Without privileges, with the limits that users often have: locked memory, descriptors, stack, no core."""
    def limit():
        for what, most in ((resource.RLIMIT_MEMLOCK, 8 << 20), (resource.RLIMIT_NOFILE, 1024), (resource.RLIMIT_STACK, 8 << 20),
                           (resource.RLIMIT_CORE, 0)):
            resource.setrlimit(what, (most, most))
    why = works(*AS_USER, 'true')
    return without('unprivileged', why) if why else same('unprivileged', PROGRAMS, AS_USER, setup=limit)


def few_threads():
    """A limit that leaves room for the runtime, but not for one more worker."""
    why = works(*AS_USER, 'prlimit', '--nproc=10', 'true')
    if why:
        return without('few threads', why)
    lib = copy_in(LIB)
    for name in ('create_join', 'cond_queue', 'pin_in_flockfile', 'many_blocked'):
        child = Child([*AS_USER, 'prlimit', '--nproc=10', program(name)], preload=lib, name=f'nproc=10-{name}')
        code = child.wait(60)
        expect(code == 0 and child.mode() == 'fibers', f'nproc=10: {name} ends with {code}, mode={child.mode()}',
               child.out[-500:] + child.err[-500:])
        ran.append(name)
    return None


TWO = r'''
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static void *work(void *p) { usleep(20000); return p; }
int main(void) {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) {
    int error = pthread_create(&t[i], NULL, work, NULL);
    if (error) return printf("thread %d: %s\n", i, strerror(error)), 1;
  }
  for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
  return puts("OK") < 0;
}
'''


def two_threads():
    """A limit in which the program's own two threads have room, and the runtime has none: it must not take theirs."""
    compiler = shutil.which('gcc') or shutil.which('cc')
    why = works(*AS_USER, 'prlimit', '--nproc=3', 'true') if compiler else 'no C compiler'
    if why:
        return without('two threads', why)
    source, binary = os.path.join(scratch(), 'two.c'), os.path.join(scratch(), 'two')
    with open(source, 'w', encoding='ascii') as file:
        file.write(TWO)
    subprocess.run([compiler, '-pthread', source, '-o', binary], check=True, timeout=60)
    two = copy_in(binary)
    for limit in range(3, 9):
        around = [*AS_USER, 'prlimit', f'--nproc={limit}', two]
        native, child = Child(around), None
        native_code = native.wait(20)
        child = Child(around, preload=copy_in(LIB))
        code = child.wait(20)
        expect((code, child.out) == (native_code, native.out), f'nproc={limit}, two threads: ends with {code} (mode={child.mode()}), '
               f'natively {native_code}', child.out + child.err)
        ran.append(f'nproc={limit}')
    return None


def no_proc():
    shell = ('unshare', '-m', 'sh', '-c', 'mount -t tmpfs none /proc && exec "$@"', 'sh')
    why = works(*shell, 'true')
    # fork_threads counts what it finds in /proc
    names = [name for name in PROGRAMS if name != 'fork_threads'] + ['pin_in_flockfile']
    return without('no /proc', why) if why else same('no /proc', names, shell)


def twice():
    lib = copy_in(LIB)
    same('twice', PROGRAMS[:4], preload=f'{lib}:{lib}')


def a_copy():
    """Two files: one of the two libraries must step back."""
    lib, other = copy_in(LIB), os.path.join(open_folder, 'copy-of-libvthr.so')
    shutil.copy(lib, other)
    for order, preload in (('copy behind', f'{lib}:{other}'), ('copy before', f'{other}:{lib}')):
        for name in PROGRAMS[:4]:
            child = Child([program(name)], preload=preload, name=f'{order}-{name}')
            code = child.wait(40)
            with open(child.log, encoding='utf-8', errors='replace') as file:
                starts = [line for line in file if line.startswith('vthr: start ')]
            expect(code == 0, f'{order}: {name} ends with {code}', child.out[-500:] + child.err[-500:])
            expect(sum('mode=fibers' in line for line in starts) == 1, f'{order}: {name}: not one library runs', ''.join(starts))
            ran.append(order)


def few_descriptors():
    """32 descriptors are enough for the runtime and these programs."""
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    same('32 descriptors', ('create_join', 'cond_queue', 'sleeps', 'exceptions'), setup=limit)


def no_memlock():
    """Some kernels count rings as locked memory: then they are refused, and the programs run natively."""
    def limit():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
    same('no locked memory', PROGRAMS[:4], AS_USER if not works(*AS_USER, 'true') else (), setup=limit, mode='')


ALL = {'taskset': taskset, 'strace': strace, 'valgrind': valgrind, 'nobody': nobody, 'few-threads': few_threads,
       'two-threads': two_threads, 'no-proc': no_proc, 'twice': twice, 'a-copy': a_copy, 'few-descriptors': few_descriptors,
       'no-memlock': no_memlock}
for what in sys.argv[1:] or ALL:
    ALL[what]()
if not ran and not findings():
    skip('nothing of this works here: see above')
finish()
