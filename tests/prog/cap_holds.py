#!/usr/bin/env python3
"""VTHR_MAX_CONCURRENCY is never exceeded: beside a slow dependency, by a pool that was idle, by mixed work.

What VTHR_ADMISSION says happens: queue takes all at once, block makes pthread_create wait, reject answers EAGAIN.
"""
# run: timeout=120
import re
import sys

sys.dont_write_bytecode = True
from vthr_test import expect, finish, logged, program, run  # noqa: E402

CAP = 4


def most(what, *arguments, preload=True, **settings):
    """What cap_load prints about `what`, as a list of numbers."""
    settings = logged(**settings) if preload else settings
    result = run([program('cap_load'), what, *arguments], preload=preload, **settings)
    expect(result.returncode == 0 and result.stderr == '', f'cap_load {what}', result.stdout + result.stderr)
    return [int(n) for n in re.findall(r'most (\d+)', result.stdout)], result


natively, _ = most('slow', preload=False)
expect(natively == [12], f'natively {natively} wait for the slow dependency', '')
uncapped, _ = most('slow')
expect(uncapped == [12], f'without a cap {uncapped} wait for the slow dependency', '')

for admission in ('queue', 'block'):
    settings = {'VTHR_MAX_CONCURRENCY': CAP, 'VTHR_ADMISSION': admission}
    found, result = most('slow', **settings)
    expect(found == [CAP], f'{admission}: {found} wait for the slow dependency, the cap is {CAP}', result.stdout)
    expect(result.seconds > 0.85, f'{admission}: 12 questions of 300 ms, 4 at a time, took {result.seconds:.2f} s')
    found, result = most('mixed', **settings)
    expect(found and found[0] <= CAP, f'{admission}: {found} at mixed work, the cap is {CAP}', result.stdout)
    found, result = most('create', **settings)
    expect(found and max(found) <= CAP, f'{admission}: {found} at work, the cap is {CAP}', result.stdout)
    created = re.findall(r'made (\d+) refused (\d+) in ([\d.]+) s', result.stdout)
    expect([(m, r) for m, r, _ in created] == [('10', '0')] * 2, f'{admission}: threads made and refused', result.stdout)
    times = [float(t) for _, _, t in created]
    if admission == 'queue':
        expect(times and max(times) < 0.18, f'queue: pthread_create waits: {times}')
    else:
        expect(times and min(times) > 0.18, f'block: pthread_create does not wait: {times}')

# 50 workers that were idle for ten seconds have no slots; with the jobs they need one each.
found, result = most('pool', '10', VTHR_MAX_CONCURRENCY=CAP, VTHR_ADMISSION='queue')
expect(found == [CAP], f'pool: {found} at work, the cap is {CAP}', result.stdout)

found, result = most('create', VTHR_MAX_CONCURRENCY=CAP, VTHR_ADMISSION='reject')
created = re.findall(r'made (\d+) refused (\d+)', result.stdout)
expect(created == [(str(CAP), str(10 - CAP))] * 2, 'reject: threads made and refused, twice', result.stdout)
finish()
