#!/usr/bin/env python3
"""The test of tests/run.py: that it fails what must fail.

On this tree: with a library that does not exist, or that exports nothing, every preloaded test fails. On a small tree of
its own, with a false library that only logs: hangs, differences, wrong modes and scripts are told apart.
"""
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RUN = os.path.join(ROOT, 'tests', 'run.py')
BUILD = os.environ.get('BUILD', os.path.join(ROOT, 'build'))
PRELOADED = 'cases,prog,regress,stress,servers'
# Those that need no look at the library to be found out; a few are enough.
SUBSET = r'^cases/13.*default|^prog/(create_join|mutex_kinds) .*default'

FALSE_LIBRARY = r'''
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int false_vthr(void) { return 1; }
__attribute__((constructor)) static void log_mode(void) {
  const char *file = getenv("VTHR_LOG"), *mode = getenv("SAY_MODE");
  int fd = file ? open(file, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;
  if (fd < 0) return;
  if (!mode) mode = "mode=fibers";
  dprintf(fd, "vthr: start %s\n", mode);
  close(fd);
  if (getenv("SAY_STDERR")) dprintf(2, "vthr: on stderr\n");
}
'''

# name, result, directives, body of main
PROGRAMS = [
    ('same', 'passed', '', 'puts("same");'),
    ('one_mode', 'passed', 'modes=carriers1', 'puts(getenv("LD_PRELOAD") && !getenv("VTHR_CARRIERS") ? "bad" : "ok");'),
    ('variants', 'passed', 'args="a b"\n// run: env=X=1', 'puts(argc == 3 || getenv("X") ? "ok" : "no"); return argc != 3 && !getenv("X");'),
    ('differs', 'failed', '', 'puts(getenv("LD_PRELOAD") ? "preloaded" : "native");'),
    ('differs_allowed', 'passed', 'stdout=ignore', 'puts(getenv("LD_PRELOAD") ? "preloaded" : "native");'),
    ('code', 'failed', '', 'return getenv("LD_PRELOAD") ? 3 : 0;'),
    ('native_fails', 'failed', '', 'return 1;'),
    ('exit_code', 'passed', 'exit=5', 'return 5;'),
    ('crash', 'failed', '', 'if (getenv("LD_PRELOAD")) abort();'),
    ('hang', 'failed', 'timeout=0.5', 'if (getenv("LD_PRELOAD")) pause();'),
    ('no_threads_but', 'failed', 'threads=no', ''),
    ('no_threads', 'passed', 'threads=no env=SAY_MODE=nothing', ''),
    ('native_unsaid', 'failed', 'env=SAY_MODE=mode=native', ''),
    ('native_said', 'passed', '''expect-mode=native why=refused env='SAY_MODE=mode=native why="io_uring refused: EPERM"' ''', ''),
    ('native_other', 'failed', '''expect-mode=native why=refused env='SAY_MODE=mode=native why="TSan"' ''', ''),
    ('native_not', 'failed', 'expect-mode=native', ''),
    ('log_said', 'passed', 'log="start mode=fibers"', ''),
    ('log_unsaid', 'failed', 'log="engine=none"', ''),
    ('stderr_line', 'failed', 'env=SAY_STDERR=1', ''),
    ('needs', 'skipped', 'needs=/nonexistent', ''),
]
SCRIPTS = [
    ('script_same', 'passed', '[ -n "$BUILD" ] && LD_PRELOAD=$LIB /bin/true'),
    ('script_unproven', 'failed', 'true'),
    ('script_own_proof', 'passed', '# run: proof=own\ntrue'),
    ('script_fails', 'failed', 'LD_PRELOAD=$LIB /bin/true; exit 1'),
    ('script_skips', 'skipped', 'echo the reason; exit 77'),
]
problems = []


def expect(what, condition, text=''):
    if not condition:
        problems.append(f'{what}\n{text}')


