// Garbage collection under load: threads that allocate, keep and drop, with monitors, finalizable references and
// explicit collections between; what each kept must still be what it wrote.
import java.lang.ref.PhantomReference;
import java.lang.ref.Reference;
import java.lang.ref.ReferenceQueue;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

public class Garbage {
    static final int THREADS = 48, ROUNDS = 30, KEPT = 200;
    static final Map<Integer, long[]> shared = new ConcurrentHashMap<>();
    static final ReferenceQueue<Object> dead = new ReferenceQueue<>();
    static final List<Reference<Object>> phantoms = new ArrayList<>();
    static final AtomicInteger wrong = new AtomicInteger();
    static final AtomicLong made = new AtomicLong();

    static long[] block(Random random, int mark) {
        long[] b = new long[4 + random.nextInt(300)];
        for (int i = 0; i < b.length; i++) b[i] = mark * 31L + i;
        made.incrementAndGet();
        return b;
    }

    static void check(long[] b, int mark) {
        for (int i = 0; i < b.length; i++) if (b[i] != mark * 31L + i) wrong.incrementAndGet();
    }

    static void work(int me, CyclicBarrier barrier) {
        Random random = new Random(me);
        try {
            for (int round = 0; round < ROUNDS; round++) {
                Map<Integer, long[]> own = new HashMap<>();
                for (int i = 0; i < KEPT; i++) own.put(i, block(random, me + i));
                for (int i = 0; i < 3 * KEPT; i++) own.put(random.nextInt(KEPT), null);
                for (int i = 0; i < KEPT; i++) if (own.get(i) == null) own.put(i, block(random, me + i));
                own.forEach((i, b) -> check(b, me + i));
                shared.put(me, own.get(random.nextInt(1)));
                shared.forEach((who, b) -> check(b, who));
                synchronized (phantoms) {
                    phantoms.add(new PhantomReference<>(new Object(), dead));
                    if (round % 10 == me % 10) phantoms.wait(1);
                }
                if (round % 8 == 0) Thread.sleep(1);
                if (round % 10 == 9) barrier.await();
                if (me == 0 && round % 15 == 0) System.gc();
            }
        } catch (Exception e) {
            wrong.incrementAndGet();
            System.out.println(e);
        }
    }

    public static void main(String[] args) throws Exception {
        CyclicBarrier barrier = new CyclicBarrier(THREADS);
        Thread[] threads = new Thread[THREADS];
        for (int i = 0; i < THREADS; i++) {
            int me = i;
            threads[i] = new Thread(() -> work(me, barrier));
            threads[i].start();
        }
        for (Thread t : threads) t.join();
        int gone = 0, all = phantoms.size();
        for (int tries = 0; tries < 100 && gone < all; tries++) {
            System.gc();
            while (dead.remove(gone < all ? 100 : 1) != null) gone++;
        }
        System.out.println("wrong " + wrong.get() + ", phantoms " + gone + " of " + all + ", enough " + (made.get() > 100_000));
    }
}
