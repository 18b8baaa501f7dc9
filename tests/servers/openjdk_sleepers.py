#!/usr/bin/env python3
"""OpenJDK 17 with 10,000 Java threads that all sleep at once: on fewer than 40 kernel threads, with the right answer."""
# run: timeout=150 needs=java,javac
import os
import subprocess
import sys

sys.dont_write_bytecode = True
from server_test import LIB, Child, Peak, expect, finish, scratch, skip, sleep_sampling, wait_until  # noqa: E402

THREADS, SLEEP_MS, MOST = 10_000, 2_500, 40
SOURCE = r'''
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

public class Sleepers {
    public static void main(String[] args) throws Exception {
        int n = Integer.parseInt(args[0]);
        long ms = Long.parseLong(args[1]);
        CountDownLatch gate = new CountDownLatch(1), asleep = new CountDownLatch(n);
        AtomicLong sum = new AtomicLong();
        AtomicInteger early = new AtomicInteger();
        Thread[] threads = new Thread[n];
        for (int i = 0; i < n; i++) {
            long number = i;
            threads[i] = new Thread(() -> {
                try {
                    gate.await();
                    asleep.countDown();
                    long before = System.nanoTime();
                    Thread.sleep(ms);
                    if (System.nanoTime() - before < ms * 1_000_000) early.incrementAndGet();
                    sum.addAndGet(number);
                } catch (InterruptedException e) {
                    throw new RuntimeException(e);
                }
            });
            threads[i].start();
        }
        gate.countDown();
        asleep.await();
        System.out.println("all sleep");
        for (Thread t : threads) t.join();
        System.out.println("sum " + sum.get() + ", too early " + early.get());
    }
}
'''

version = subprocess.run(['javac', '-version'], capture_output=True, text=True, timeout=60, check=False)
if ' 17.' not in version.stdout + version.stderr:
    skip(f'needs OpenJDK 17, there is {(version.stdout or version.stderr).strip()}')
here = scratch()
with open(os.path.join(here, 'Sleepers.java'), 'w', encoding='ascii') as file:
    file.write(SOURCE)
built = subprocess.run(['javac', '-d', here, os.path.join(here, 'Sleepers.java')], capture_output=True, text=True, timeout=90,
                       check=False)
if not expect(built.returncode == 0, 'javac', built.stdout + built.stderr):
    finish()

java = Child(['java', '-Xmx512m', '-cp', here, 'Sleepers', str(THREADS), str(SLEEP_MS)], preload=LIB, cwd=here)
peak = Peak(java)


def all_sleep():
    peak.sample()
    return 'all sleep' in java.out or not java.running()


if expect(wait_until(all_sleep, 60), f'{THREADS} threads do not all come to sleep', java.out + java.err) and java.running():
    sleep_sampling(peak, SLEEP_MS / 1000 / 2)
code = java.wait(40)
expect(code == 0, f'java ended with {code}', java.out + java.err)
expect(java.out == f'all sleep\nsum {THREADS * (THREADS - 1) // 2}, too early 0\n' and java.err == '', 'the output of java',
       java.out + java.err)
expect(java.mode() == 'fibers', f'mode: {java.mode() or "no start line"}')
expect(0 < peak.most < MOST, f'{peak.most} kernel threads at most, fewer than {MOST} are wanted')
print(f'{THREADS} Java threads, {peak.most} kernel threads at most')
finish()
