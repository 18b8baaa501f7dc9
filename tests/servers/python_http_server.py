#!/usr/bin/env python3
"""CPython's http.server, a thread for each request, with 200 clients connected at once: as natively, on few kernel threads.

All requests are begun before one is finished, so 200 threads wait for the rest of theirs; then the answers are left
unread for a while, so they wait in send. SIGINT ends the server while five connections are open.
"""
# run: timeout=150 needs=/usr/bin/python3
import os
import re
import select
import signal
import socket
import sys
import time

sys.dont_write_bytecode = True
from server_test import LIB, Child, Peak, expect, finish, scratch, sleep_sampling, wait_until  # noqa: E402

CLIENTS, MOST, IDLE = 200, 40, 5
CONTENT = bytes((i * 7919 + (i >> 8)) & 0xff for i in range(1_000_000))
here = os.path.join(scratch(), 'files')
os.mkdir(here)
with open(os.path.join(here, 'data'), 'wb') as file:
    file.write(CONTENT)


def own_sigint():
    # Ignored in what a shell runs in the background, and Python would leave it so.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def connect(port):
    # A small window and segments as on a real network: 1 MB does not fit into the buffers on the way.
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
    client.settimeout(20)
    client.connect(('127.0.0.1', port))
    return client


def read_all(clients, peak, seconds=40):
    """What each of them is sent, until all are closed by the server."""
    poller, got = select.poll(), {client.fileno(): bytearray() for client in clients}
    by_number = {client.fileno(): client for client in clients}
    for number in got:
        poller.register(number, select.POLLIN)
    missing, end = set(got), time.monotonic() + seconds
    while missing and time.monotonic() < end:
        peak.sample()
        for number, _ in poller.poll(100):
            data = by_number[number].recv(65536)
            got[number] += data
            if not data:
                poller.unregister(number)
                missing.discard(number)
    return [got[client.fileno()] for client in clients]


def open_sockets(pid):
    count = 0
    for number in os.listdir(f'/proc/{pid}/fd'):
        try:
            count += os.readlink(f'/proc/{pid}/fd/{number}').startswith('socket:')
        except OSError:
            pass
    return count


def serve(name, preload):
    """Everything with one server: the child, its exit code, peak of kernel threads while all were connected."""
    server = Child(['/usr/bin/python3', '-m', 'http.server', '0', '--bind', '127.0.0.1'], preload=preload, name=name, cwd=here,
                   setup=own_sigint, env={'PYTHONUNBUFFERED': '1'})
    peak = Peak(server)
    found = wait_until(lambda: re.search(r' port (\d+) ', server.out) or not server.running(), 30)
    if not expect(found and found is not True, f'{name}: the server does not start', server.out + server.err):
        return server, server.wait(5), peak
    port = int(found.group(1))
    clients = []
    while len(clients) < CLIENTS:
        # Its queue of connections has room for five, and one that finds it full comes a second late.
        clients += [connect(port) for _ in range(4)]
        if not expect(wait_until(lambda: open_sockets(server.pid) > len(clients), 20),
                      f'{name}: {open_sockets(server.pid) - 1} of {len(clients)} connections accepted', server.err):
            return server, server.wait(0), peak
    for client in clients:
        client.sendall(b'GET /data HTTP/1.0\r\n')
    sleep_sampling(peak, 0.5)
    for client in clients:
        client.sendall(b'\r\n')
    sleep_sampling(peak, 0.5)
    expect(open_sockets(server.pid) > CLIENTS, f'{name}: answers were finished although nobody read them')
    answers = read_all(clients, peak)
    wrong = []
    for answer in answers:
        head, _, body = answer.partition(b'\r\n\r\n')
        if not head.startswith(b'HTTP/1.0 200 ') or body != CONTENT:
            wrong.append(f'{len(body)} of {len(CONTENT)} bytes, {bytes(head[:60])}')
    expect(not wrong, f'{name}: {len(wrong)} wrong answers of {CLIENTS}', '\n'.join(wrong) + server.err[-800:])
    for client in clients:
        client.close()
    idle = [connect(port) for _ in range(IDLE)]
    for client in idle:
        client.sendall(b'GET /')
    expect(wait_until(lambda: open_sockets(server.pid) == IDLE + 1, 20), f'{name}: {open_sockets(server.pid)} sockets are open')
    begin = time.monotonic()
    os.kill(server.pid, signal.SIGINT)
    code = server.wait(20)
    expect(time.monotonic() - begin < 10, f'{name}: {time.monotonic() - begin:.1f} s from SIGINT to the end')
    for client in idle:
        client.close()
    return server, code, peak


def same(text):
    """Without times and ports, and the order of requests."""
    text = re.sub(r'\[[^]]*\]', '[TIME]', re.sub(r'(port |:)\d+', r'\1PORT', text))
    return sorted(text.splitlines())


native, native_code, native_peak = serve('native', None)
server, code, peak = serve('preloaded', LIB)
expect(native_peak.most > CLIENTS, f'natively only {native_peak.most} kernel threads: the test does not test')
expect(code == native_code == 0, f'exit codes: {code}, natively {native_code}', server.err[-800:])
expect(same(server.out) == same(native.out), 'stdout differs', server.out + native.out)
expect(same(server.err) == same(native.err), 'stderr differs', server.err[-600:] + '\nnatively\n' + native.err[-600:])
expect(server.mode() == 'fibers', f'mode: {server.mode() or "no start line"}')
expect(0 < peak.most < MOST, f'{peak.most} kernel threads at most, fewer than {MOST} are wanted')
print(f'{CLIENTS} clients at once: {peak.most} kernel threads at most, natively {native_peak.most}')
finish()
