"""Frames that a hostile guest may send, from a raw socket in its namespace: attacks.py NAME. Sends the named attack on eth0 and ends."""
import socket
import struct
import sys

GUEST, GATEWAY = '169.254.0.21', '169.254.0.22'
GUEST_MAC, GATEWAY_MAC = bytes.fromhex('02cb00000001'), bytes.fromhex('02cb00000002')
WEB = '93.184.216.34'


def checksum(data):
    if len(data) % 2:
        data += b'\0'
    s = sum(struct.unpack('!%dH' % (len(data) // 2), data))
    while s >> 16:
        s = (s & 0xffff) + (s >> 16)
    return ~s & 0xffff


def ip(src, dst, proto, payload, frag=0, options=b'', ttl=64, total=None):
    ihl = 5 + len(options) // 4
    total = 4 * ihl + len(payload) if total is None else total
    head = struct.pack('!BBHHHBBH4s4s', 0x40 | ihl, 0, total, 1, frag, ttl, proto, 0,
                       socket.inet_aton(src), socket.inet_aton(dst)) + options
    return head[:10] + struct.pack('!H', checksum(head)) + head[12:] + payload


def udp(sport, dport, data):
    return struct.pack('!HHHH', sport, dport, 8 + len(data), 0) + data


def icmp(kind, ident, inner=b''):
    body = struct.pack('!BBHHH', kind, 0, 0, ident, 1) + inner
    return body[:2] + struct.pack('!H', checksum(body)) + body[4:]


def tcp(sport, dport, flags, data=b''):
    return struct.pack('!HHIIBBHHH', sport, dport, 1, 0, 0x50, flags, 1024, 0, 0) + data


def frame(payload, kind=0x0800, src=GUEST_MAC, dst=GATEWAY_MAC):
    return dst + src + struct.pack('!H', kind) + payload


def arp(op, sender_mac, sender_ip, target_ip):
    return struct.pack('!HHBBH', 1, 0x0800, 6, 4, op) + sender_mac + socket.inet_aton(sender_ip) + b'\0' * 6 + \
        socket.inet_aton(target_ip)


PROBE = udp(1000, 9, b'attack')
ATTACKS = {
    'spoof-mac': lambda: [frame(ip(GUEST, WEB, 17, PROBE), src=bytes.fromhex('02cb00000099'))],
    'spoof-ip': lambda: [frame(ip('93.184.216.99', WEB, 17, PROBE)), frame(ip('127.0.0.1', WEB, 17, PROBE))],
    'vlan': lambda: [frame(struct.pack('!HH', 5, 0x0800) + ip(GUEST, WEB, 17, PROBE), kind=0x8100)],
    'fragments': lambda: [frame(ip(GUEST, WEB, 17, PROBE + b'x' * 24, frag=0x2000)), frame(ip(GUEST, WEB, 17, b'y' * 32, frag=2)),
                          frame(ip(GUEST, WEB, 17, b'z' * 32, frag=0x2001))],
    'truncated': lambda: [frame(ip(GUEST, WEB, 6, tcp(1, 2, 2))[:28]), frame(ip(GUEST, WEB, 17, PROBE)[:24]), frame(b'\x45'),
                          frame(ip(GUEST, WEB, 17, PROBE, total=2000)), frame(ip(GUEST, WEB, 17, PROBE, total=10)), frame(b'')],
    'options': lambda: [frame(ip(GUEST, WEB, 17, PROBE, options=bytes([131, 7, 4]) + socket.inet_aton('10.9.9.9') + b'\0')),
                        frame(ip(GUEST, WEB, 17, PROBE, options=b'\x01' * 4))],
    'protocols': lambda: [frame(ip(GUEST, WEB, n, b'\0' * 32)) for n in (2, 4, 41, 47, 50, 132)],
    'icmp-error': lambda: [frame(ip(GUEST, WEB, 1, struct.pack('!BBHI', 3, 1, 0, 0) + ip(WEB, GUEST, 6, tcp(80, 1, 2))))],
    'icmp-error-in-session': lambda: [frame(ip(GUEST, WEB, 1, icmp(8, 7)))] + [frame(ip(GUEST, WEB, 1, icmp(kind, 7, ip(WEB, '93.184.216.1', 6, tcp(80, 40000, 2)))))
                                      for kind in (3, 5, 11, 12, 0, 13, 17)],
    'overlapping-fragments': lambda: [frame(ip(GUEST, WEB, 6, tcp(5000, 80, 2) + b'x' * 4, frag=0x2000)), frame(ip(GUEST, WEB, 6, tcp(5000, 22, 2), frag=0x2001)),
                                      frame(ip(GUEST, WEB, 6, b'\0' * 16, frag=1)), frame(ip(GUEST, WEB, 6, b'\0' * 8, frag=0x1fff))],
    'udp-fragments': lambda: [frame(ip(GUEST, WEB, 17, udp(1000, 9, b'x' * 32), frag=0x2000)), frame(ip(GUEST, WEB, 17, b'y' * 40, frag=0x2005)),
                              frame(ip(GUEST, WEB, 17, b'z' * 8, frag=10))],
    'qinq': lambda: [frame(struct.pack('!HHHH', 5, 0x8100, 6, 0x0800) + ip(GUEST, WEB, 17, PROBE), kind=0x88a8), frame(b'\0' * 46, kind=0x8847),
                     frame(b'\x42\x42\x03' + b'\0' * 43, kind=46)],
    'dhcp-offer-own-address': lambda: [frame(ip(GUEST, '255.255.255.255', 17, udp(67, 68, b'\x02\x01\x06\0' + b'\0' * 240)), dst=b'\xff' * 6)],
    'stray-tcp': lambda: [frame(ip(GUEST, WEB, 6, tcp(5000, 80, f))) for f in (16, 1, 4, 18, 0)],
    'gratuitous-arp': lambda: [frame(arp(1, GUEST_MAC, GATEWAY, GATEWAY), 0x0806, dst=b'\xff' * 6),
                               frame(arp(2, GUEST_MAC, '93.184.216.34', GATEWAY), 0x0806, dst=b'\xff' * 6)],
    'ipv6-ra': lambda: [frame(b'\x60' + b'\0' * 3 + struct.pack('!HBB', 16, 58, 255) + b'\xfe\x80' + b'\0' * 14 + b'\xff\x02' +
                              b'\0' * 13 + b'\x01' + b'\x86' + b'\0' * 15, 0x86dd, dst=b'\x33\x33\0\0\0\x01')],
    'dhcp-offer': lambda: [frame(ip('0.0.0.0', '255.255.255.255', 17, udp(67, 68, b'\x02\x01\x06\0' + b'\0' * 240)), dst=b'\xff' * 6)],
    'broadcast': lambda: [frame(ip(GUEST, '255.255.255.255', 17, PROBE), dst=b'\xff' * 6), frame(ip(GUEST, '224.0.0.1', 17, PROBE))],
    'port-scan': lambda: [frame(ip(GUEST, host, 6, tcp(6000, port, 2))) for port in range(1, 200)
                          for host in (GATEWAY, '93.184.216.1', '198.19.0.1', '198.19.128.2') if port != 53],
    'syn-flood': lambda: [frame(ip(GUEST, WEB, 6, tcp(1024 + n % 60000, 80 + n // 60000, 2))) for n in range(20000)],
}

if __name__ == '__main__':
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    s.bind(('eth0', 0))
    for f in ATTACKS[sys.argv[1]]():
        s.send(f.ljust(14, b'\0'))
