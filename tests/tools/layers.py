#!/usr/bin/env python3
"""Checks who includes whom: each file may include what stands below it, never what stands above.

Also: liburing, Boost.Context, libunwind and dlsym each in one place, and no file over 600 lines.
A new file gets its place in the table below first.
"""
import os
import re
import subprocess
import sys

# runtime/, bottom row first. A file may include its own row and the rows above it in this list.
RUNTIME = [
    'base sys options list lock counters trace tls',
    'stack kernel_thread wait_reasons wait context runq doorbell timer ownfd brief engine',
    'bucket',
    'fiber',
    'emulate registration closing ring epoll',
    # who waits and who schedules need each other: an unpark passes admission, a timer ends a ring operation
    'worker sched sysmon pins parking op admission',
    'runtime inspect',
]
INTERPOSE = ('symbols syscalls real enter blocking io socket poll native file time thread tsd cancel mutex cond rwlock sem barrier '
             'once futex c11 process kthread vfork signal sigpend sigthread sigaction sigwait altstack setjmp sigasm sanitizer dl libc_entry entries child init')
DIAG = 'calls diag file json log module pin report stats symbol text unwind vthr waits dump deadlock'

# What may be used only in the named files. dlsym: unwind needs it for the library that it loads itself.
ONLY = [
    (r'#\s*include\s*[<"]liburing', 'liburing', {'runtime/ring'}),
    (r'#\s*include\s*[<"]boost/|\b(?:jump|make|ontop)_fcontext\b', 'Boost.Context', {'runtime/context'}),
    (r'#\s*include\s*[<"]libunwind|"libunwind', 'libunwind', {'diag/unwind'}),
    (r'\bdlv?sym\s*\(', 'dlsym', {'interpose/real', 'diag/unwind'}),
]
LIMIT = 600
CODE = ('.cc', '.h', '.def', '.S')
TEXT = CODE + ('.c', '.cpp', '.py', '.sh')
FOLDERS = ('runtime', 'interpose', 'diag')

row_of = {f'runtime/{name}': row for row, names in enumerate(RUNTIME) for name in names.split()}
known = set(row_of) | {f'interpose/{n}' for n in INTERPOSE.split()} | {f'diag/{n}' for n in DIAG.split()}


def unit(path):
    """runtime/ring.cc -> runtime/ring"""
    return os.path.splitext(path)[0]


def may_include(source, target):
    """'' or the rule that forbids it."""
    folder, other = source.split('/')[0], target.split('/')[0]
    if other not in FOLDERS:
        return 'only runtime/, interpose/ and diag/ may be included'
    if folder == 'runtime':
        if other != 'runtime':
            return 'runtime includes only runtime'
        if row_of[target] > row_of[source]:
            return f'{target} stands above {source}'
    elif folder == 'interpose':
        if source == 'interpose/init' or other == 'interpose' and target != 'interpose/init' or target == 'runtime/runtime':
            return ''
        return 'interpose includes only runtime/runtime.h and interpose'
    elif folder == 'diag':
        # The command line tool prints the table of options.
        if other == 'diag' or target == 'runtime/inspect' or (source, target) == ('diag/vthr', 'runtime/options'):
            return ''
        return 'diag includes only runtime/inspect.h and diag'
    return ''


def check_file(path, text, problems):
    if unit(path) not in known:
        problems.append(f'{path}: not in the table of tests/tools/layers.py')
        return
    text = re.sub(r'/\*.*?\*/', lambda m: '\n' * m.group().count('\n'), text, flags=re.S)
    for number, line in enumerate(text.splitlines(), 1):
        line = re.sub(r'(^|\s)//.*', '', line)
        include = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if include:
            target = include.group(1)
            if '/' not in target:
                target = os.path.join(os.path.dirname(path), target)
            target = unit(target)
            if target not in known and target.split('/')[0] in FOLDERS:
                problems.append(f'{path}:{number}: {target} is not in the table')
            elif target.split('/')[0] in FOLDERS and target != unit(path):
                why = may_include(unit(path), target)
                if why:
                    problems.append(f'{path}:{number}: {why}')
        for pattern, what, where in ONLY:
            if unit(path) not in where and re.search(pattern, line):
                problems.append(f'{path}:{number}: {what} belongs in {", ".join(sorted(where))}')


def files(root):
    """The files of the tree: git's, tracked or not yet, or simply all of them."""
    listed = subprocess.run(['git', '-C', root, 'ls-files', '-co', '--exclude-standard'], capture_output=True, text=True,
                            check=False)
    if listed.returncode == 0 and listed.stdout:
        return [f for f in listed.stdout.splitlines() if os.path.isfile(os.path.join(root, f))]
    return [os.path.relpath(os.path.join(folder, name), root) for folder, _, names in os.walk(root) for name in names]


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
    problems = []
    for path in sorted(files(root)):
        if not (path.endswith(TEXT) or os.path.basename(path) == 'Makefile') or path.startswith('build'):
            continue
        with open(os.path.join(root, path), encoding='utf-8', errors='replace') as file:
            text = file.read()
        if text.count('\n') > LIMIT:
            problems.append(f'{path}: {text.count(chr(10))} lines, at most {LIMIT}')
        if path.split('/')[0] in FOLDERS and path.endswith(CODE):
            check_file(path, text, problems)
    print('\n'.join(problems) if problems else 'layers: ok')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
