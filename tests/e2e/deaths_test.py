"""Every part may be killed at any time: what runs goes on or learns of it quickly, nothing hangs."""

import os
import signal
import time
import unittest

from harness import E2eTest, Pool, SLOWNESS, wait_until

NOTICED_LIMIT_S = 5 * SLOWNESS


def kill(pool, name):
    pid = pool.one_pid(name)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: pid not in pool.pids(), 5, f'{name} is dead')


def lease_ids(pool):
    return sorted(row['lease'] for row in pool.leases())


class DeathsTest(E2eTest):

    def assert_goes_on(self, program, span_s=1.0):
        """Still there after a while in which it makes a call every few milliseconds."""
        end = time.monotonic() + span_s
        while time.monotonic() < end:
            self.assertTrue(program.running(), program.stdout + program.stderr)
            time.sleep(0.05)

    def assert_ends_well(self, program):
        program.kill('hold', signal.SIGTERM)
        result = program.wait(20 * SLOWNESS)
        self.assert_succeeds(result)
        self.assertIn(b'done', result.stdout)

    def test_worker(self):
        for transport in ('tcp', 'shm'):
            with self.subTest(transport), Pool(FARGPU_TRANSPORT=transport) as pool:
                programs = [pool.start('hold', '64', '120', memory='1GiB') for _ in range(2)]
                for program in programs:
                    program.wait_for_output('ready')
                # Also warm workers, which nobody uses, may be among them.
                for worker in pool.pids('fargpu-worker'):
                    os.kill(worker, signal.SIGKILL)
                    killed_at = time.monotonic()
                    ended = []
                    while time.monotonic() - killed_at < NOTICED_LIMIT_S and not ended:
                        ended = [program for program in programs if not program.running()]
                        time.sleep(0.02)
                    if ended:
                        break
                self.assertEqual(1, len(ended), 'one program learns of the death of its worker in time')
                result = ended[0].wait()
                self.assertEqual(3, result.status, result.explain())
                self.assertRegex(result.stdout.decode(), r'(?m)^cudaError\w+$')
                programs.remove(ended[0])
                self.assert_goes_on(programs[0])
                self.assert_succeeds(pool.run('vector_add', memory='512MiB'))
                self.assert_ends_well(programs[0])
                wait_until(lambda: not pool.leases(), 5 * SLOWNESS, 'no lease is left')

    def test_hung_worker(self):
        """A worker that is stopped, not dead: only the heartbeat can tell."""
        for transport in ('tcp', 'shm'):
            with self.subTest(transport), Pool(FARGPU_TRANSPORT=transport) as pool:
                program = pool.start('hold', '64', '120')
                program.wait_for_output('ready')
                workers = pool.pids('fargpu-worker')
                for worker in workers:
                    os.kill(worker, signal.SIGSTOP)
                try:
                    result = program.wait(NOTICED_LIMIT_S + 3 * SLOWNESS)
                    self.assertEqual(3, result.status, result.explain())
                finally:
                    for worker in workers:
                        try:
                            os.kill(worker, signal.SIGCONT)
                        except ProcessLookupError:
                            pass

    def test_daemon(self):
        for transport in ('tcp', 'shm'):
            with self.subTest(transport), Pool(softgpu='memory=4GiB', FARGPU_TRANSPORT=transport) as pool:
                program = pool.start('hold', '1024', '120', memory='2GiB')
                program.wait_for_output('ready')
                before = lease_ids(pool)
                kill(pool, 'fargpud')
                self.assert_goes_on(program)
                pool.up()
                self.assert_goes_on(program)
                self.assertEqual(before, lease_ids(pool))
                # The new daemon's ledger knows what runs: 2 GiB are lent, so 3 GiB are not to be had.
                self.assertNotEqual(0, pool.run('vector_add', memory='3GiB', cores=10).status)
                self.assert_succeeds(pool.run('vector_add', memory='1GiB', cores=10))
                self.assert_ends_well(program)
                wait_until(lambda: not pool.leases(), 5 * SLOWNESS, 'no lease is left')
                self.assert_succeeds(pool.run('vector_add', memory='3GiB', cores=10))

    def test_program_killed_while_there_is_no_daemon(self):
        with Pool(softgpu='memory=4GiB') as pool:
            program = pool.start('hold', '1024', '120', memory='2GiB')
            program.wait_for_output('ready')
            kill(pool, 'fargpud')
            program.kill('hold', signal.SIGKILL)
            program.wait(20 * SLOWNESS)
            pool.up()
            wait_until(lambda: pool.run('vector_add', memory='3GiB', cores=90).status == 0,
                       20 * SLOWNESS, 'the whole card can be had again')

    def test_broker(self):
        with Pool() as pool:
            program = pool.start('hold', '64', '120')
            program.wait_for_output('ready')
            before = lease_ids(pool)
            self.assertEqual(1, len(before))
            kill(pool, 'fargpu-broker')
            self.assert_goes_on(program, 3.0)
            pool.up()
            self.assertEqual(before, lease_ids(pool))
            self.assert_succeeds(pool.run('vector_add'))
            self.assert_ends_well(program)
            wait_until(lambda: not pool.leases(), 5 * SLOWNESS, 'no lease is left')

    def test_all_of_the_control_plane(self):
        with Pool() as pool:
            program = pool.start('hold', '64', '120')
            program.wait_for_output('ready')
            before = lease_ids(pool)
            kill(pool, 'fargpu-broker')
            kill(pool, 'fargpud')
            self.assert_goes_on(program)
            pool.up()
            wait_until(lambda: lease_ids(pool) == before, 10 * SLOWNESS, f'leases are {before} again')
            self.assert_ends_well(program)


if __name__ == '__main__':
    unittest.main()
