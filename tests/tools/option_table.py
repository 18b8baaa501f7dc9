#!/usr/bin/env python3
"""The table of options in README.md, as `vthr options --markdown` prints it from runtime/options.def.

option_table.py VTHR --write    puts it between the two marker lines of README.md
option_table.py VTHR --check    fails if README.md says something else
"""
import os
import subprocess
import sys

README = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'README.md')
BEGIN, END = '<!-- options: made by `make options` -->', '<!-- end of options -->'


def main():
    tool, action = sys.argv[1:]
    table = subprocess.run([tool, 'options', '--markdown'], capture_output=True, text=True, check=True).stdout.strip()
    if not table.startswith('|'):
        print(f'{tool} options --markdown printed no table')
        return 1
    with open(README, encoding='utf-8') as file:
        text = file.read()
    before, begin, rest = text.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end:
        print(f'README.md: the lines "{BEGIN}" and "{END}" are missing')
        return 1
    new = f'\n\n{table}\n\n'
    if action == '--check':
        print('option table: ok' if new == old else 'README.md: the table of options is old, run make options')
        return 0 if new == old else 1
    with open(README, 'w', encoding='utf-8') as file:
        file.write(before + begin + new + end + after)
    return 0


if __name__ == '__main__':
    sys.exit(main())
