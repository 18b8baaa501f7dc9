#!/usr/bin/env python3
"""Programs built with AddressSanitizer or ThreadSanitizer run as without us, which one line says."""
# run: expect-mode=native why=Sanitizer timeout=120
import os
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
from vthr_test import expect, finish, logged, read_text, run, scratch, skip, LOGS  # noqa: E402

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
for kind, name in (('address', 'AddressSanitizer'), ('thread', 'ThreadSanitizer')):
    binary = os.path.join(here, kind)
    # Linked into the program: as a library a sanitizer wants to be the first, also before a preloaded one.
    flags = ['-static-libasan'] if kind == 'address' else ['-static-libtsan']
    built = subprocess.run([compiler, '-g', '-O1', '-pthread', f'-fsanitize={kind}', *flags, source, '-o', binary],
                           capture_output=True, check=False)
    if built.returncode:
        continue
    native = run([*fixed, binary], preload=False)
    if native.returncode or native.stdout != 'OK\n':
        continue
    ran += 1
    log = os.path.join(LOGS, f'{kind}.log')
    result = run([*fixed, binary], **logged(VTHR_LOG=log))
    expect(result.returncode == 0 and result.stdout == 'OK\n' and result.stderr == '', f'{name}: the program', result.stdout + result.stderr)
    text = read_text(log) if os.path.exists(log) else ''
    expect('mode=native' in text and name in text and 'mode=fibers' not in text, f'{name}: the line', text)
if not ran:
    skip('no sanitizer works here')
finish()
