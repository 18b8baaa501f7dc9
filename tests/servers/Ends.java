// The ways in which a Java process ends, while a few hundred of its threads wait: `Ends HOW`.
import java.util.concurrent.CountDownLatch;

public class Ends {
    static final int WAITING = 300;

    static void waiters() throws Exception {
        CountDownLatch there = new CountDownLatch(WAITING);
        for (int i = 0; i < WAITING; i++) {
            boolean sleeps = i % 2 == 0;
            Thread t = new Thread(() -> {
                Object own = new Object();
                synchronized (own) {
                    there.countDown();
                    try {
                        if (sleeps) Thread.sleep(1_000_000); else own.wait();
                    } catch (InterruptedException e) {
                        System.out.println("interrupted");
                    }
                }
            });
            t.setDaemon(true);
            t.start();
        }
        there.await();
    }

    public static void main(String[] args) throws Exception {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            Thread helper = new Thread(() -> System.out.println("helper of the hook"));
            helper.start();
            try {
                helper.join();
                Thread.sleep(20);
            } catch (InterruptedException e) {
                System.out.println("hook interrupted");
            }
            System.out.println("hook ran");
        }));
        waiters();
        System.out.println("ready");
        switch (args[0]) {
            case "exit": System.exit(7);
            case "exit-in-thread": {
                Thread t = new Thread(() -> System.exit(8));
                t.start();
                t.join();
                return;
            }
            case "halt": Runtime.getRuntime().halt(9);
            case "return": return;
            case "exception": throw new IllegalStateException("on purpose");
            case "exception-in-thread": {
                Thread t = new Thread(() -> { throw new IllegalStateException("on purpose"); }, "thrower");
                t.start();
                t.join();
                System.out.println("joined");
                return;
            }
            case "last-thread": {
                new Thread(() -> {
                    try {
                        Thread.sleep(100);
                    } catch (InterruptedException e) {
                        System.out.println(e);
                    }
                    System.out.println("last");
                }).start();
                return;
            }
            default: Thread.sleep(60_000);  // a signal from outside
        }
    }
}
