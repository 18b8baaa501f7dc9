#!/usr/bin/env python3
"""1,000 native sleeps of 1 ms by a system call instruction: pins seen plus blocks that nobody saw begin are 1,000.

Without any, they are none.
"""
# run: timeout=120 alone=yes
import os
import sys

sys.dont_write_bytecode = True
from vthr_test import expect, finish, logged, program, read_json, run, scratch  # noqa: E402

here = scratch()
for carriers in (None, 1):
    for sleeps, lowest, highest in ((1000, 950, 1050), (0, 0, 5)):
        name = os.path.join(here, f'{sleeps}.{carriers}.json')
        result = run([program('pin_count'), str(sleeps)], **logged(VTHR_REPORT=name, VTHR_CARRIERS=carriers))
        expect(result.returncode == 0 and result.stdout == 'OK\n', f'{sleeps} sleeps: the program', result.stdout)
        report = read_json(name)
        if report is None:
            continue
        seen, unseen = report.get('pins_seen', {}), report.get('unseen_blocks', -1)
        total = seen.get('count', -1) + unseen
        where = f'{sleeps} sleeps, VTHR_CARRIERS={carriers}'
        expect(lowest <= total <= highest, f'{where}: {seen.get("count")} seen + {unseen} not seen = {total}')
        if seen.get('count'):
            longest, sum_ms = seen['longest_ms'], seen['total_ms']
            expect(0 < longest <= sum_ms, f'{where}: longest {longest} ms, total {sum_ms} ms')
        else:
            expect(seen.get('total_ms') == 0 and seen.get('longest_ms') == 0, f'{where}: time without pins', seen)
finish()
