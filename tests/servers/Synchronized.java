// Java threads that each wait inside a synchronized block of their own: `Synchronized THREADS MS`.
// The threads are made ready behind a latch, so that all of them are in their blocks at once.
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

public class Synchronized {
    public static void main(String[] args) throws Exception {
        int n = Integer.parseInt(args[0]);
        long ms = Long.parseLong(args[1]);
        CountDownLatch inside = new CountDownLatch(n);
        AtomicLong sum = new AtomicLong();
        AtomicInteger early = new AtomicInteger();
        long begin = System.nanoTime();
        Thread[] threads = new Thread[n];
        for (int i = 0; i < n; i++) {
            long number = i;
            threads[i] = new Thread(() -> {
                Object own = new Object();
                synchronized (own) {
                    inside.countDown();
                    long before = System.nanoTime();
                    try {
                        if (number % 2 == 0) {
                            Thread.sleep(ms);
                        } else {
                            long left;
                            while ((left = ms - (System.nanoTime() - before) / 1_000_000) > 0) own.wait(left);
                        }
                    } catch (InterruptedException e) {
                        throw new RuntimeException(e);
                    }
                    if (System.nanoTime() - before < ms * 1_000_000 - 1_000_000) early.incrementAndGet();
                    sum.addAndGet(number);
                }
            });
            threads[i].start();
        }
        inside.await();
        System.out.println("all are inside");
        for (Thread t : threads) t.join();
        System.out.println("sum " + sum.get() + ", too early " + early.get());
        System.err.println((System.nanoTime() - begin) / 1_000_000 + " ms");
    }
}
