"""Runs the programs of this folder on the software device and prints a table of their cases.

    run.py [--remote] [--limit SECONDS] [--quick] [NAME...]      NAME: cufft, or cufft:c2c_64

A case that takes longer than the limit, or that takes its program with it, is one that failed; the
program is started again behind it. Exit status 0: all is right; 1: something is not; 77: nothing
could be run.
"""

import argparse
import collections
import contextlib
import os
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / 'e2e'))
import harness  # noqa: E402

SKIPPED = 77
LIBRARIES = ['cublas', 'cublas_half', 'cufft', 'curand', 'curand_device', 'cusparse', 'cusolver', 'cudnn', 'thrust']
# What is right within seconds: one case of each kind whose kernels are short.
QUICK = {
    'cufft': ['c2c_8', 'z2z_8', 'r2c_8', 'c2r_8', 'c2c_97'],
    'curand': ['xorwow', 'philox', 'mtgp32', 'sobol64'],
    'curand_device': ['philox', 'sobol32'],
    'cusparse': ['spmv_csr', 'spmm_f32_33_rows', 'sparse_to_dense'],
}
COLUMNS = ['library', 'case', 'result', 'error', 'tolerance', 'seconds', 'detail']
# A program whose cases fail one after another is not started again for ever.
MAX_STARTS = 40

Case = collections.namedtuple('Case', COLUMNS)


def print_row(row):
    print('{:14} {:38} {:7} {:>9} {:>9} {:>8}  {}'.format(*row).rstrip(), flush=True)


class Runner:

    def __init__(self, options, folder, pool):
        self._options = options
        self._folder = folder
        self._pool = pool
        self._path = ':'.join([*options.library_path, harness.CUDA_LIBRARIES])
        self.cases = []
        self.versions = {}
        self.skipped = []

    def _start(self, program, arguments):
        if self._pool:
            return self._pool.start(program, *arguments, memory=self._options.memory, cores=100,
                                    LD_LIBRARY_PATH=self._path)
        keep = {name: value for name, value in os.environ.items()
                if name.startswith(('FARGPU_CACHE_', 'FARGPU_LOG', 'FARGPU_SOFTGPU_'))}
        environment = harness.clean_environment(
            FARGPU_SOFTGPU=f'memory={self._options.memory}', **keep,
            LD_LIBRARY_PATH=f'{harness.SOFTGPU}:{self._path}')
        return harness.Program([program, *arguments], environment, self._folder)

    def _add(self, *row):
        self.cases.append(Case(*row))
        print_row(row)

    def _follow(self, library, process):
        """Reads what the program says to its end. Returns the case after which to start again."""
        seen = 0
        begun, since = None, time.monotonic()
        ended = False
        while True:
            running = process.running()
            lines = process.stdout.splitlines(keepends=True)
            if lines and not lines[-1].endswith('\n') and running:
                lines.pop()
            for line in lines[seen:]:
                since = time.monotonic()
                fields = line.rstrip('\n').split('\t')
                if fields[0] == 'begin':
                    begun = fields[1]
                elif fields[0] in ('ok', 'FAIL'):
                    self._add(library, fields[1], *[fields[0], *fields[2:]])
                elif fields[0] == 'version':
                    self.versions[library] = fields[1]
                elif fields[0] == 'end':
                    ended = True
                else:
                    print('  ' + line.rstrip(), flush=True)
            seen = len(lines)
            if not running:
                if ended:
                    return None
                if process.process.returncode == SKIPPED:
                    self.skipped.append(library)
                    return None
                if lines and lines[-1].startswith('the context is gone'):
                    return begun
                error = process.stderr.strip().splitlines()
                self._add(library, begun or 'start', 'CRASH', '', '', '',
                          f'status {process.process.returncode} {error[-1] if error else ""}')
                return begun
            if time.monotonic() - since > self._options.limit:
                process.end()
                self._add(library, begun or 'start', 'TIME', '', '', f'>{self._options.limit:g}', '')
                return begun
            time.sleep(0.05)

    def run(self, library, parts):
        program = pathlib.Path(self._options.programs) / f'{library}_test'
        after = None
        for _ in range(MAX_STARTS):
            arguments = [*(['--after', after] if after else []), *parts]
            process = self._start(program, arguments)
            try:
                reached = self._follow(library, process)
            finally:
                process.end()
            if reached is None or reached == after:
                return
            after = reached


def summarise(runner):
    print()
    for library in LIBRARIES:
        cases = [case for case in runner.cases if case.library == library]
        if cases:
            good = sum(case.result == 'ok' for case in cases)
            print(f'{runner.versions.get(library, library)}: {good} of {len(cases)} right')
    for library in runner.skipped:
        print(f'{library}: is not installed')


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('names', nargs='*', metavar='NAME')
    parser.add_argument('--programs', required=True, help='folder of the programs')
    parser.add_argument('--library-path', action='append', default=[],
                        help='folder of NVIDIA\'s libraries; may be repeated')
    parser.add_argument('--remote', action='store_true', help='through a pool of its own')
    parser.add_argument('--limit', type=float, default=60, help='seconds for a case')
    parser.add_argument('--memory', default='4GiB', help='of the card')
    parser.add_argument('--quick', action='store_true', help='seconds in all')
    parser.add_argument('--print-libraries', action='store_true', help='only say which will be run')
    options = parser.parse_args()

    chosen = dict(QUICK) if options.quick else {library: [] for library in LIBRARIES}
    if options.names:
        chosen = collections.defaultdict(list)
        for name in options.names:
            library, _, part = name.partition(':')
            if library not in LIBRARIES:
                parser.error(f'{library} is none of {", ".join(LIBRARIES)}')
            chosen[library] += [part] if part else []

    if options.print_libraries:
        print(*chosen)
        return 0

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        pool = stack.enter_context(harness.Pool(softgpu=f'memory={options.memory}')) \
            if options.remote else None
        runner = Runner(options, folder, pool)
        print_row([*COLUMNS])
        for library, parts in chosen.items():
            runner.run(library, parts)
        summarise(runner)
    if not runner.cases:
        return SKIPPED
    return 0 if all(case.result == 'ok' for case in runner.cases) else 1


if __name__ == '__main__':
    sys.exit(main())
