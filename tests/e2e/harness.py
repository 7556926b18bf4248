"""A pool of its own for a test: broker and daemon on loopback with the software device.

    with Pool() as pool:
        result = pool.run('vector_add')                    # through FarGPU
        program = pool.start('hold', '64', '30')           # the same, in the background

Every wait here is a poll with a deadline; nothing sleeps for a fixed time and hopes.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

# Where things are; CMake sets the variables.
BIN = pathlib.Path(os.environ.get('FARGPU_E2E_BIN', 'build/dev/bin')).resolve()
PROGRAMS = pathlib.Path(os.environ.get('FARGPU_E2E_PROGRAMS', 'build/dev/programs')).resolve()
SOFTGPU = pathlib.Path(os.environ.get('FARGPU_E2E_SOFTGPU', 'build/dev/softgpu')).resolve()
CUDA_LIBRARIES = os.environ.get('FARGPU_E2E_CUDA_LIBRARIES', '/usr/local/cuda/lib64')
# Sanitizers and a busy machine make everything slower, limits that we promise included.
SLOWNESS = float(os.environ.get('FARGPU_E2E_SLOWNESS', '1'))

# The sanitizer's runtime, which must be the first library of a program that is not built with it.
PRELOAD = os.environ.get('FARGPU_E2E_PRELOAD', '')

RUN_LIMIT_S = 90 * SLOWNESS
MIB = 1 << 20


def clean_environment(**extra):
    """The caller's environment without what would lead a program to another pool or driver."""
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(('FARGPU_', 'UCX_', 'LD_', 'CUDA_VISIBLE_'))}
    environment['LD_LIBRARY_PATH'] = CUDA_LIBRARIES
    for name, value in extra.items():
        if value is not None:
            environment[name] = str(value)
    return environment


def wait_until(condition, limit_s, what):
    """Polls until `condition()` gives something true, which is returned."""
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f'not within {limit_s:g} s: {what}')
        time.sleep(0.02)


def preloaded(program):
    """A command that runs `program` in a sanitizer's build too."""
    return ['/usr/bin/env', f'LD_PRELOAD={PRELOAD}', program] if PRELOAD else [program]


@dataclasses.dataclass
class Result:
    status: int
    stdout: bytes
    stderr: str

    def explain(self):
        return f'status {self.status}\nstdout: {self.stdout.decode(errors="replace")}\nstderr: {self.stderr}'


