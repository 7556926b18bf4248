"""What a program sees of the client library: round trips, absence of a pool, idleness."""

import os
import pathlib
import signal
import sys
import tempfile
import time
import unittest

from harness import (BIN, CUDA_LIBRARIES, E2eTest, PROGRAMS, Pool, RUN_LIMIT_S, SLOWNESS,
                     clean_environment, cpu_seconds, preloaded, run_command, wait_until)

CLIENT = pathlib.Path(os.environ.get('FARGPU_E2E_CLIENT', 'build/dev/client')).resolve()

# Opens a session by the driver API and then does nothing until it is killed.
IDLE_PROGRAM = '''
import ctypes, time
cuda = ctypes.CDLL('libcuda.so.1')
context = ctypes.c_void_p()
for result in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
               cuda.cuCtxSetCurrent(context), cuda.cuCtxSynchronize()):
    assert result == 0, result
print('ready', flush=True)
time.sleep(600)
'''


def named(program, name):
    """The process called `name` under `program`, in a list; empty if there is none yet."""
    try:
        return [program.pid_of(name)]
    except AssertionError:
        return []


class ClientTest(E2eTest):

    def test_round_trips_of_vector_add(self):
        for transport in ('tcp', 'shm'):
            with self.subTest(transport), Pool(FARGPU_TRANSPORT=transport) as pool:
                stats = pool.home / 'stats'
                self.assert_succeeds(pool.run('vector_add', FARGPU_STATS=str(stats)))
                counts = dict(line.split() for line in stats.read_text().splitlines())
                self.assertLessEqual(int(counts['waiting_round_trips']), 6, counts)
                self.assertGreater(int(counts['waiting_round_trips']), 0, counts)

    def test_a_replay_of_a_graph_is_one_message(self):
        steps = 1000
        for transport in ('tcp', 'shm'):
            with self.subTest(transport), Pool(FARGPU_TRANSPORT=transport) as pool:
                counts = {}
                for count in (0, steps):
                    stats = pool.home / f'stats{count}'
                    self.assert_succeeds(pool.run('graphs', str(count), FARGPU_STATS=str(stats)))
                    counts[count] = {name: int(value) for name, value in
                                     (line.split() for line in stats.read_text().splitlines())}
                # Each step is a launch and an update, none of which is waited for.
                self.assertEqual(counts[steps]['calls'] - counts[0]['calls'], 2 * steps, counts)
                self.assertEqual(counts[steps]['waiting_round_trips'], counts[0]['waiting_round_trips'], counts)

    def test_idle_session_costs_no_cpu(self):
        watched_s = 3
        for transport in ('tcp', 'shm'):
            with self.subTest(transport), Pool(FARGPU_TRANSPORT=transport) as pool:
                program = pool.start(*preloaded(sys.executable), '-c', IDLE_PROGRAM)
                program.wait_for_output('ready')
                pids = [*pool.pids('fargpu-broker'), *pool.pids('fargpud'), *pool.pids('fargpu-worker'),
                        program.pid_of(os.path.basename(sys.executable))]
                self.assertGreaterEqual(len(pids), 4)

                def used_in_one_span():
                    before = {pid: cpu_seconds(pid) for pid in pids}
                    time.sleep(watched_s)  # what is measured is what happens in this time
                    return {pid: cpu_seconds(pid) - before[pid] for pid in pids}

                limit_s = 0.02 * watched_s * SLOWNESS
                used = {}

                def idle():
                    nonlocal used
                    used = used_in_one_span()
                    return all(seconds < limit_s for seconds in used.values())

                wait_until(idle, 4 * watched_s, f'every process below {limit_s} s of CPU: {used}')

    def test_no_server_configured(self):
        with tempfile.TemporaryDirectory(prefix='fg') as home:
            environment = clean_environment(FARGPU_HOME=home, HOME=home, FARGPU_LOG='info')
            environment['LD_LIBRARY_PATH'] = f'{CLIENT}:{CUDA_LIBRARIES}'
            result = run_command(preloaded(PROGRAMS / 'no_device'), environment, 20 * SLOWNESS)
            self.assert_succeeds(result)
            self.assertIn(b'cudaGetDeviceCount: cudaErrorNoDevice', result.stdout)
            lines = [line for line in result.stderr.splitlines() if line]
            self.assertEqual(1, len(lines), result.stderr)
            environment.pop('FARGPU_LOG')
            quiet = run_command(preloaded(PROGRAMS / 'no_device'), environment, 20 * SLOWNESS)
            self.assertEqual('', quiet.stderr)

    def test_daemon_out_of_reach(self):
        """A lease whose endpoints nobody listens on: an error soon, not a hang."""
        with tempfile.TemporaryDirectory(prefix='fg') as home:
            lease = pathlib.Path(home) / 'lease'
            lease.write_text(f'lease {"ab" * 16}\nsecret {"cd" * 32}\nendpoint unix:{home}/nobody\n'
                             'endpoint tcp:127.0.0.1:1\nmemory_bytes 1073741824\ncores_percent 30\n')
            lease.chmod(0o600)
            environment = clean_environment(FARGPU_HOME=home, FARGPU_LEASE=lease, FARGPU_LOG='info')
            environment['LD_LIBRARY_PATH'] = f'{CLIENT}:{CUDA_LIBRARIES}'
            started = time.monotonic()
            result = run_command(preloaded(PROGRAMS / 'vector_add'), environment, 30 * SLOWNESS)
            self.assertNotEqual(0, result.status)
            self.assertIn('cudaError', result.stderr)
            self.assertLess(time.monotonic() - started, 15 * SLOWNESS)

    def test_closed_standard_streams_stay_closed(self):
        # A descriptor of ours in place of the program's stdout would get what it prints.
        with Pool() as pool:
            hold = ' '.join(str(part) for part in preloaded(PROGRAMS / 'hold'))
            program = pool.start('/bin/sh', '-c', f'exec {hold} 16 300 <&- >&-')
            pid = wait_until(lambda: next(iter(named(program, 'hold')), None), RUN_LIMIT_S,
                             'the program runs')
            wait_until(lambda: pool.leases() and pool.leases()[0]['sessions'] == '1', RUN_LIMIT_S,
                       'its session')
            opened = {fd: os.readlink(f'/proc/{pid}/fd/{fd}')
                      for fd in ('0', '1') if fd in os.listdir(f'/proc/{pid}/fd')}
            self.assertEqual({}, opened)
            program.kill('hold', signal.SIGTERM)
            self.assertEqual(0, program.wait().status)

    def test_hangup_ends_a_program(self):
        with Pool() as pool:
            program = pool.start('hold', '16', '300')
            program.wait_for_output('ready')
            program.kill('hold', signal.SIGHUP)
            result = program.wait()
            self.assertEqual((128 + signal.SIGHUP, ''), (result.status, result.stderr))


