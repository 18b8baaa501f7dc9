// Thread.interrupt of threads that are blocked in each kind of wait, and close() of a socket under a blocked reader.
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.nio.ByteBuffer;
import java.nio.channels.Pipe;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Exchanger;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;

public class Interrupts {
    interface Body {
        void run() throws Exception;
    }

    static void blocked(Thread t) throws Exception {
        for (int i = 0; i < 2000 && t.getState() == Thread.State.NEW; i++) Thread.sleep(1);
        Thread.sleep(20);
    }

    /** Starts a thread that runs `body`, ends its wait by `wake` and prints how it came back. */
    static void show(String what, Body body, Ender wake) throws Exception {
        String[] how = {"nothing"};
        boolean[] flag = new boolean[1];
        CountDownLatch begun = new CountDownLatch(1);
        Thread t = new Thread(() -> {
            begun.countDown();
            try {
                body.run();
                how[0] = "returned";
            } catch (Throwable e) {
                how[0] = e.getClass().getName();
            }
            flag[0] = Thread.currentThread().isInterrupted();
        });
        t.setDaemon(true);
        t.start();
        begun.await();
        blocked(t);
        wake.end(t);
        t.join(15_000);
        System.out.println(what + ": " + (t.isAlive() ? "still blocked" : how[0] + (flag[0] ? ", interrupted" : "")));
    }

    interface Ender {
        void end(Thread t) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        Object monitor = new Object();
        ReentrantLock lock = new ReentrantLock();
        lock.lock();
        Ender interrupt = Thread::interrupt;
        for (int round = 0; round < 3; round++) {
            show("sleep", () -> Thread.sleep(60_000), interrupt);
            show("wait", () -> { synchronized (monitor) { monitor.wait(); } }, interrupt);
            show("timed wait", () -> { synchronized (monitor) { monitor.wait(60_000); } }, interrupt);
            show("join", () -> Thread.currentThread().join(), interrupt);
            show("park", () -> LockSupport.park(), interrupt);
            show("timed park", () -> LockSupport.parkNanos(60_000_000_000L), interrupt);
            show("unpark", () -> LockSupport.park(), LockSupport::unpark);
            show("lockInterruptibly", () -> lock.lockInterruptibly(), interrupt);
            show("tryLock", () -> lock.tryLock(60, TimeUnit.SECONDS), interrupt);
            show("queue", () -> new ArrayBlockingQueue<Integer>(1).take(), interrupt);
            show("semaphore", () -> new Semaphore(0).acquire(), interrupt);
            show("exchanger", () -> new Exchanger<Integer>().exchange(1), interrupt);
            show("interrupted before", () -> { Thread.currentThread().interrupt(); Thread.sleep(60_000); }, t -> { });

            try (ServerSocket server = new ServerSocket(0, 5, InetAddress.getLoopbackAddress())) {
                Socket client = new Socket(server.getInetAddress(), server.getLocalPort());
                Socket peer = server.accept();
                InputStream in = client.getInputStream();
                show("read, close", () -> in.read(), t -> client.close());
                show("read, end of file", () -> peer.getInputStream().read(), t -> { });
                Socket c2 = new Socket(server.getInetAddress(), server.getLocalPort());
                Socket p2 = server.accept();
                show("read, shutdown", () -> c2.getInputStream().read(), t -> c2.shutdownInput());
                c2.setSoTimeout(50);
                show("read, time-out", () -> p2.getInputStream().read(), t -> p2.close());
                c2.close();
                Socket c3 = new Socket(server.getInetAddress(), server.getLocalPort());
                Socket p3 = server.accept();
                c3.setSoTimeout(60);
                try {
                    c3.getInputStream().read();
                    System.out.println("no time-out");
                } catch (SocketTimeoutException e) {
                    System.out.println("SO_TIMEOUT: " + e.getMessage());
                }
                show("write, close", () -> { byte[] b = new byte[1 << 16]; for (;;) p3.getOutputStream().write(b); }, t -> p3.close());
                c3.close();
            }
            ServerSocket listener = new ServerSocket(0, 5, InetAddress.getLoopbackAddress());
            show("accept, close", () -> listener.accept(), t -> listener.close());

            ServerSocketChannel channel = ServerSocketChannel.open().bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
            SocketChannel out = SocketChannel.open(channel.getLocalAddress());
            SocketChannel in = channel.accept();
            show("channel read, interrupt", () -> in.read(ByteBuffer.allocate(1)), interrupt);
            show("channel read, close", () -> out.read(ByteBuffer.allocate(1)), t -> out.close());
            show("channel accept, interrupt", () -> channel.accept(), interrupt);
            Pipe pipe = Pipe.open();
            show("pipe read, interrupt", () -> pipe.source().read(ByteBuffer.allocate(1)), interrupt);
            pipe.sink().close();
            Selector selector = Selector.open();
            show("select, interrupt", () -> selector.select(), interrupt);
            show("select, wakeup", () -> selector.select(), t -> selector.wakeup());
            show("select, close", () -> selector.select(), t -> selector.close());
        }
        Process sleeper = new ProcessBuilder("sleep", "60").start();
        show("waitFor, interrupt", () -> sleeper.waitFor(), interrupt);
        show("waitFor, destroy", () -> sleeper.waitFor(), t -> sleeper.destroy());
        System.out.println("code " + sleeper.exitValue());
    }
}
