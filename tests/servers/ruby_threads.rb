# Threads as Ruby programs use them. Prints the same each time. An argument chooses a way to end; without one all parts run.
require 'io/wait'
require 'monitor'
require 'open3'
require 'socket'
require 'tempfile'
require 'timeout'

$stdout.sync = true
Thread.report_on_exception = false
SLEEPERS = 250
CLIENTS = 250

def part(name)
  puts "#{name}: #{yield}"
end

def until_true(seconds = 30)
  limit = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
  until yield
    raise 'it does not come' if Process.clock_gettime(Process::CLOCK_MONOTONIC) > limit
    sleep 0.005
  end
end

def error_of
  yield
  'none'
rescue Exception => e
  "#{e.class}: #{e.message}"
end

# --- threads, locks, queues ----------------------------------------------------------------------------

def sleepers_and_sockets
  server = TCPServer.new('127.0.0.1', 0)
  port = server.addr[1]
  gate, ready = Queue.new, Queue.new
  acceptor = Thread.new do
    Array.new(CLIENTS) do
      connection = server.accept
      Thread.new(connection) do |c|
        while (line = c.gets)
          c.write("#{line.chomp.reverse}\n")
        end
        c.close
        :served
      end
    end
  end
  sleepers = Array.new(SLEEPERS) do |i|
    Thread.new do
      ready << i
      gate.pop
      sleep 0.05 + i % 7 * 0.01
      i
    end
  end
  clients = Array.new(CLIENTS) do |i|
    Thread.new do
      ready << i
      gate.pop
      TCPSocket.open('127.0.0.1', port) do |s|
        (1..5).sum do |n|
          s.puts("request #{i * n}")
          raise "wrong answer to #{i * n}" unless s.gets.chomp.reverse == "request #{i * n}"
          i * n
        end
      end
    end
  end
  (SLEEPERS + CLIENTS).times { ready.pop }
  # for who runs this: the kernel threads while all of them wait
  File.write(ENV['THREADS_TO'], File.read('/proc/self/status')[/^Threads:\s*(\d+)/, 1]) if ENV['THREADS_TO']
  (SLEEPERS + CLIENTS).times { gate << :go }
  slept, asked = sleepers.sum(&:value), clients.sum(&:value)
  served = acceptor.value.map(&:value).count(:served)
  server.close
  "slept #{slept}, asked #{asked}, served #{served}"
end

def mutex
  lock, counter, inside, most = Mutex.new, 0, 0, 0
  Array.new(20) do
    Thread.new do
      100.times do
        lock.synchronize do
          inside += 1
          most = [most, inside].max
          value = counter
          Thread.pass
          counter = value + 1
          inside -= 1
        end
      end
    end
  end.each(&:join)
  held = Thread.new { lock.synchronize { sleep } }
  until_true { lock.locked? && held.status == 'sleep' }
  tried = lock.try_lock
  held.wakeup
  held.join
  "#{counter}, at most #{most} inside, try_lock #{tried}, #{error_of { lock.synchronize { lock.lock } }}"
end

def condition
  lock, there, gone = Mutex.new, ConditionVariable.new, ConditionVariable.new
  buffer, taken = [], []
  consumers = Array.new(4) do
    Thread.new do
      loop do
        item = lock.synchronize do
          there.wait(lock) while buffer.empty?
          gone.signal
          buffer.shift
        end
        break if item == :end
        lock.synchronize { taken << item }
      end
    end
  end
  producers = Array.new(4) do |p|
    Thread.new do
      100.times do |n|
        lock.synchronize do
          gone.wait(lock) while buffer.size >= 3
          buffer << p * 100 + n
          there.signal
        end
      end
    end
  end
  producers.each(&:join)
  consumers.size.times do
    lock.synchronize do
      gone.wait(lock) while buffer.size >= 3
      buffer << :end
      there.broadcast
    end
  end
  consumers.each(&:join)
  timed_out = lock.synchronize { [there.wait(lock, 0.02), lock.owned?].inspect }
  "#{taken.size} taken, sum #{taken.sum}, after a time-out #{timed_out}"
