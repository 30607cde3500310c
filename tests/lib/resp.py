"""A small Redis client for tests: pipelines, nested replies, errors as exceptions."""
import socket


class RedisError(Exception):
    pass


class Redis:
    def __init__(self, port, host='127.0.0.1'):
        self.sock = socket.create_connection((host, port), timeout=20)
        self.file = self.sock.makefile('rb')

    def send(self, *args):
        out = [b'*%d\r\n' % len(args)]
        for a in args:
            b = a if isinstance(a, bytes) else str(a).encode()
            out.append(b'$%d\r\n%s\r\n' % (len(b), b))
        self.sock.sendall(b''.join(out))

    def read(self):
        line = self.file.readline()
        if not line:
            raise ConnectionError('redis closed the connection')
        kind, rest = line[:1], line[1:-2]
        if kind == b'+':
            return rest.decode()
        if kind == b'-':
            raise RedisError(rest.decode())
        if kind == b':':
            return int(rest)
        if kind == b'$':
            n = int(rest)
            if n < 0:
                return None
            data = self.file.read(n + 2)[:-2]
            try:
                return data.decode()
            except UnicodeDecodeError:
                return data
        n = int(rest)
        return None if n < 0 else [self.read() for _ in range(n)]

    def __call__(self, *args):
        self.send(*args)
        return self.read()

    def hash(self, key):
        flat = self('HGETALL', key)
        return dict(zip(flat[::2], flat[1::2]))
