#!/usr/bin/env python3
"""symbols.py LIBRARY SYMBOLS.DEF: the library exports exactly the rows of symbols.def, with the right versions; and every
function of threads that libc exports is a row.

HOOK(name), EXPORT(name)           name with no version: matches a reference with any
HOOK_VER(name, impl, VERSION)      name@VERSION or name@@VERSION (the default of new links)
PASS(name, KIND/TEST)              libc's own serves fibers too: tests/KIND/TEST calls it

Functions of threads: pthread_*, sem_*, those of C11, _Fork, and what begins with underscores and pthread_. Where versions of
a name are different functions, a hook needs a row for each version, and the test of a PASS row names the old ones.
"""
import collections
import glob
import os
import re
import subprocess
import sys

THREADS = re.compile(r'(_{0,2}pthread_|sem_|thrd_|mtx_|cnd_|tss_)\w+|call_once|_Fork')


def rows(path):
    wanted, passed, problems = set(), {}, []
    with open(path, encoding='utf-8') as file:
        for number, line in enumerate(file, 1):
            found = re.match(r'\s*(HOOK|EXPORT|HOOK_VER|PASS)\(([^)]*)\)', line)
            if not found:
                continue
            words = [word.strip() for word in found.group(2).split(',')]
            name = words[0] if found.group(1) != 'HOOK_VER' else f'{words[0]}@{words[2]}'
            if name in wanted or name in passed:
                problems.append(f'{path}:{number}: {name} a second time')
            if found.group(1) == 'PASS':
                passed[name] = words[1]
            else:
                wanted.add(name)
    return wanted, passed, problems


def exported(library):
    names = set()
    listing = subprocess.run(['nm', '-D', '--defined-only', '--with-symbol-versions', library], capture_output=True,
                             text=True, check=True).stdout
    for line in listing.splitlines():
        kind, name = line.split()[-2:]
        if kind != 'A':  # the version nodes themselves
            names.add(name.replace('@@', '@'))
    return names


def libc_functions():
    """name -> {version: address}, of the libc that runs this."""
    with open('/proc/self/maps', encoding='utf-8') as maps:
        path = next(line.split()[-1] for line in maps if line.rstrip().endswith('/libc.so.6'))
    listing = subprocess.run(['readelf', '-W', '--dyn-syms', path], capture_output=True, text=True, check=True).stdout
    functions = collections.defaultdict(dict)
    for line in listing.splitlines():
        words = line.split()
        if len(words) >= 8 and words[3] in ('FUNC', 'IFUNC') and words[6] != 'UND':
            name, _, version = words[7].partition('@')
            if version.lstrip('@') != 'GLIBC_PRIVATE':
                functions[name][version.lstrip('@')] = words[1]
    return functions


def source_of(test, root):
    for path in glob.glob(os.path.join(root, 'tests', test + '.*')) + glob.glob(os.path.join(root, 'tests', test + '*.h')):
        if path.endswith(('.c', '.cc', '.cpp', '.py')):
            text = ''
            for part in [path] + glob.glob(os.path.splitext(path)[0] + '.h'):
                with open(part, encoding='utf-8') as file:
                    text += file.read()
            return text
    return None


def check_libc(wanted, passed, root):
    problems, versions = [], 0
    hooked = {name.partition('@')[0] for name in wanted}
    functions = libc_functions()
    names = [name for name in functions if THREADS.fullmatch(name)]
    for name in sorted(set(names) | (hooked & set(functions))):
        addresses = functions[name]
        different = len(set(addresses.values())) > 1
        if name in passed:
            if name in hooked:
                problems.append(f'{name}: hooked, and a PASS row')
        elif name not in hooked:
            problems.append(f'{name}: libc exports it, and it is neither hooked nor a PASS row with a test')
        elif different:
            problems += [f'{name}@{version}: another function than other versions, and no HOOK_VER row'
                         for version in addresses if f'{name}@{version}' not in wanted]
    for name, test in sorted(passed.items()):
        text = source_of(test, root)
        if name not in functions:
            problems.append(f'{name}: a PASS row, and libc has no such function')
        elif text is None:
            problems.append(f'{name}: its test {test} does not exist')
        elif not re.search(rf'\b{name}\b', text):
            problems.append(f'{name}: its test {test} does not mention it')
        else:
            groups = collections.defaultdict(set)
            for version, address in functions[name].items():
                groups[address].add(version)
            if len(groups) > 1 and sum(any(v in text for v in group) for group in groups.values()) < len(groups) - 1:
                problems.append(f'{name}: its test {test} names no old version, which is another function')
    versions = sum(len(functions[name]) for name in names)
    return problems, len(names), versions, len(set(names) & hooked)


def main():
    library, table = sys.argv[1:3]
    wanted, passed, problems = rows(table)
    found = exported(library)
    problems += [f'{name}: in symbols.def, not exported' for name in sorted(wanted - found)]
    problems += [f'{name}: exported, not in symbols.def' for name in sorted(found - wanted)]
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
    more, names, versions, hooked = check_libc(wanted, passed, root)
    problems += more
    print('\n'.join(problems) if problems else
          f'symbols: {len(found)}, ok; of {names} functions of threads in libc ({versions} with their versions) '
          f'{hooked} are hooked, {names - hooked} pass through')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
