// What a threaded Rust program uses of its standard library: every part says what it found, the same in every run.
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::panic;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{channel, sync_channel, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Barrier, Condvar, Mutex, Once, RwLock};
use std::thread;
use std::time::{Duration, Instant};

static DROPPED: AtomicUsize = AtomicUsize::new(0);
static AT_EXIT: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Noisy(usize);
impl Drop for Noisy {
    fn drop(&mut self) {
        // a destructor may wait, and use another thread-local value
        thread::sleep(Duration::from_micros(100));
        COUNT.try_with(|c| c.set(c.get() + 1)).ok();
        DROPPED.fetch_add(self.0, Ordering::SeqCst);
    }
}

thread_local! {
    static NOISY: RefCell<Option<Noisy>> = RefCell::new(None);
    static COUNT: Cell<usize> = Cell::new(0);
    static NAMES: RefCell<HashMap<usize, String>> = RefCell::new(HashMap::new());
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn queue() {
    let pair = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
    let takers: Vec<_> = (0..50)
        .map(|_| {
            let pair = Arc::clone(&pair);
            thread::spawn(move || {
                let mut sum = 0usize;
                for _ in 0..100 {
                    let mut items = pair.0.lock().unwrap();
                    while items.is_empty() {
                        items = pair.1.wait(items).unwrap();
                    }
                    sum += items.pop().unwrap();
                }
                sum
            })
        })
        .collect();
    let makers: Vec<_> = (0..50)
        .map(|m| {
            let pair = Arc::clone(&pair);
            thread::spawn(move || {
                for i in 0..100 {
                    pair.0.lock().unwrap().push(m * 100 + i);
                    pair.1.notify_one();
                    if i % 10 == 0 {
                        thread::yield_now();
                    }
                }
            })
        })
        .collect();
    for t in makers {
        t.join().unwrap();
    }
    let sum: usize = takers.into_iter().map(|t| t.join().unwrap()).sum();
    println!("queue: {}", sum);
    let (lock, cond) = (Mutex::new(()), Condvar::new());
    let begin = Instant::now();
    let (_guard, timed_out) = cond.wait_timeout(lock.lock().unwrap(), ms(30)).unwrap();
    println!("wait_timeout: {} {}", timed_out.timed_out(), begin.elapsed() >= ms(30));
}

fn channels() {
    let (to, from) = channel();
    for i in 0..100usize {
        let to = to.clone();
        thread::spawn(move || {
            for n in 0..50 {
                to.send(i * n).unwrap();
            }
        });
    }
    drop(to);
    println!("channel: {}", from.iter().sum::<usize>());
    let (to, from) = sync_channel::<u32>(0);
    let sender = thread::spawn(move || (0..200).map(|n| to.send(n).is_ok()).filter(|ok| *ok).count());
    let got: u32 = from.iter().take(150).sum();
    drop(from);
    println!("rendezvous: {} {}", got, sender.join().unwrap());
    let (to, from) = channel::<u32>();
    println!("timeout: {}", from.recv_timeout(ms(20)) == Err(RecvTimeoutError::Timeout));
    println!("empty: {}", from.try_recv() == Err(TryRecvError::Empty));
    drop(to);
    println!("closed: {}", from.recv_timeout(ms(20)) == Err(RecvTimeoutError::Disconnected));
}

fn locals() {
    let before = DROPPED.load(Ordering::SeqCst);
    for round in 0..5 {
        let threads: Vec<_> = (0..60)
            .map(|i| {
                thread::Builder::new()
                    .name(format!("local-{}", i))
                    .stack_size(64 << 10 << (i % 3))
                    .spawn(move || {
                        NOISY.with(|n| *n.borrow_mut() = Some(Noisy(i)));
                        COUNT.with(|c| assert_eq!(c.replace(7), 0));
                        NAMES.with(|n| {
                            let mut n = n.borrow_mut();
                            assert!(n.is_empty());
                            n.insert(i, thread::current().name().unwrap().to_string());
                        });
                        thread::sleep(ms(round));
                        COUNT.with(|c| assert_eq!(c.get(), 7));
                        NAMES.with(|n| assert_eq!(n.borrow()[&i], format!("local-{}", i)));
                    })
                    .unwrap()
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
    }
    println!("locals: {}", DROPPED.load(Ordering::SeqCst) - before);
}

fn panics() {
    let lock = Arc::new(Mutex::new(1));
    let rw = Arc::new(RwLock::new(1));
    let threads: Vec<_> = (0..40)
        .map(|i| {
            let (lock, rw) = (Arc::clone(&lock), Arc::clone(&rw));
            thread::spawn(move || {
                NOISY.with(|n| *n.borrow_mut() = Some(Noisy(1)));
                let _hold = if i == 20 { Some((lock.lock(), rw.write())) } else { None };
                thread::sleep(ms(i % 4));
                if i % 2 == 0 {
                    panic!("thread {} on purpose", i);
                }
                let r = panic::catch_unwind(|| {
                    thread::sleep(ms(1));
                    panic!("inside")
                });
                r.is_err()
            })
        })
        .collect();
    let mut texts = Vec::new();
    for t in threads {
        texts.push(match t.join() {
            Ok(v) => format!("{}", v),
            Err(e) => e.downcast_ref::<String>().cloned().unwrap_or_default(),
        });
    }
    println!("panics: {}", texts.join(", "));
    println!("poisoned: {} {}", lock.is_poisoned(), rw.read().is_err());
}

fn parks() {
    let flag = Arc::new(AtomicBool::new(false));
    let parked: Vec<_> = (0..100)
        .map(|_| {
            let flag = Arc::clone(&flag);
            thread::spawn(move || {
                while !flag.load(Ordering::Acquire) {
                    thread::park();
                }
            })
        })
        .collect();
    thread::sleep(ms(10));
    flag.store(true, Ordering::Release);
    for t in &parked {
        t.thread().unpark();
    }
    for t in parked {
        t.join().unwrap();
    }
    thread::current().unpark();
    thread::park(); // the token is there
    let begin = Instant::now();
    thread::park_timeout(ms(20));
    println!("parks: {}", begin.elapsed() >= ms(20) || begin.elapsed() < ms(20));
}

fn barriers() {
    let (barrier, leaders, seen) = (Arc::new(Barrier::new(64)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let once = Arc::new(Once::new());
    let threads: Vec<_> = (0..64)
        .map(|_| {
            let (barrier, leaders, seen, once) = (barrier.clone(), leaders.clone(), seen.clone(), once.clone());
            thread::spawn(move || {
                for round in 0..20 {
                    seen.fetch_add(1, Ordering::SeqCst);
                    if barrier.wait().is_leader() {
                        leaders.fetch_add(1, Ordering::SeqCst);
                    }
                    assert_eq!(seen.load(Ordering::SeqCst), 64 * (round + 1));
                    barrier.wait();
                }
                once.call_once(|| {
                    thread::sleep(ms(10));
                    AT_EXIT.lock().unwrap().push("once".to_string());
                });
                assert_eq!(AT_EXIT.lock().unwrap().len(), 1);
            })
        })
        .collect();
    for t in threads {
        t.join().unwrap();
    }
    println!("barriers: {}", leaders.load(Ordering::SeqCst));
}

fn scoped() {
    let mut numbers: Vec<usize> = (0..1000).collect();
    let rw = RwLock::new(0usize);
    thread::scope(|s| {
        for chunk in numbers.chunks_mut(10) {
            let rw = &rw;
            s.spawn(move || {
                for n in chunk.iter_mut() {
                    *n *= 2;
                    *rw.write().unwrap() += *n;
                    thread::yield_now();
                    let _ = *rw.read().unwrap();
                }
            });
        }
    });
    println!("scoped: {} {}", numbers.iter().sum::<usize>(), rw.read().unwrap());
}

fn sockets() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let mut served = Vec::new();
        for stream in listener.incoming().take(80) {
            let stream = stream.unwrap();
            served.push(thread::spawn(move || {
                let mut out = stream.try_clone().unwrap();
                let mut lines = 0;
                for line in BufReader::new(stream).lines() {
                    let n: u64 = line.unwrap().trim().parse().unwrap();
                    writeln!(out, "{}", n * n).unwrap();
                    lines += 1;
                }
                lines
            }));
        }
        served.into_iter().map(|t| t.join().unwrap()).sum::<usize>()
    });
    let clients: Vec<_> = (0..80u64)
        .map(|c| {
            thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                let mut answers = BufReader::new(stream.try_clone().unwrap());
                let mut sum = 0u64;
                for n in 0..20 {
                    writeln!(stream, "{}", c * n).unwrap();
                    let mut line = String::new();
                    answers.read_line(&mut line).unwrap();
                    sum += line.trim().parse::<u64>().unwrap();
                }
                stream.shutdown(Shutdown::Write).unwrap();
                let mut rest = String::new();
                answers.read_to_string(&mut rest).unwrap();
                sum + rest.len() as u64
            })
        })
        .collect();
    let sum: u64 = clients.into_iter().map(|t| t.join().unwrap()).sum();
    println!("sockets: {} {}", sum, server.join().unwrap());

    let (mut a, b) = UnixStream::pair().unwrap();
    a.set_read_timeout(Some(ms(20))).unwrap();
    let error = a.read(&mut [0; 4]).unwrap_err();
    println!("read time-out: {}", error.kind() == ErrorKind::WouldBlock);
    drop(b);
    println!("end of file: {}", a.read(&mut [0; 4]).unwrap());
    println!("write: {}", a.write(b"x").unwrap_err().kind() == ErrorKind::BrokenPipe);
    a.set_nonblocking(true).unwrap();
    println!("refused: {}", TcpStream::connect(("127.0.0.1", 1)).unwrap_err().kind() == ErrorKind::ConnectionRefused);
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.send_to(b"datagram", udp.local_addr().unwrap()).unwrap();
    let mut buffer = [0; 20];
    let (n, from) = udp.recv_from(&mut buffer).unwrap();
    println!("datagram: {} {}", n, from == udp.local_addr().unwrap());
}

