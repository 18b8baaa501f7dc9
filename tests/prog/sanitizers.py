#!/usr/bin/env python3
"""Programs built with AddressSanitizer or ThreadSanitizer run as without us, which one line says."""
# run: expect-mode=native why=Sanitizer timeout=120
import os
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
from vthr_test import expect, finish, logged, read_text, run, scratch, skip, LIB, LOGS  # noqa: E402

SOURCE = r'''
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long sum;
static void *work(void *argument)
{
    usleep(1000);
    pthread_mutex_lock(&lock);
    sum += (long)argument;
    pthread_mutex_unlock(&lock);
    return NULL;
}
int main(void)
{
    pthread_t t[10];
    for (long i = 0; i < 10; i++)
        if (pthread_create(&t[i], NULL, work, (void *)i))
            return 1;
    for (int i = 0; i < 10; i++)
        pthread_join(t[i], NULL);
    puts(sum == 45 ? "OK" : "FAIL");
    return sum != 45;
}
'''
compiler = shutil.which('gcc') or shutil.which('cc')
if not compiler:
    skip('needs a C compiler')
here, ran = scratch(), 0
source = os.path.join(here, 'program.c')
with open(source, 'w', encoding='utf-8') as file:
    file.write(SOURCE)
# These sanitizers of GCC 12 do not know every layout of the address space: without randomisation they do.
fixed = ['setarch', '-R']
if subprocess.run(fixed + ['true'], capture_output=True, check=False).returncode:
    fixed = []
for kind, name, static in (('address', 'AddressSanitizer', False), ('address', 'AddressSanitizer', True),
                           ('thread', 'ThreadSanitizer', False), ('thread', 'ThreadSanitizer', True)):
    short = {'address': 'asan', 'thread': 'tsan'}[kind]
    label = f'{name}, {"within the program" if static else "as a library"}'
    binary = os.path.join(here, f'{kind}.{static}')
    built = subprocess.run([compiler, '-g', '-O1', '-pthread', f'-fsanitize={kind}', *([f'-static-lib{short}'] if static else []),
                            source, '-o', binary], capture_output=True, check=False)
    if built.returncode:
        continue
    native = run([*fixed, binary], preload=False)
    if native.returncode or native.stdout != 'OK\n':
        continue
    ran += 1
    settings = logged(VTHR_LOG=os.path.join(LOGS, f'{kind}.{static}.log'))
    if not static:  # a sanitizer's library has to be the first of all
        found = subprocess.run([compiler, f'-print-file-name=lib{short}.so'], capture_output=True, text=True, check=False)
        settings['LD_PRELOAD'] = f'{found.stdout.strip()}:{LIB}'
    result = run([*fixed, binary], **settings)
    expect(result.returncode == 0 and result.stdout == 'OK\n' and result.stderr == '', f'{label}: the program',
           result.stdout + result.stderr)
    text = read_text(settings['VTHR_LOG']) if os.path.exists(settings['VTHR_LOG']) else ''
    expect('mode=native' in text and name in text and 'mode=fibers' not in text, f'{label}: the line', text)
if not ran:
    skip('no sanitizer works here')
finish()
