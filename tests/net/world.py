"""Packets that a hostile world sends: world.py NAME NODE_MAC [NAT_PORT]. On eth0 of the world's namespace, to the node's uplink address."""
import socket
import struct
import sys

sys.path.insert(0, __file__.rsplit('/', 1)[0])
from attacks import arp, checksum, ip, tcp, udp  # noqa: E402

NODE, WEB, ROUTER = '93.184.216.1', '93.184.216.34', '93.184.216.77'
mac = bytes.fromhex(sys.argv[2].replace(':', ''))
port = int(sys.argv[3]) if len(sys.argv) > 3 else 40000


def frame(payload, kind=0x0800, dst=mac):
    return dst + bytes.fromhex('02cb000000ee') + struct.pack('!H', kind) + payload


def icmp(kind, code, inner):
    body = struct.pack('!BBHI', kind, code, 0, 0) + inner
    return body[:2] + struct.pack('!H', checksum(body)) + body[4:]


def quote(src=NODE, dst=WEB, proto=17, sport=port, dport=9, options=b'', data=b'x' * 8):
    return ip(src, dst, proto, struct.pack('!HHHH', sport, dport, 8 + len(data), 0) + data, options=options)


def errors(inner, src=ROUTER):
    return [frame(ip(src, NODE, 1, icmp(kind, code, inner))) for kind, code in ((3, 1), (3, 4), (11, 0), (12, 0), (5, 1), (4, 0))]


PACKETS = {
    # an honest one, of a router on the way: the only that a guest may see
    'icmp-honest': lambda: [frame(ip(ROUTER, NODE, 1, icmp(3, 3, quote())))],
    # what it quotes is no packet of any session
    'icmp-other-port': lambda: [f for p in range(40000, 56384, 37) if p != port for f in errors(quote(sport=p))],
    'icmp-other-remote': lambda: errors(quote(dst='93.184.216.35')) + errors(quote(dport=10)) + errors(quote(proto=6)),
    'icmp-other-source': lambda: errors(quote(src='169.254.0.21')) + errors(quote(src='10.0.0.1')) + errors(quote(src=WEB, dst=NODE)),
    'icmp-inner-options': lambda: errors(quote(options=b'\x01' * 4)) + errors(quote()[:24]) + errors(quote()[:8]) + errors(b'') +
        errors(b'\x65' + quote()[1:]) + errors(b'\x41' + quote()[1:]),
    'icmp-redirect': lambda: [frame(ip(ROUTER, NODE, 1, icmp(5, 1, quote())))],
    # packets that open nothing
    'unasked': lambda: [frame(ip(WEB, NODE, 6, tcp(80, p, f))) for p in range(40000, 56384, 97) for f in (2, 16, 18, 4)] +
        [frame(ip(src, NODE, 17, udp(9, port, b'forged'))) for src in (ROUTER, '10.0.0.1', '127.0.0.1', '169.254.169.254', NODE)] +
        [frame(ip(WEB, NODE, 17, udp(10, port, b'forged'))), frame(ip(WEB, '169.254.0.21', 17, udp(9, 4444, b'forged'))),
         frame(ip(WEB, NODE, 17, udp(9, port, b'forged'), frag=0x2000)), frame(ip(WEB, NODE, 17, b'forged' * 3, frag=1))],
    'dhcp': lambda: [frame(ip(ROUTER, dst, 17, udp(67, 68, b'\x02\x01\x06\0' + b'\0' * 240)), dst=d)
                     for dst, d in (('255.255.255.255', b'\xff' * 6), (NODE, mac), ('169.254.0.21', mac))],
    'ra': lambda: [frame(b'\x60' + b'\0' * 3 + struct.pack('!HBB', 16, 58, 255) + b'\xfe\x80' + b'\0' * 14 + b'\xff\x02' + b'\0' * 13 + b'\x01' +
                         b'\x86' + b'\0' * 15, 0x86dd, dst=b'\x33\x33\0\0\0\x01')],
    'arp': lambda: [frame(arp(op, bytes.fromhex('02cb000000ee'), s, t), 0x0806, dst=b'\xff' * 6) for op in (1, 2)
                    for s, t in (('169.254.0.22', '169.254.0.21'), ('169.254.0.21', '169.254.0.21'))],
}

if __name__ == '__main__':
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    s.bind(('eth0', 0))
    for f in PACKETS[sys.argv[1]]():
        s.send(f)