fn children() {
    let threads: Vec<_> = (0..12)
        .map(|i| {
            thread::spawn(move || {
                let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
                child.stdin.take().unwrap().write_all(format!("child {}", i).as_bytes()).unwrap();
                let out = child.wait_with_output().unwrap();
                let code = Command::new("sh").args(["-c", &format!("exit {}", i)]).status().unwrap().code();
                (String::from_utf8(out.stdout).unwrap(), code)
            })
        })
        .collect();
    for t in threads {
        println!("{:?}", t.join().unwrap());
    }
}

fn overflow(n: u64) -> u64 {
    let room = [n; 64];
    if n == 0 { 0 } else { 1 + overflow(unsafe { std::ptr::read_volatile(&room[7]) } + 1) }
}

fn main() {
    panic::set_hook(Box::new(|_| {}));
    match std::env::args().nth(1).as_deref() {
        Some("overflow") => {
            thread::Builder::new().name("deep".to_string()).spawn(|| overflow(1)).unwrap().join().unwrap();
        }
        Some("abort") => {
            let held = Arc::new(Mutex::new(0));
            let hold = held.lock().unwrap();
            for _ in 0..50 {
                let held = Arc::clone(&held);
                thread::spawn(move || *held.lock().unwrap() += 1);
            }
            thread::spawn(|| std::process::abort()).join().unwrap();
            drop(hold);
        }
        Some("exit") => {
            for _ in 0..50 {
                thread::spawn(thread::park);
            }
            println!("exits");
            thread::spawn(|| std::process::exit(5)).join().unwrap();
        }
        Some("main-panics") => {
            thread::spawn(thread::park);
            panic!("main");
        }
        _ => {
            for part in [queue, channels, locals, panics, parks, barriers, scoped, sockets, children] {
                // the same in the initial thread and in another
                part();
                AT_EXIT.lock().unwrap().clear();
                thread::spawn(part).join().unwrap();
                AT_EXIT.lock().unwrap().clear();
            }
            println!("OK");
        }
    }
}
