"""A tiny name server for the world, and a client for the guests: dnskit.py serve IP | ask SERVER NAME [udp|tcp] [COUNT] | dead SERVER COUNT RATE.
`dead` asks for COUNT names below dead.test, which the server never answers, RATE per second, and prints how many were refused (code 5).
The server knows a few names; `ask` prints "RCODE ADDRESS..." of each answer, or "timeout"."""
import socket
import struct
import sys
import threading

TABLE = {'www.allowed.test': ['93.184.216.34'], 'rebind.test': ['10.9.9.9'], 'mixed.test': ['93.184.216.34', '169.254.169.254'],
         'other.test': ['1.1.1.1'], 'big.test': ['93.184.%d.%d' % (n // 200, n % 200 + 1) for n in range(31)]}
asked = {}


def question(name):
    return b''.join(bytes([len(p)]) + p.encode() for p in name.split('.')) + b'\0' + struct.pack('!HH', 1, 1)


def read_question(p):
    at, parts = 12, []
    while p[at]:
        parts.append(p[at + 1:at + 1 + p[at]].decode().lower())
        at += 1 + p[at]
    return '.'.join(parts), at + 5


def answer(p):
    name, end = read_question(p)
    asked[name] = asked.get(name, 0) + 1
    if name == 'count.test':
        addresses = ['93.184.0.%d' % asked.get('www.allowed.test', 0)]
    else:
        addresses = TABLE.get(name, [])
    body = b''.join(b'\xc0\x0c' + struct.pack('!HHIH', 1, 1, 3 if name != 'count.test' else 0, 4) + socket.inet_aton(a) for a in addresses)
    return p[:2] + struct.pack('!HHHHH', 0x8180 if addresses else 0x8183, 1, len(addresses), 0, 0) + p[12:end] + body


def serve(ip):
    def tcp():
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind((ip, 53))
        s.listen()
        while True:
            c, _ = s.accept()
            n = struct.unpack('!H', c.recv(2, socket.MSG_WAITALL))[0]
            a = answer(c.recv(n, socket.MSG_WAITALL))
            c.sendall(struct.pack('!H', len(a)) + a)
            c.close()
    threading.Thread(target=tcp, daemon=True).start()
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    u.bind((ip, 53))
    while True:
        p, who = u.recvfrom(4096)
        if read_question(p)[0].endswith('.dead.test'):
            continue
        a = answer(p)
        if len(a) > 512:
            name, end = read_question(p)
            a = a[:2] + b'\x83\x80' + a[4:6] + b'\0' * 6 + a[12:end]
        u.sendto(a, who)


def ask(server, name, how='udp', count=1):
    codes = {}
    for n in range(int(count)):
        q = struct.pack('!HHHHHH', n + 1, 0x0100, 1, 0, 0, 0) + question(name)
        try:
            if how == 'tcp':
                s = socket.create_connection((server, 53), 10)
                s.sendall(struct.pack('!H', len(q)) + q)
                a = s.recv(struct.unpack('!H', s.recv(2, socket.MSG_WAITALL))[0], socket.MSG_WAITALL)
            else:
                s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                s.settimeout(10)
                s.sendto(q, (server, 53))
                a = s.recv(4096)
            _, end = read_question(a)
            addresses, at = [], end
            for _ in range(struct.unpack('!H', a[6:8])[0]):
                addresses.append(socket.inet_ntoa(a[at + 12:at + 16]))
                at += 16
            text = '%d%s %s' % (a[3] & 15, ' truncated' if a[2] & 2 else '', ' '.join(addresses))
        except (TimeoutError, OSError) as e:
            text = 'timeout'
        codes[text.strip()] = codes.get(text.strip(), 0) + 1
    for text, n in codes.items():
        print(text if int(count) == 1 else '%d x %s' % (n, text))


def at_once(server, names):
    """The codes of the answers to all questions, until none came for ten seconds."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(10)
    for n, name in enumerate(names):
        s.sendto(struct.pack('!HHHHHH', n + 1, 0x0100, 1, 0, 0, 0) + question(name), (server, 53))
    codes = []
    try:
        while len(codes) < len(names):
            codes.append(s.recv(4096)[3] & 15)
    except TimeoutError:
        pass
    return codes


def dead(server, count):
    print(at_once(server, ['n%d.dead.test' % n for n in range(int(count))]).count(5))


def flood(server, name, count):
    codes = at_once(server, [name] * int(count))
    for code in sorted(set(codes)):
        print('%d x %d' % (codes.count(code), code))


if sys.argv[1] == 'flood':
    flood(*sys.argv[2:])
elif sys.argv[1] == 'dead':
    dead(*sys.argv[2:])
elif sys.argv[1] == 'serve':
    serve(sys.argv[2])
else:
    ask(*sys.argv[2:])
