#!/usr/bin/env python3
"""200 threads in getaddrinfo at once, against a name server that answers after 300 ms: all right, and no pin.

It has a network and a /etc/resolv.conf of its own (unshare -mn).
"""
# run: timeout=180 needs=unshare
import heapq
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
from vthr_test import expect, finish, logged, program, read_json, run, scratch, skip  # noqa: E402

DELAY = 0.3


def answer(query, truncated):
    """The reply to one question for A or AAAA of hostN.test or tcpN.test."""
    end = query.index(b'\0', 12) + 5
    question, labels, at = query[12:end], [], 12
    while query[at]:
        labels.append(query[at + 1:at + 1 + query[at]].decode())
        at += query[at] + 1
    kind = struct.unpack('>H', query[end - 4:end - 2])[0]
    number = int(''.join(c for c in labels[0] if c.isdigit()) or 0)
    known = labels[1:] == ['test'] and kind == 1 and not truncated
    flags = 0x8180 | (0x0200 if truncated else 0)
    head = query[:2] + struct.pack('>HHHHH', flags, 1, 1 if known else 0, 0, 0)
    record = struct.pack('>HHHIH4B', 0xc00c, 1, 1, 60, 4, 10, 0, number // 256, number % 256) if known else b''
    return head + question + record


def serve_tcp(connection):
    """Two questions may come on one connection; each is answered late."""
    with connection:
        while True:
            try:
                length = connection.recv(2, socket.MSG_WAITALL)
                if len(length) < 2:
                    return
                query = connection.recv(struct.unpack('>H', length)[0], socket.MSG_WAITALL)
                time.sleep(DELAY)
                reply = answer(query, False)
                connection.sendall(struct.pack('>H', len(reply)) + reply)
            except OSError:
                return


def serve():
    udp, tcp = socket.socket(type=socket.SOCK_DGRAM), socket.socket()
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for s in (udp, tcp):
        s.bind(('127.0.0.1', 53))
    tcp.listen(500)

    def loop():
        due, number = [], 0
        while True:
            wait = max(0, due[0][0] - time.monotonic()) if due else None
            for s in select.select([udp, tcp], [], [], wait)[0]:
                if s is tcp:
                    threading.Thread(target=serve_tcp, args=(tcp.accept()[0],), daemon=True).start()
                else:
                    query, sender = udp.recvfrom(2048)
                    number += 1
                    heapq.heappush(due, (time.monotonic() + DELAY, number, query, sender))
            while due and due[0][0] <= time.monotonic():
                _, _, query, sender = heapq.heappop(due)
                udp.sendto(answer(query, query[13:16] == b'tcp'), sender)

    threading.Thread(target=loop, daemon=True).start()


def prepare():
    """The loopback interface up, resolv.conf and nsswitch.conf of our own. What was refused, or ''."""
    here = scratch()
    for name, text in (('resolv.conf', 'nameserver 127.0.0.1\noptions timeout:20 attempts:2\n'), ('nsswitch.conf', 'hosts: dns\n')):
        path = os.path.join(here, name)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)
        target = '/etc/' + name
        if not os.path.exists(target):
            return target + ' does not exist'
        done = subprocess.run(['mount', '--bind', path, os.path.realpath(target)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return done.stderr.strip() or 'mount'
    import fcntl
    with socket.socket(type=socket.SOCK_DGRAM) as s:
        try:
            request = struct.pack('16sh14x', b'lo', 1 | 64)  # IFF_UP, IFF_RUNNING
            fcntl.ioctl(s, 0x8914, request)  # SIOCSIFFLAGS
        except OSError as error:
            return f'the loopback interface: {error}'
    return ''


if sys.argv[1:] != ['inside']:
    probe = subprocess.run(['unshare', '-mn', 'true'], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        skip('unshare -mn is refused: ' + probe.stderr.strip())
    os.execvp('unshare', ['unshare', '-mn', sys.executable, os.path.abspath(__file__), 'inside'])

refused = prepare()
if refused:
    skip(refused)
serve()
RESOLVE = [program('resolve'), '200']
native = run(RESOLVE, preload=False)
expect(native.returncode == 0 and native.stdout == 'OK\n', 'natively', native.stdout)
name = os.path.join(scratch(), 'report.json')
for carriers in (None, 1):
    result = run(RESOLVE, **logged(VTHR_REPORT=name, VTHR_CARRIERS=carriers, VTHR_PIN_THRESHOLD='150ms'))
    expect(result.returncode == 0 and result.stdout == 'OK\n', f'preloaded, VTHR_CARRIERS={carriers}', result.stdout)
    report = read_json(name) or {}
    # a CPU that is not there is no fault of a call
    pins = [p for p in report.get('pins', []) if p.get('reason') != 'cpu']
    expect(not pins, f'VTHR_CARRIERS={carriers}: pins over the threshold', pins)
    parked = report.get('blocking_calls', {}).get('parked', 0)
    expect(parked >= 200, f'VTHR_CARRIERS={carriers}: {parked} calls parked')
finish()
