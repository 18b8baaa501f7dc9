#!/usr/bin/env python3
"""CPython's own tests: each that passes natively passes preloaded, compared by id.

Arguments are modules of its suite (Debian: libpython3.11-testsuite). A module is run natively and preloaded. What natively
passed and then does not, be it that it fails, is skipped, is missing since the interpreter crashed, or hangs, is a difference. If
there are any, the module is run natively again, up to three times in all: an id that once did not pass natively is listed and left
out. With STRESS > 1 there are three native runs from the start, and another preloaded one with VTHR_CARRIERS=1.
"""
# run: timeout=900 name=threads args="test_threading test_thread test_threading_local test_queue" needs=/usr/bin/python3
# run: timeout=900 name=sockets args="test_socketserver test_httpservers test_select test_epoll" needs=/usr/bin/python3
# run: timeout=900 name=fork args="test_fork1 test_wait4" needs=/usr/bin/python3
# run: timeout=3600 name=polling long=yes args="test_selectors test_poll test_ssl" needs=/usr/bin/python3
# run: timeout=3600 name=processes long=yes args="test_subprocess test_signal test_os" needs=/usr/bin/python3
# run: timeout=3600 name=socket long=yes args="test_socket" needs=/usr/bin/python3
# run: timeout=3600 name=asyncio long=yes args="test_asyncio" needs=/usr/bin/python3
# run: timeout=7200 name=futures long=yes args="test_concurrent_futures" needs=/usr/bin/python3
# run: timeout=7200 name=multiprocessing long=yes args="test_multiprocessing_fork" needs=/usr/bin/python3
import os
import re
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
from server_test import LIB, Child, expect, finish, scratch, skip  # noqa: E402

PYTHON = '/usr/bin/python3'
# Options that a module needs to run at all: test_socketserver wants 'network', and uses loopback only.
OPTIONS = {
    'test_socketserver': ['-u', 'network'],
    # It connects to the hypervisor, which may not answer: natively it hangs there, too.
    'test_socket': ['-i', '*VSOCK*'],
}
LIMIT = 300 * float(os.environ.get('TIMEOUT_SCALE', '1'))  # seconds for one run; natively the modules of `make check` take up to 25
LONG = int(os.environ.get('STRESS', '1')) > 1
LIMIT *= 3 if LONG else 1

# "test_name (test.test_module.Class.test_name)" or "Doctest: name", then on that line or a later one " ... ", what it prints, and
# the result. "0.01s " of the test before may stand in front.
HEAD = re.compile(r'^(?:[\d.]+s )?(?:\w+ \(((?:\w+\.)*test\.[\w.]+)\)|(Doctest: [\w.]+))(.*)$')
RESULT = re.compile(r"(?:^|\s)(ok|FAIL|ERROR|skipped .*|expected failure|unexpected success)$")
TROUBLE = re.compile(r'^(?:FAIL|ERROR): \w+ \(((?:\w+\.)*test\.[\w.]+)\)')


def passed(text):
    """The ids that passed, and the last one that had begun."""
    results, now = {}, None
    for line in text.splitlines():
        head, rest = HEAD.match(line), line
        if head:
            now, rest = head.group(1) or head.group(2), head.group(3)
            while now in results:  # some are there twice
                now += "'"
            results[now] = ''
        trouble = TROUBLE.match(line)
        if trouble:
            results[trouble.group(1)], now = 'FAIL', None
        found = RESULT.search(rest) if now else None
        if found and results[now] in ('', 'ok'):
            # one that failed in a part of it (a subtest) has failed
            results[now] = found.group(1)
    return {name for name, result in results.items() if result in ('ok', 'expected failure')}, now


def as_from_a_terminal():
    # Ignored in what a shell runs in the background, and Python would leave it so.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(module, name, preload=None, **settings):
    """The ids that passed, and the process. A hang is no finding by itself when it is a native one."""
    folder = os.path.join(scratch(), f'{module}-{name}')
    os.mkdir(folder)
    child = Child([PYTHON, '-m', 'test', '-v', *OPTIONS.get(module, []), module], preload=preload, name=f'{module}-{name}',
                  setup=as_from_a_terminal, cwd=folder, env=dict(TMPDIR=folder, **settings))
    if preload:
        code = child.wait(LIMIT)
    else:
        try:
            code = child.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            code = None
            child.kill()
    ids, last = passed(child.out)
    if code != 0:
        print(f'{module}, {name}: ends with {"a hang" if code is None else code}' + (f', the last test is {last}' if last else ''))
    return ids, child


def words_about(child, name):
    """What the run says about one id."""
    lines, at = child.out.splitlines(), []
    for number, line in enumerate(lines):
        if name.rstrip("'") in line:
            at.append(number)
    return '\n'.join('\n'.join(lines[n:n + 40]) for n in at[-1:]) or 'it is missing'


def compare(module):
    native = [run(module, 'native-1')[0]]
    if not expect(native[0], f'{module}: nothing passes natively: the test does not test'):
        return
    unsure = set()

    def again():
        native.append(run(module, f'native-{len(native) + 1}')[0])
        unsure.update((native[0] | native[-1]) - (native[0] & native[-1]))

    while LONG and len(native) < 3:
        again()
    for name, settings in [('preloaded', {})] + ([('preloaded-1-carrier', {'VTHR_CARRIERS': '1'})] if LONG else []):
        ids, child = run(module, name, preload=LIB, **settings)
        while native[0] - unsure - ids and len(native) < 3:
            again()
        different = sorted(native[0] - unsure - ids)
        print(f'{module}: natively {len(native[0] - unsure)} passed, {name} {len(ids - unsure)}, differing {len(different)}'
              + ''.join(f'\n    {each}' for each in different))
        expect(child.mode() == 'fibers', f'{module}, {name}: mode: {child.mode() or "no start line"}')
        for each in different[:5]:
            expect(False, f'{module}, {name}: {each}', words_about(child, each))
        expect(not different, f'{module}, {name}: {len(different)} of {len(native[0])} differ', child.err[-800:] + child.out[-300:])
    if unsure:
        print(f'{module}: not in each of {len(native)} native runs, left out: ' + ', '.join(sorted(unsure)))
    sys.stdout.flush()


for variable in [each for each in os.environ if each.startswith('PYTHON')]:
    del os.environ[variable]
if len(sys.argv) < 2:
    skip('name modules of the suite, such as test_threading')
if subprocess.run([PYTHON, '-c', 'import test.test_threading'], capture_output=True, timeout=60, check=False).returncode != 0:
    skip('needs the test suite of CPython (Debian: libpython3.11-testsuite)')
for wanted in sys.argv[1:]:
    compare(wanted)
finish()
