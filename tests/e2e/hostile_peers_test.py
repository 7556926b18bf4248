"""Strangers on the control sockets: each is turned away with one log line, nobody else notices."""

import contextlib
import random
import re
import socket
import struct
import unittest

from harness import E2eTest, PROGRAMS, Pool, SLOWNESS, preloaded, wait_until

# The daemon gives a stranger 5 s to prove the secret.
TURNED_AWAY_LIMIT_S = 8 * SLOWNESS
SHOW_LEASE = 'cat "$FARGPU_LEASE"'
# Runs a program with a lease file in which something was changed.
WITH_CHANGED_LEASE = ('sed "$1" "$FARGPU_LEASE" > "$2" && chmod 600 "$2" && export FARGPU_LEASE="$2" '
                      '&& shift 2 && exec "$@"')


def endpoints(pool):
    result = pool.run('/bin/sh', '-c', SHOW_LEASE)
    assert result.status == 0, result.explain()
    return re.findall(r'(?m)^endpoint (\S+)$', result.stdout.decode())


def connect(endpoint):
    kind, _, address = endpoint.partition(':')
    if kind == 'unix':
        stranger = socket.socket(socket.AF_UNIX)
        stranger.connect(address)
    else:
        host, _, port = address.rpartition(':')
        stranger = socket.create_connection((host.strip('[]'), int(port)))
    stranger.settimeout(TURNED_AWAY_LIMIT_S)
    return stranger


def tls_record(body, length=None):
    return b'\x16\x03\x01' + struct.pack('>H', len(body) if length is None else length) + body


GARBAGE = random.Random(1).randbytes(4096)
PAYLOADS = {
    'random bytes': GARBAGE,
    'all ones': b'\xff' * 64,
    'zeros': b'\0' * 64,
    'a 4 GiB length, little endian': struct.pack('<I', 0xffffffff) + b'x' * 64,
    'a 4 GiB length, big endian': struct.pack('>I', 0xfffffff0) + b'x' * 64,
    'a 2^63 length': struct.pack('<Q', 1 << 63) + b'x' * 64,
    'HTTP': b'GET / HTTP/1.1\r\nHost: x\r\n\r\n',
    'a TLS record of garbage': tls_record(GARBAGE[:512]),
    'a truncated ClientHello': tls_record(b'\x01\x00\xff\xff\x03\x03' + GARBAGE[:32], 16384),
}


class HostilePeersTest(E2eTest):

    def lines_about_strangers(self, pool):
        return [line for line in pool.log_of('daemon').splitlines() if line.strip()]

    def assert_turned_away(self, pool, endpoint, payload, shut_down):
        before = len(self.lines_about_strangers(pool))
        with connect(endpoint) as stranger:
            with contextlib.suppress(OSError):  # closed already; shutdown then says ENOTCONN
                stranger.sendall(payload)
                if shut_down:
                    stranger.shutdown(socket.SHUT_WR)
            received = b''
            try:
                while chunk := stranger.recv(4096):
                    received += chunk
                    self.assertLess(len(received), 4096, 'a stranger gets an alert at most')
            except ConnectionError:
                pass  # closed with our bytes unread
        wait_until(lambda: len(self.lines_about_strangers(pool)) > before, 5 * SLOWNESS,
                   'a log line about it')
        lines = self.lines_about_strangers(pool)[before:]
        self.assertEqual(1, len(lines), lines)

    def test_nonsense(self):
        with Pool() as pool:
            found = endpoints(pool)
            self.assertTrue(any(name.startswith('unix:') for name in found), found)
            self.assertTrue(any(name.startswith('tcp:') for name in found), found)
            bystander = pool.start('hold', '64', '300')
            bystander.wait_for_output('ready')
            daemon = pool.one_pid('fargpud')
            for endpoint in found:
                for name, payload in PAYLOADS.items():
                    for shut_down in (True, False):
                        with self.subTest(f'{name} to {endpoint.split(":")[0]}, '
                                          f'{"then end" if shut_down else "then silence"}'):
                            self.assert_turned_away(pool, endpoint, payload, shut_down)
            self.assertEqual(daemon, pool.one_pid('fargpud'))
            self.assertTrue(bystander.running(), bystander.stderr)
            self.assert_succeeds(pool.run('vector_add'))

    def test_many_silent_strangers_do_not_lock_out_others(self):
        with Pool() as pool, contextlib.ExitStack() as stack:
            for endpoint in endpoints(pool):
                # More than the daemon lets wait at its door, on either kind of socket.
                for _ in range(200):
                    stack.enter_context(connect(endpoint))
            self.assert_succeeds(pool.run('vector_add'))

    def test_wrong_secret_and_unknown_lease(self):
        with Pool() as pool:
            bystander = pool.start('hold', '64', '300')
            bystander.wait_for_output('ready')
            changes = {'wrong secret': f's/^secret .*/secret {"5a" * 32}/',
                       'unknown lease': f's/^lease .*/lease {"5a" * 16}/'}
            for name, change in changes.items():
                for kind, other in (('tcp', 'unix'), ('unix', 'tcp')):
                    with self.subTest(f'{name} over {kind}'):
                        before = len(self.lines_about_strangers(pool))
                        result = pool.run('/bin/sh', '-c', WITH_CHANGED_LEASE, 'sh',
                                          f'{change}; /^endpoint {other}:/d',
                                          str(pool.home / f'{kind}{len(change)}'),
                                          *map(str, preloaded(PROGRAMS / 'vector_add')), limit_s=30 * SLOWNESS)
                        self.assertNotEqual(0, result.status)
                        self.assertIn('cudaError', result.stderr)
                        wait_until(lambda: any('secret' in line or 'lease' in line for line in
                                               self.lines_about_strangers(pool)[before:]),
                                   5 * SLOWNESS, 'a log line about it')
            self.assertTrue(bystander.running(), bystander.stderr)
            self.assert_succeeds(pool.run('vector_add'))

    def test_secret_stays_secret(self):
        """Not in a command line, not in a log, and the lease file is for its owner only."""
        with Pool() as pool:
            shown = pool.run('/bin/sh', '-c', SHOW_LEASE + '; stat -c "mode %a" "$FARGPU_LEASE"')
            secret = re.search(r'(?m)^secret (\S+)$', shown.stdout.decode()).group(1)
            self.assertIn(b'mode 600', shown.stdout)
            self.assertNotIn(secret, pool.logs())
            for path in (pool.home / 'h').rglob('*'):
                if path.is_file():
                    self.assertEqual(0, path.stat().st_mode & 0o077 if secret.encode() in path.read_bytes()
                                     else 0, f'{path} holds the secret and others may read it')


if __name__ == '__main__':
    unittest.main()