end

def queues
  wide, narrow = Queue.new, SizedQueue.new(2)
  stage = Array.new(8) { Thread.new { while (n = wide.pop) do narrow << n * 2 end } }
  sink = Thread.new { Array.new(500) { narrow.pop }.sum }
  500.times { |n| wide << n }
  sum = sink.value
  wide.close
  stage.each(&:join)
  "#{sum}, #{error_of { wide << 1 }}, #{error_of { Thread.new { Queue.new.pop(true) }.value }}"
end

def monitor
  shared, count = Monitor.new, 0
  full = shared.new_cond
  threads = Array.new(10) do
    Thread.new do
      shared.synchronize { shared.synchronize { count += 1 } }
      shared.synchronize { full.broadcast if count == 10 }
    end
  end
  shared.synchronize { full.wait(1) while count < 10 }
  threads.each(&:join)
  count
end

def thread_calls
  sleeper = Thread.new do
    Thread.current[:mine] = 1
    Thread.current.thread_variable_set(:mine, 2)
    sleep
  rescue ArgumentError => e
    e.message
  end
  until_true { sleeper.status == 'sleep' }
  late = sleeper.join(0.02).inspect
  sleeper.raise(ArgumentError, 'raised from outside')
  said = sleeper.value
  cleaned = false
  killed = Thread.new do
    sleep
  ensure
    cleaned = true
  end
  until_true { killed.status == 'sleep' }
  killed.kill
  killed.join
  masked = Thread.new do
    Thread.handle_interrupt(RuntimeError => :never) do
      Thread.current[:in] = true
      until_true { Thread.pending_interrupt? }
      'came early'
    end
  rescue RuntimeError
    'came late'
  end
  until_true { masked[:in] }
  masked.raise('later')
  failed = error_of { Thread.new { raise IOError, 'in a thread' }.value }
  stopped = Thread.new { Thread.stop; :woken }
  until_true { stopped.stop? }
  stopped.run
  "#{late}, #{said}, #{sleeper[:mine]} #{sleeper.thread_variable_get(:mine)}, #{killed.status.inspect} #{cleaned}, " \
    "#{masked.value}, #{failed}, #{stopped.value}, #{Thread.list.size} left"
end

def priorities_and_work
  # Objects live on the stacks of threads while others collect.
  threads = Array.new(12) do |i|
    Thread.new do
      kept = Array.new(2000) { |n| "#{i}-#{n}" }
      GC.start if i % 4 == 0
      Thread.pass
      kept.each_with_index.count { |text, n| text == "#{i}-#{n}" }
    end
  end
  threads.sum(&:value)
end

def deep
  down = ->(n) { n.zero? ? 0 : 1 + down.(n - 1) }
  fine = Array.new(20) { |i| Thread.new { down.(500 + i) } }.sum(&:value)
  endless = ->(n) { endless.(n + 1) + 1 }
  errors = Array.new(3) { Thread.new { error_of { endless.(0) } } }.map(&:value) << error_of { endless.(0) }
  "#{fine}, #{errors.uniq.join(' ')}"
end

def coroutines
  Array.new(50) do |i|
    Thread.new do
      numbers = Enumerator.new { |y| n = i; loop { y << n; n += 1 } }
      other = Fiber.new { |x| loop { sleep 0.001; x = Fiber.yield(x * 2) } }
      Array.new(5) { other.resume(numbers.next) }.sum
    end
  end.sum(&:value)
end

# --- time limits ---------------------------------------------------------------------------------------