def run(*arguments):
    done = subprocess.run([sys.executable, RUN, *arguments], capture_output=True, text=True, check=False)
    last = (done.stdout.splitlines() or [''])[-1]
    found = re.fullmatch(r'(\d+) passed, (\d+) failed(?:, (\d+) skipped)?', last)
    expect(f'{arguments}: the last line is not the result', found, done.stdout + done.stderr)
    return done, [int(count or 0) for count in found.groups()] if found else [-1, -1, -1]


def compile_c(text, output, *flags):
    subprocess.run(['gcc', '-O1', '-w', '-x', 'c', '-', '-o', output, *flags], input=text, text=True, check=True)


def bad_libraries(scratch):
    empty = os.path.join(scratch, 'libempty.so')
    compile_c('', empty, '-shared')
    count = len(subprocess.run([sys.executable, RUN, '--build', BUILD, '--only', PRELOADED, '--list'], capture_output=True,
                               text=True, check=True).stdout.split('\n')) - 1
    for library in ('/nonexistent.so', empty):
        done, counts = run('--build', BUILD, '--only', PRELOADED, '--lib', library)
        expect(f'{library}: not every one of {count} preloaded tests failed',
               counts[0] == 0 and counts[1] + counts[2] == count and counts[1] > 0 and done.returncode == 1, done.stdout)
        done, counts = run('--build', BUILD, '--only', PRELOADED, '--lib', library, '--trust-library', '--filter', SUBSET)
        expect(f'{library}: a test passed on its log alone', counts[0] == 0 and counts[1] > 0, done.stdout)
        expect(f'{library}: the reason is another', done.stdout.count('mode=fibers') == counts[1], done.stdout)


def small_tree(scratch):
    for folder in ('tests/prog', 'interpose', 'build/tests/prog'):
        os.makedirs(os.path.join(scratch, folder))
    with open(os.path.join(scratch, 'interpose', 'symbols.def'), 'w', encoding='utf-8') as rows:
        rows.write('EXPORT(false_vthr)\n')
    library = os.path.join(scratch, 'libfalse.so')
    compile_c(FALSE_LIBRARY, library, '-shared', '-fPIC')
    expected = {}
    for name, result, directives, body in PROGRAMS:
        text = (f'// run: {directives}\n' if directives else '') + '#include <stdio.h>\n#include <stdlib.h>\n' \
            '#include <unistd.h>\nint main(int argc, char **argv) {' + body + ' return 0; }\n'
        with open(os.path.join(scratch, 'tests/prog', name + '.c'), 'w', encoding='utf-8') as source:
            source.write(text)
        compile_c(text, os.path.join(scratch, 'build/tests/prog', name))
        expected[name] = result
    for name, result, body in SCRIPTS:
        path = os.path.join(scratch, 'tests/prog', name + '.sh')
        with open(path, 'w', encoding='utf-8') as script:
            script.write('#!/bin/sh\n' + body + '\n')
        os.chmod(path, 0o755)
        expected[name] = result

    arguments = ('--root', scratch, '--build', os.path.join(scratch, 'build'), '--lib', library)
    done, _ = run(*arguments, '-v')
    expect('exit code with failed tests', done.returncode == 1)
    for name, result in expected.items():
        seen = set(re.findall(rf'^(\w+) +prog/{name}[# ]', done.stdout, re.M))
        expect(f'{name}: {seen}, expected {result}', seen == {result}, done.stdout)
    expect('a hang is not described', re.search(r'hung: no end after 0.5 s\n.*\n.*hang +wchan=', done.stdout), done.stdout)
    expect('variants', len(re.findall(r'^passed +prog/variants#[12] ', done.stdout, re.M)) == 4, done.stdout)
    done, counts = run(*arguments, '--filter', '/same |no_threads ', '--repeat', '3')
    expect('exit code when all pass', done.returncode == 0 and counts == [4, 0, 0], done.stdout)
    done, counts = run(*arguments, '--filter', 'no such test')
    expect('exit code when nothing ran', done.returncode == 1 and counts == [0, 0, 0])


def main():
    with tempfile.TemporaryDirectory(prefix='vthr-runner-') as scratch:
        bad_libraries(scratch)
        small_tree(scratch)
    print('\n'.join(problems) if problems else 'runner: ok')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
