"""What leases promise: memory of one's own, limits, refusals, and that all comes back."""

import shlex
import signal
import unittest

from harness import E2eTest, PROGRAMS, Pool, SLOWNESS, preloaded, run_directly, wait_until

GIVEN_BACK_LIMIT_S = 2 * SLOWNESS


class LeasesTest(E2eTest):

    def test_two_side_by_side_and_a_third_too_large(self):
        with Pool(softgpu='memory=4GiB') as pool:
            first = pool.start('hold', '256', '60', memory='1500MiB', cores=40)
            second = pool.start('hold', '256', '60', memory='1500MiB', cores=40)
            first.wait_for_output('ready')
            second.wait_for_output('ready')
            self.assertEqual(2, len(pool.leases()), pool.command('leases').stdout)
            self.assertEqual(1, len(pool.pool()), pool.command('pool').stdout)

            refused = pool.run('vector_add', memory='2GiB', cores=10)
            self.assertNotEqual(0, refused.status)
            self.assertEqual(b'', refused.stdout)
            self.assertRegex(refused.stderr, r'(?i)memory|MiB|GiB')
            self.assertEqual(1, len(refused.stderr.strip().splitlines()), refused.stderr)
            # What is left can still be had, and nobody was disturbed.
            self.assert_succeeds(pool.run('vector_add', memory='512MiB', cores=10))
            for program in (first, second):
                self.assertTrue(program.running(), program.stderr)
                program.kill('hold', signal.SIGTERM)
                result = program.wait()
                self.assert_succeeds(result)
                self.assertIn(b'done', result.stdout)
            self.assertEqual([], pool.leases())

    def test_too_many_cores(self):
        with Pool() as pool:
            first = pool.start('hold', '16', '60', memory='256MiB', cores=80)
            first.wait_for_output('ready')
            refused = pool.run('vector_add', memory='256MiB', cores=30)
            self.assertNotEqual(0, refused.status)
            self.assertRegex(refused.stderr, r'(?i)core|%|per cent|compute')

    def test_allocation_beyond_the_lease(self):
        with Pool(softgpu='memory=4GiB') as pool:
            expected = run_directly('alloc_limit', softgpu='memory=256MiB')
            self.assert_succeeds(expected)
            for transport in ('tcp', 'shm'):
                with self.subTest(transport):
                    result = pool.run('alloc_limit', memory='256MiB', FARGPU_TRANSPORT=transport)
                    self.assert_succeeds(result)
                    self.assertEqual(expected.stdout, result.stdout)

    def test_processes_of_one_lease_share_memory_and_others_are_refused(self):
        for transport in ('tcp', 'shm'):
            with self.subTest(transport), Pool(softgpu='memory=4GiB', FARGPU_TRANSPORT=transport) as pool:
                handle = pool.home / 'handle'
                program = shlex.join(map(str, preloaded(PROGRAMS / 'ipc_memory')))
                # The shell's two programs have one lease.
                both = pool.start('/bin/sh', '-c', f'{program} offer {handle} & '
                                  f'while [ ! -e {handle} ]; do sleep 0.1; done; '
                                  f'{program} take {handle}; '
                                  f'while [ -e {handle} ]; do sleep 0.1; done; wait')
                both.wait_for_output('opened')
                stranger = pool.run('ipc_memory', 'take', str(handle))
                self.assert_succeeds(stranger)
                self.assertEqual(b'cudaErrorInvalidValue\n', stranger.stdout)
                handle.unlink()
                result = both.wait()
                self.assert_succeeds(result)
                self.assertIn(b'done', result.stdout)
                self.assertIn('another lease', pool.logs())

    def test_program_sees_the_size_of_its_lease(self):
        with Pool(softgpu='memory=4GiB') as pool:
            result = pool.run('device_query', memory='768MiB')
            self.assert_succeeds(result)
            self.assertIn(b' 768 MiB,', result.stdout)
            self.assertIn(b'devices: 1\n', result.stdout)

    def test_two_cards(self):
        with Pool(softgpu='devices=2,memory=1GiB') as pool:
            self.assertEqual(2, len(pool.pool()))
            result = pool.command('run', '--memory', '512MiB', '--count', '2', '--',
                                  *map(str, preloaded(PROGRAMS / 'device_query')))
            self.assert_succeeds(result)
            self.assertIn(b'devices: 2\n', result.stdout)

    def test_memory_is_back_after_the_program_was_killed(self):
        # Nothing else fits beside it, so a second run proves that memory and lease are free again.
        for transport in ('tcp', 'shm'):
            with self.subTest(transport), Pool(softgpu='memory=2GiB', FARGPU_TRANSPORT=transport) as pool:
                whole = pool.start('hold', '1024', '60', memory='1500MiB', cores=90)
                whole.wait_for_output('ready')
                self.assertNotEqual(0, pool.run('vector_add', memory='1500MiB', cores=90).status)
                whole.kill('hold', signal.SIGKILL)
                wait_until(lambda: not pool.leases(), GIVEN_BACK_LIMIT_S, 'lease is released')
                self.assertEqual(128 + signal.SIGKILL, whole.wait().status)
                again = pool.start('hold', '1024', '60', memory='1500MiB', cores=90)
                again.wait_for_output('ready')

    def test_memory_is_back_after_the_whole_command_was_killed(self):
        with Pool(softgpu='memory=2GiB') as pool:
            whole = pool.start('hold', '1024', '60', memory='1500MiB', cores=90)
            whole.wait_for_output('ready')
            whole.end()  # program and `fargpu run` alike, by SIGKILL

            def memory_is_back():
                again = pool.run('vector_add', memory='400MiB', cores=10)
                return again.status == 0 and sessions(pool) == 0
            wait_until(memory_is_back, GIVEN_BACK_LIMIT_S + 5, 'memory of the session is back')


def sessions(pool):
    """Sessions that the broker knows of, over all leases."""
    return sum(int(row['sessions']) for row in pool.leases())


if __name__ == '__main__':
    unittest.main()