def limits
  quiet = TCPServer.new('127.0.0.1', 0)
  silent = TCPSocket.new('127.0.0.1', quiet.addr[1])
  reader, writer = IO.pipe
  full = SizedQueue.new(1)
  full << 1
  waits = {
    sleep: -> { sleep },
    queue: -> { Queue.new.pop },
    sized: -> { full << 2 },
    lock: -> { m = Mutex.new; m.lock; ConditionVariable.new.wait(m) },
    socket: -> { silent.read(1) },
    pipe: -> { reader.read },
    select: -> { IO.select([reader, silent]) },
    accept: -> { quiet.accept; quiet.accept },
    join: -> { Thread.new { sleep }.join },
    process: -> { system('sleep 30') },
    work: -> { loop {} }
  }
  ended = waits.map do |name, wait|
    Thread.new { [name, error_of { Timeout.timeout(0.1) { wait.call } }] }
  end.map(&:value)
  wrong = ended.reject { |_, error| error == 'Timeout::Error: execution expired' }
  inner = error_of { Timeout.timeout(20) { Timeout.timeout(0.02, KeyError) { sleep } } }
  [silent, quiet, reader, writer].each(&:close)
  "#{ended.size} waits, wrong #{wrong}, #{inner}, in time #{Timeout.timeout(20) { :done }}"
end

# --- descriptors ---------------------------------------------------------------------------------------

def descriptors
  reader, writer = IO.pipe
  big = 'x' * 1_000_000
  writing = Thread.new { writer.write(big); writer.close }
  got = reader.read.size
  writing.join
  left, right = UNIXSocket.pair
  echo = Thread.new { while (data = right.recv(100)) && !data.empty? do right.send(data.upcase, 0) end }
  left.send('over a pair', 0)
  up = left.recv(100)
  left.close
  echo.join
  one, two = UDPSocket.new, UDPSocket.new
  one.bind('127.0.0.1', 0)
  nothing = IO.select([one], nil, nil, 0.02).inspect
  waiting = Thread.new { one.recvfrom(100)[0] }
  two.send('datagram', 0, '127.0.0.1', one.addr[1])
  closed, pair = IO.pipe
  blocked = Thread.new { error_of { closed.read } }
  until_true { blocked.status == 'sleep' }
  closed.close
  names = Array.new(10) { Thread.new { Addrinfo.getaddrinfo('localhost', 80, :INET, :STREAM).first.ip_address } }.map(&:value).uniq
  files = Array.new(10) do |i|
    Thread.new { Tempfile.create('vthr') { |f| f.write('y' * i * 1000); f.flush; File.read(f.path).size } }
  end.sum(&:value)
  datagram = waiting.value
  [one, two, pair].each(&:close)
  "#{got}, #{up}, #{datagram}, #{nothing}, #{blocked.value}, #{names.join}, #{files}"
end

# --- processes -----------------------------------------------------------------------------------------

def processes
  forked = Array.new(8) do |i|
    Thread.new do
      reader, writer = IO.pipe
      pid = fork do
        reader.close
        inner = Thread.new { Queue.new.tap { |q| Thread.new { q << i } }.pop }
        writer.puts("child #{inner.value} of one thread: #{Thread.list.size <= 2}")
        exit!(i)
      end
      writer.close
      text = reader.read.chomp
      reader.close
      Process.wait(pid)
      "#{text} #{$?.exitstatus}"
    end
  end.map(&:value)
  shells = Array.new(8) { |i| Thread.new { [`echo #{i}; exit #{i}`.chomp, $?.exitstatus] } }.map(&:value)
  systems = Array.new(8) { |i| Thread.new { [system("exit #{i}"), $?.exitstatus] } }.map(&:value)
  piped = Array.new(4) do |i|
    Thread.new { IO.popen(['tr', 'a-z', 'A-Z'], 'r+') { |io| io.write("piped #{i}"); io.close_write; io.read } }
  end.map(&:value)
  captured = Array.new(4) { Thread.new { Open3.capture3('cat; echo wrong >&2; exit 3', stdin_data: 'in') } }.map(&:value)
  spawned = Array.new(4) { Thread.new { Process.detach(spawn('true')).value.success? } }.map(&:value)
  missing = Thread.new { [system('/nonexistent/program').inspect, error_of { `/nonexistent/program` }] }.value
  whole = Thread.new { Process.wait2(fork { Thread.new { exit 5 }.join })[1].exitstatus }.value
  "#{forked.join('; ')}\n  #{shells} #{systems}\n  #{piped} #{captured.map { |o, e, s| [o, e, s.exitstatus] }.uniq}\n" \
    "  #{spawned} #{missing} #{whole}"