def run_command(command, environment, limit_s=RUN_LIMIT_S, stdin=subprocess.DEVNULL, cwd=None):
    """Runs to the end; a command that takes longer than `limit_s` fails the test."""
    process = subprocess.Popen([str(part) for part in command], env=environment, stdin=stdin, cwd=cwd,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        stdout, stderr = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        raise AssertionError(f'still running after {limit_s:g} s: {command}\nstdout: {stdout!r}\n'
                             f'stderr: {stderr.decode(errors="replace")}') from None
    return Result(process.returncode, stdout, stderr.decode(errors='replace'))


class Program:
    """A program in the background, its output in files, so that nothing blocks on a full pipe."""

    def __init__(self, command, environment, folder):
        self._out = tempfile.NamedTemporaryFile(dir=folder, prefix='out', delete=False)
        self._err = tempfile.NamedTemporaryFile(dir=folder, prefix='err', delete=False)
        self.process = subprocess.Popen([str(part) for part in command], env=environment,
                                        stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err,
                                        start_new_session=True)

    @property
    def stdout(self):
        return pathlib.Path(self._out.name).read_text(errors='replace')

    @property
    def stderr(self):
        return pathlib.Path(self._err.name).read_text(errors='replace')

    def running(self):
        return self.process.poll() is None

    def pid_of(self, name):
        """Of the process called `name` that this command became or started."""
        for pid in all_pids():
            with contextlib.suppress(OSError):
                if session_of(pid) == self.process.pid and name_of(pid) == name:
                    return pid
        raise AssertionError(f'no process called {name} under {self.process.pid}')

    def kill(self, name, number=signal.SIGKILL):
        os.kill(self.pid_of(name), number)

    def wait_for_output(self, text, limit_s=RUN_LIMIT_S):
        def seen():
            if text in self.stdout:
                return True
            if not self.running():
                raise AssertionError(f'ended with {self.process.returncode} before it printed '
                                     f'"{text}"\nstdout: {self.stdout}\nstderr: {self.stderr}')
            return False
        wait_until(seen, limit_s, f'"{text}" on stdout, which is "{self.stdout}"; stderr: {self.stderr}')

    def wait(self, limit_s=RUN_LIMIT_S):
        try:
            status = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f'still running after {limit_s:g} s\nstdout: {self.stdout}\n'
                                 f'stderr: {self.stderr}') from None
        return Result(status, self.stdout.encode(), self.stderr)

    def end(self):
        """Whatever happened, nothing of it is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def all_pids():
    return [int(entry.name) for entry in pathlib.Path('/proc').iterdir() if entry.name.isdigit()]


def stat_fields(pid):
    """From the state on, see proc(5)."""
    return pathlib.Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()


def session_of(pid):
    return int(stat_fields(pid)[3])


def name_of(pid):
    command = pathlib.Path(f'/proc/{pid}/cmdline').read_bytes()
    return os.path.basename(command.split(b'\0')[0].decode(errors='replace'))


def cpu_seconds(pid):
    """What all threads of a process have used."""
    total = 0
    for task in pathlib.Path(f'/proc/{pid}/task').iterdir():
        with contextlib.suppress(OSError):
            total += int((task / 'schedstat').read_text().split()[0])
    return total / 1e9


def parse_table(text):
    """Rows of a table with a header line in capitals and columns at least two spaces apart."""
    lines = [line for line in text.splitlines() if line.strip()]
    header = next((i for i, line in enumerate(lines) if line.strip() == line.strip().upper()), None)
    if header is None:
        return []
    starts = [match.start() for match in re.finditer(r'\S+(?: \S+)*', lines[header])]
    names = [name.strip().lower() for name in re.split(r' {2,}', lines[header].strip())]
    rows = []
    for line in lines[header + 1:]:
        cells = [line[start:end].strip() for start, end in zip(starts, starts[1:] + [None])]
        rows.append(dict(zip(names, cells)))
    return rows


class Pool:
    """`fargpu up` in a private FARGPU_HOME; __exit__ ends all that was started in it."""

    def __init__(self, softgpu='memory=4GiB', **environment):
        # Short, because the path of a unix socket has a limit of 107 bytes.
        self.home = pathlib.Path(tempfile.mkdtemp(prefix='fg', dir='/tmp'))
        # Reports of sanitizers, of all processes; leaks are for unit tests, programs exit as they are.
        reports = f'detect_leaks=0:log_path={self.home}/sanitizer' if PRELOAD else None
        self.environment = clean_environment(FARGPU_HOME=self.home / 'h', FARGPU_SOFTGPU=softgpu,
                                             ASAN_OPTIONS=reports, UBSAN_OPTIONS=reports, **environment)
        self._programs = []

    def __enter__(self):
        self.up()
        return self

    def __exit__(self, kind, value, traceback):
        for program in self._programs:
            program.end()
        down = None
        try:
            down = self.command('down', limit_s=30 * SLOWNESS)
        except AssertionError as error:
            down = error
        finally:
            left = self.pids()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            # Warnings are no reports: ASan gives one where the software device leaves a fiber's stack.
            reports = ''.join(text for text in (path.read_text(errors='replace')
                                                for path in self.home.glob('sanitizer*'))
                              if 'ERROR: ' in text or 'runtime error: ' in text)
            if kind is not None:
                print(self.logs(), reports)
            shutil.rmtree(self.home, ignore_errors=True)
        if kind is None:
            if isinstance(down, AssertionError) or down.status != 0:
                raise AssertionError('fargpu down failed: '
                                     + (str(down) if isinstance(down, AssertionError) else down.explain()))
            if reports:
                raise AssertionError(reports)
            if left:
                raise AssertionError(f'fargpu down left processes running: {left}')

    # The command.

    def command(self, *arguments, limit_s=RUN_LIMIT_S, **environment):
        return run_command([BIN / 'fargpu', *arguments], {**self.environment, **environment}, limit_s)

    def up(self):
        result = self.command('up', limit_s=30 * SLOWNESS)
        if result.status != 0:
            raise AssertionError('fargpu up failed: ' + result.explain() + self.logs())

    def pool(self):
        return self._table('pool')

    def leases(self):
        return self._table('leases')

    def _table(self, verb):
        result = self.command(verb)
        if result.status != 0:
            raise AssertionError(f'fargpu {verb} failed: ' + result.explain())
        return parse_table(result.stdout.decode())

    # Programs.

    def _run_arguments(self, program, arguments, memory, cores):
        path = [program] if '/' in str(program) else preloaded(PROGRAMS / program)
        return [BIN / 'fargpu', 'run', '--memory', memory, '--cores', str(cores), '--', *path, *arguments]

    def run(self, program, *arguments, memory='1GiB', cores=30, limit_s=RUN_LIMIT_S, **environment):
        return run_command(self._run_arguments(program, arguments, memory, cores),
                           {**self.environment, **environment}, limit_s)

    def start(self, program, *arguments, memory='1GiB', cores=30, **environment):
        started = Program(self._run_arguments(program, arguments, memory, cores),
                          {**self.environment, **environment}, self.home)
        self._programs.append(started)
        return started

    # Processes and logs.

    def pids(self, name=None):
        """Processes of this pool: broker, daemon, workers and programs, or those called `name`."""
        marker = f'FARGPU_HOME={self.home}/h'.encode()
        path = f'{self.home}/h'.encode()
        found = []
        for pid in all_pids():
            try:
                if pid == os.getpid() or stat_fields(pid)[0] == 'Z':
                    continue
                ours = (path in pathlib.Path(f'/proc/{pid}/cmdline').read_bytes()
                        or marker in pathlib.Path(f'/proc/{pid}/environ').read_bytes())
                if ours and (name is None or name_of(pid) == name):
                    found.append(pid)
            except OSError:
                continue
        return sorted(found)

    def one_pid(self, name):
        pids = self.pids(name)
        if len(pids) != 1:
            raise AssertionError(f'{len(pids)} processes called {name}: {pids}')
        return pids[0]

    def log_files(self):
        return sorted(path for path in (self.home / 'h').rglob('*.log'))

    def logs(self):
        return ''.join(f'\n-- {path.name}\n{path.read_text(errors="replace")[-6000:]}'
                       for path in self.log_files())

    def log_of(self, name):
        return ''.join(path.read_text(errors='replace') for path in self.log_files() if name in path.name)


def run_directly(program, *arguments, softgpu='memory=4GiB', **environment):
    """The program on the software device without a network: what its remote output must equal."""
    extra = clean_environment(FARGPU_SOFTGPU=softgpu, **environment)
    extra['LD_LIBRARY_PATH'] = f'{SOFTGPU}:{CUDA_LIBRARIES}'
    if PRELOAD:
        extra['ASAN_OPTIONS'] = 'detect_leaks=0'
    return run_command([*preloaded(PROGRAMS / program), *arguments], extra)


class E2eTest(unittest.TestCase):

    maxDiff = None

    def assert_succeeds(self, result):
        self.assertEqual(0, result.status, result.explain())
