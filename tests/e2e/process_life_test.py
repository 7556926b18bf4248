"""Forks, ends and interruptions at odd moments: nothing hangs, crashes or leaves a session behind."""

import signal
import unittest

from harness import E2eTest, Pool, SLOWNESS, run_directly, wait_until

# Case of the program and its exit status, negative: the signal that ends it.
CASES = {
    'fork': 0,
    'fork_while_busy': 0,
    'spawn': 0,
    'threads': 0,
    'dlopen': 0,
    'exit_from_host_function': 6,
    'use_at_exit': 0,
    'exit_in_atexit': 4,
    'interrupt': -signal.SIGINT,
    'interrupt_exit': 3,
    'interrupt__exit': 3,
}


class ProcessLifeTest(E2eTest):

    def check_transport(self, transport):
        with Pool(FARGPU_TRANSPORT=transport) as pool:
            warm = len(pool.pids('fargpu-worker'))
            for case, status in CASES.items():
                with self.subTest(f'{case} over {transport}'):
                    result = pool.run('process_life', case)
                    # A shell's way of telling of a signal, which `fargpu run` follows.
                    expected = status if status >= 0 else 128 - status
                    self.assertIn(result.status, (status, expected), result.explain())
                    direct = run_directly('process_life', case)
                    self.assertEqual(direct.stdout.decode(), result.stdout.decode(), result.stderr)
                    wait_until(lambda: not pool.leases(), 10 * SLOWNESS, 'no lease is left')
                    wait_until(lambda: len(pool.pids('fargpu-worker')) <= warm, 10 * SLOWNESS,
                               f'{warm} workers are left, which are warm')

    def test_direct(self):
        for case, status in CASES.items():
            with self.subTest(case):
                result = run_directly('process_life', case)
                self.assertEqual(status, result.status, result.explain())

    def test_tcp(self):
        self.check_transport('tcp')

    def test_shm(self):
        self.check_transport('shm')


if __name__ == '__main__':
    unittest.main()