end

# --- signals -------------------------------------------------------------------------------------------

def signals
  got = Queue.new
  old = %w[USR1 USR2 CHLD].to_h { |name| [name, trap(name) { got << name }] }
  workers = Array.new(20) { Thread.new { sleep } }
  Thread.new { Process.kill('USR1', Process.pid) }.join
  others = []
  others |= [got.pop] until others.include?('USR1')
  Thread.new { system("kill -USR2 #{Process.pid}") }.join
  others |= [got.pop] until others.size == 3
  old.each { |name, action| trap(name, action || 'DEFAULT') }
  workers.each(&:kill).each(&:join)
  here = Thread.main
  interrupt = error_of do
    Thread.new { until_true { here.status == 'sleep' }; Process.kill('INT', Process.pid) }
    sleep
  end
  by_signal = Thread.new do
    pid = fork { Thread.new { sleep }.join }
    Process.kill('TERM', pid)
    Process.wait2(pid)[1].termsig
  end.value
  held = Thread.new do
    reader, writer = IO.pipe
    pid = fork { trap('TERM') { exit!(7) }; writer.puts('ready'); sleep }
    reader.gets
    Process.kill('TERM', pid)
    Process.wait2(pid)[1].exitstatus
  end.value
  "#{others.sort.join(' ')}, #{interrupt}, #{by_signal}, #{held}"
end

# --- the ways to end -----------------------------------------------------------------------------------

threads = ->(n) { Array.new(n) { Thread.new { sleep } } }
# Main sleeps by then: what it prints of itself is the same each time.
once_main_sleeps = lambda do |&act|
  threads.(20)
  Thread.new { until_true { Thread.main.status == 'sleep' }; act.call }
  sleep
end
case ARGV[0]
when nil
  part('threads') { sleepers_and_sockets }
  part('mutex') { mutex }
  part('condition') { condition }
  part('queues') { queues }
  part('monitor') { monitor }
  part('calls') { thread_calls }
  part('work') { priorities_and_work }
  part('deep') { deep }
  part('coroutines') { coroutines }
  part('limits') { limits }
  part('descriptors') { descriptors }
  part('processes') { processes }
  part('signals') { signals }
  at_exit { puts 'OK' }
when 'exit'
  at_exit { puts 'at_exit runs' }
  once_main_sleeps.call { exit 3 }
when 'raises'
  Thread.abort_on_exception = true
  at_exit { puts 'at_exit runs' }
  once_main_sleeps.call { raise 'nobody rescues this' }
when 'deadlock'
  lock = Mutex.new
  lock.lock
  Thread.new { lock.lock }
  Queue.new.pop
when 'term', 'int', 'hup'
  at_exit { puts "at_exit runs: #{$!.class}" }
  once_main_sleeps.call { Process.kill(ARGV[0].upcase, Process.pid) }
when 'kill'
  once_main_sleeps.call { Process.kill('KILL', Process.pid) }
when 'abort'
  once_main_sleeps.call { abort 'abort says this' }
when 'exec'
  once_main_sleeps.call { exec('echo', 'another program') }
when 'main-returns'
  threads.(20)
  Thread.new { begin; sleep; ensure; puts 'ensure runs'; end }.tap { |t| Thread.pass until t.status == 'sleep' }
end
