// Stack overflow caught as StackOverflowError: in the first thread and in others, again and again, deep in Java frames, with
// monitors held on the way, and in threads of several stack sizes.
import java.util.concurrent.atomic.AtomicInteger;

public class Overflow {
    static final AtomicInteger caught = new AtomicInteger(), wrong = new AtomicInteger();

    static int down(int n, long a, long b) {
        return n < 0 ? 0 : 1 + down(n + 1, b, a + n);
    }

    static int locked(Object own, int n) {
        synchronized (own) {
            return 1 + locked(own, n + 1);
        }
    }

    interface Step {
        int go(Step next, int n);
    }

    static void overflow(int times) {
        for (int i = 0; i < times; i++) {
            try {
                if (i % 3 == 0) down(0, 1, 2);
                else if (i % 3 == 1) locked(new Object(), 0);
                else {
                    Step step = (next, n) -> 1 + next.go(next, n + 1);
                    step.go(step, 0);
                }
                wrong.incrementAndGet();
            } catch (StackOverflowError e) {
                caught.incrementAndGet();
            }
        }
    }

    public static void main(String[] args) throws Exception {
        overflow(6);
        System.out.println("main " + caught.get() + " " + wrong.get());
        for (int round = 0; round < 3; round++) {
            Thread[] threads = new Thread[12];
            for (int i = 0; i < threads.length; i++) {
                threads[i] = new Thread(null, () -> overflow(6), "t" + i, i % 4 == 0 ? 0 : (long) i << 18);
                threads[i].start();
            }
            for (Thread t : threads) t.join();
            overflow(3);
        }
        System.out.println("all " + caught.get() + " " + wrong.get());
    }
}