class CommandTest(E2eTest):

    def test_help_and_version(self):
        for arguments in (['--help'], ['version'], *([verb, '--help'] for verb in
                                                     ('up', 'down', 'run', 'pool', 'leases', 'version'))):
            with self.subTest(arguments):
                result = run_command([BIN / 'fargpu', *arguments], clean_environment())
                self.assert_succeeds(result)
                self.assertNotEqual(b'', result.stdout)

    def test_without_a_pool(self):
        with tempfile.TemporaryDirectory(prefix='fg') as home:
            for arguments in (['pool'], ['leases'], ['run', '--memory', '1GiB', '--', 'true']):
                with self.subTest(arguments):
                    result = run_command([BIN / 'fargpu', *arguments],
                                         clean_environment(FARGPU_HOME=home, HOME=home,
                                                           FARGPU_BROKER='127.0.0.1:1'))
                    self.assertNotEqual(0, result.status)
                    self.assertIn('fargpu up', result.stderr, 'the remedy is named')

    def test_exit_status_of_run(self):
        with Pool() as pool:
            for command, status in (('exit 0', 0), ('exit 7', 7), ('kill -TERM $$', 128 + signal.SIGTERM),
                                    ('kill -KILL $$', 128 + signal.SIGKILL)):
                with self.subTest(command):
                    self.assertEqual(status, pool.run('/bin/sh', '-c', command).status)
            self.assertIn(pool.run('/nonexistent/program').status, (126, 127))
            self.assertEqual([], pool.leases())

    def test_up_twice_and_down_twice(self):
        with Pool() as pool:
            before = pool.pids('fargpu-broker') + pool.pids('fargpud')
            self.assert_succeeds(pool.command('up'))
            self.assertEqual(before, pool.pids('fargpu-broker') + pool.pids('fargpud'))
            self.assert_succeeds(pool.command('down'))
            self.assertEqual([], pool.pids())
            self.assert_succeeds(pool.command('down'))


if __name__ == '__main__':
    unittest.main()
