"""Forks, ends and interruptions at odd moments: nothing hangs, crashes or leaves a session behind."""

import signal
import unittest

from harness import E2eTest, Pool, SLOWNESS, run_directly, wait_until

# Case of the program and its exit status, negative: the signal that ends it; a pair where either may be.
CASES = {
    'fork': 0,
    'fork_while_busy': 0,
    'spawn': 0,
    'spawn_while_busy': 0,
    'threads': 0,
    'main_thread_ends': 7,
    'dlopen': 0,
    'exit_from_host_function': 6,
    '_exit_from_host_function': 6,
    'exit_from_callback': 6,
    'exit_while_launching': 5,
    # NVIDIA's runtime frees its tables at exit while cudaLaunchKernel of other threads reads them.
    'exit_while_runtime_launches': (5, -signal.SIGSEGV),
    'use_at_exit': 0,
    'exit_in_atexit': 4,
    'interrupt': -signal.SIGINT,
    'interrupt_exit': 3,
    'interrupt__exit': 3,
}


# No lease and no worker of the program is left after so long.
LIMIT_S = 1 * SLOWNESS


def statuses(case, run):
    """What `case` may end with, as a shell tells of signals if `run` by one."""
    expected = CASES[case] if isinstance(CASES[case], tuple) else (CASES[case],)
    # A shell's way, which `fargpu run` follows, though it may end by the signal itself.
    return {*expected, *(128 - status for status in expected if status < 0 and run)}


class ProcessLifeTest(E2eTest):

    def check_transport(self, transport):
        with Pool(FARGPU_TRANSPORT=transport) as pool:
            warm = len(pool.pids('fargpu-worker'))
            for case in CASES:
                with self.subTest(f'{case} over {transport}'):
                    result = pool.run('process_life', case)
                    self.assertIn(result.status, statuses(case, run=True), result.explain())
                    direct = run_directly('process_life', case)
                    self.assertEqual(direct.stdout.decode(), result.stdout.decode(), result.stderr)
                    wait_until(lambda: not pool.leases(), LIMIT_S, 'no lease is left')
                    wait_until(lambda: len(pool.pids('fargpu-worker')) <= warm, LIMIT_S,
                               f'{warm} workers are left, which are warm')

    def test_direct(self):
        for case in CASES:
            with self.subTest(case):
                result = run_directly('process_life', case)
                self.assertIn(result.status, statuses(case, run=False), result.explain())

    def test_tcp(self):
        self.check_transport('tcp')

    def test_shm(self):
        self.check_transport('shm')


if __name__ == '__main__':
    unittest.main()
