"""A hostile guest's own virtio-net headers: vnet.py TAP NAME. Writes frames to the TAP as a VMM does, with a header of the guest's choice."""
import fcntl
import os
import struct
import sys

sys.path.insert(0, __file__.rsplit('/', 1)[0])
from attacks import GUEST, WEB, checksum, frame, ip, tcp, udp  # noqa: E402

NEEDS_CSUM = 1
GSO = {'none': 0, 'tcp4': 1, 'udp': 3, 'tcp6': 4, 'udp-l4': 5}


def header(start, offset, flags=NEEDS_CSUM, gso='none', size=0, length=0):
    return struct.pack('<BBHHHH', flags, GSO[gso], length, size, start, offset)


PLAIN_UDP = frame(ip(GUEST, WEB, 17, udp(1000, 9, b'attack' * 8)))
PLAIN_TCP = frame(ip(GUEST, WEB, 6, tcp(1000, 80, 2, b'x' * 40)))
LARGE_TCP = frame(ip(GUEST, WEB, 6, tcp(1000, 80, 2, b'x' * 4000)))


def everywhere():
    """Every place of a checksum but the right one."""
    out = []
    for plain, right in ((PLAIN_UDP, (34, 6)), (PLAIN_TCP, (34, 16))):
        for start in range(0, 50, 2):
            for at in range(0, 56, 2):
                if at >= start and (start, at - start) != right and at + 2 <= len(plain):
                    out.append(header(start, at - start) + plain)
    return out


def partial(f):
    """What stands in the field until the rest is summed up: the pseudo header's sum."""
    length = len(f) - 34
    return struct.pack('!H', ~checksum(f[26:34] + struct.pack('!HH', 17, length)) & 0xffff)


FRAMES = {
    'checksum-over-headers': everywhere,
    'checksum-of-icmp': lambda: [header(34, 2) + frame(ip(GUEST, WEB, 1, struct.pack('!BBHI', 8, 0, 0, 1) + b'x' * 32)) for _ in range(3)],
    'segments-elsewhere': lambda: [header(s, 16, gso='tcp4', size=500, length=54) + LARGE_TCP for s in (26, 14, 38)],
    'segments-of-one-byte': lambda: [header(34, 16, gso='tcp4', size=n, length=54) + LARGE_TCP for n in (1, 2, 3)],
    # honest ones: they must pass
    'honest': lambda: [header(34, 6) + PLAIN_UDP[:40] + partial(PLAIN_UDP) + PLAIN_UDP[42:]],
}

fd = os.open('/dev/net/tun', os.O_RDWR)
fcntl.ioctl(fd, 0x400454ca, struct.pack('16sH', sys.argv[1].encode(), 0x0002 | 0x1000 | 0x4000))
accepted = 0
for f in FRAMES[sys.argv[2]]():
    try:
        os.write(fd, f)
        accepted += 1
    except OSError:
        pass  # the kernel itself refused the header
print(accepted)
