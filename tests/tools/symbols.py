#!/usr/bin/env python3
"""symbols.py LIBRARY SYMBOLS.DEF: the library exports exactly the rows of symbols.def, with the right versions.

HOOK(name), EXPORT(name)           name with no version: matches a reference with any
HOOK_VER(name, impl, VERSION)      name@VERSION or name@@VERSION (the default of new links)
"""
import re
import subprocess
import sys


def rows(path):
    wanted, problems = set(), []
    with open(path, encoding='utf-8') as file:
        for number, line in enumerate(file, 1):
            found = re.match(r'\s*(HOOK|EXPORT|HOOK_VER)\(([^)]*)\)', line)
            if not found:
                continue
            words = [word.strip() for word in found.group(2).split(',')]
            name = words[0] if found.group(1) != 'HOOK_VER' else f'{words[0]}@{words[2]}'
            if name in wanted:
                problems.append(f'{path}:{number}: {name} a second time')
            wanted.add(name)
    return wanted, problems


def exported(library):
    names = set()
    listing = subprocess.run(['nm', '-D', '--defined-only', '--with-symbol-versions', library], capture_output=True,
                             text=True, check=True).stdout
    for line in listing.splitlines():
        kind, name = line.split()[-2:]
        if kind != 'A':  # the version nodes themselves
            names.add(name.replace('@@', '@'))
    return names


def main():
    library, table = sys.argv[1:3]
    wanted, problems = rows(table)
    found = exported(library)
    problems += [f'{name}: in symbols.def, not exported' for name in sorted(wanted - found)]
    problems += [f'{name}: exported, not in symbols.def' for name in sorted(found - wanted)]
    print('\n'.join(problems) if problems else f'symbols: {len(found)}, ok')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
