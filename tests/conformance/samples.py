"""Builds and runs a checkout of NVIDIA's cuda-samples on the software device.

Every sample becomes one plain nvcc command for PTX, and runs by itself in a folder with its data:
directly, and with --remote also on a card that fargpud lends. The verdict is the sample's own:
its exit status, and what it prints. A remote run must also print what the direct one printed;
same_output.py says what is not compared. If they differ, the sample runs directly once more, and
lines in which the two direct runs differ too do not count.
"""

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from same_output import difference

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What a sample's CMakeLists.txt names if it needs more than CUDA.
OTHER_WORLDS = re.compile(r'nppi|CUDA::nvjpeg|[Vv]ulkan|NPP|EGL|nvsci|FreeImage|[^O]MPI|'
                          r'find_package\((?:GLUT|OpenGL)\)|[dD]3[dD]1[12]')
# Samples with a graphics window that compute without it.
ARGUMENTS = {'nbody': [['-benchmark', '-compare', '-cpu', '-numbodies=2048']]}
# Exit status of the samples' helpers.
WAIVED = 2
FAILURE = re.compile(r'FAIL(?:ED|URE)|[Ee]rror code|CUDA error|Test failed|mismatch|'
                     r'not supported|does not support|No .*device')
WAYS = ('direct', 'tcp', 'shm')
CARD_MEMORY = '4GiB'
CARD = f'memory={CARD_MEMORY}'
# That failure is what these are about.
SHOWS_FAILURE = {'simpleAssert', 'simpleAssert_nvrtc'}


@dataclasses.dataclass
class Sample:
    name: str
    folder: pathlib.Path
    cmake: str  # without comments

    def sources(self):
        match = re.search(r'add_executable\(\s*(\S+)\s+([^)]*)\)', self.cmake)
        if not match:
            return []
        words = match.group(2).split()
        if words[0].startswith('$<') or words[0].startswith('${SRC'):
            found = [path for pattern in ('*.cu', '*.cpp', 'src/*.cu', 'src/*.cpp')
                     for path in sorted(self.folder.glob(pattern))]
        else:
            found = [self.folder / word.replace('${CMAKE_CURRENT_SOURCE_DIR}/', '')
                     for word in words]
        return [str(path) for path in found if path.suffix in ('.cu', '.cpp', '.c')]

    def has(self, pattern):
        return re.search(pattern, self.cmake) is not None


def samples_of(checkout):
    for path in sorted(checkout.glob('Samples/[0-6]*/*/CMakeLists.txt')):
        text = path.read_text()
        if OTHER_WORLDS.search(text):
            continue
        yield Sample(path.parent.name, path.parent, re.sub(r'#.*', '', text))


class Builder:

    def __init__(self, checkout, folder, cuda):
        self.checkout = checkout
        self.folder = folder
        self.cuda = cuda
        self.nvcc = str(cuda / 'bin/nvcc')
        libraries = next((cuda / name for name in ('lib64', 'lib') if (cuda / name).is_dir()), cuda)
        self.link = [f'-L{libraries}', f'-L{libraries}/stubs', '-Xlinker', '-rpath', '-Xlinker',
                     str(libraries)]

    def build(self, sample):
        """Returns the program, and why there is none."""
        target = self.folder / sample.name
        program = target / sample.name
        if program.exists():
            return program, ''
        sources = sample.sources()
        if not sources:
            return None, 'no program in its CMakeLists.txt'
        target.mkdir(parents=True, exist_ok=True)
        self.copy_data(sample, target)
        includes = [f'-I{self.checkout}/Common', f'-I{sample.folder}', f'-I{sample.folder}/inc']
        for command in self.extra_images(sample, target, includes):
            result = subprocess.run(command, capture_output=True, text=True, errors='replace')
            if result.returncode:
                return None, first_error(result.stderr + result.stdout)
        command = [self.nvcc, *self.flags(sample), *includes, *sources, *self.link,
                   *self.libraries(sample), '-o', str(program)]
        result = subprocess.run(command, cwd=target, capture_output=True, text=True,
                                errors='replace')
        if result.returncode:
            program.unlink(missing_ok=True)
            return None, first_error(result.stderr + result.stdout)
        return program, ''

    def flags(self, sample):
        flags = ['-std=c++17', '-O3', '--extended-lambda', '-w', '-gencode',
                 'arch=compute_90,code=compute_90']
        if sample.has(r'cudadevrt|CUDA_SEPARABLE_COMPILATION ON'):
            flags.append('-rdc=true')
        if sample.has('OpenMP'):
            flags += ['-Xcompiler', '-fopenmp']
        if sample.has('default-stream'):
            flags += ['--default-stream', 'per-thread']
        if sample.has('use_fast_math|fast-math'):
            flags.append('--use_fast_math')
        if sample.has('maxrregcount'):
            flags += ['-maxrregcount', '128']
        return flags

    def libraries(self, sample):
        other_names = {'cuda_driver': 'cuda', 'cudart': None, 'nvrtc_static': 'nvrtc'}
        names = []
        for name in re.findall(r'CUDA::(\w+)', sample.cmake):
            name = other_names.get(name, name)
            if name and name not in names:
                names.append(name)
        if 'cusolver' in names:
            names += ['cusparse', 'cublas']
        if '-rdc=true' in self.flags(sample):
            names.append('cudadevrt')
        return ['-l' + name for name in names] + ['-lrt', '-lpthread', '-ldl']

    def extra_images(self, sample, target, includes):
        """Commands for the PTX and fat binary files that a sample loads by name."""
        source = re.search(r'KERNEL_SOURCE\s+"?(?:\$\{CMAKE_CURRENT_SOURCE_DIR\}/)?([\w./]+)',
                           sample.cmake)
        files = re.findall(r'(?:FATBIN_FILE|PTX_FILE)\s+"?\$\{CMAKE_CURRENT_BINARY_DIR\}/([\w.]+)',
                           sample.cmake)
        for name in files if source else []:
            mode = (['-ptx', '-arch=compute_90'] if name.endswith('.ptx') else
                    ['-fatbin', '-gencode', 'arch=compute_90,code=compute_90'])
            yield [self.nvcc, '-w', *mode, *includes, str(sample.folder / source.group(1)), '-o',
                   str(target / name)]

    def copy_data(self, sample, target):
        for path in sample.folder.iterdir():
            if path.is_dir():
                if path.name in ('data', 'inc'):
                    shutil.copytree(path, target / path.name, dirs_exist_ok=True)
            elif not path.name.startswith(('CMake', 'README')):
                shutil.copy(path, target)
        # Headers for NVRTC, which the samples' builds put beside the programs.
        headers = self.cuda / 'include'
        for name in re.findall(r'\$\{CUDA_INCLUDE_DIR\}/([\w./]+)', sample.cmake):
            if (headers / name).is_dir():
                shutil.copytree(headers / name, target / pathlib.Path(name).name,
                                dirs_exist_ok=True)
            elif (headers / name).is_file():
                shutil.copy(headers / name, target)


def first_error(text):
    lines = [line.strip() for line in text.splitlines() if re.search(r'error|undefined|No such', line)]
    return lines[0][:160] if lines else text.strip()[-160:]


class Runner:
    """Runs programs on the software device of a build."""

    way = 'direct'

    def __init__(self, build, cuda, timeout, log_folder):
        self.build = build
        self.timeout = timeout
        self.log_folder = log_folder / self.way
        self.log_folder.mkdir(parents=True, exist_ok=True)
        self.environment = dict(os.environ, FARGPU_LOG='error')
        self.libraries = [str(cuda / 'lib64')]

    def close(self):
        pass

    def run(self, sample, program, settings):
        """(verdict, seconds, cause); the worst of all its runs."""
        runs = ARGUMENTS.get(sample.name)
        if runs is None:
            runs = [run.get('args', []) for run in settings.get('runs', [settings])]
        start = time.monotonic()
        verdict, cause, log = 'pass', '', ''
        for arguments in runs:
            status, output = self.execute(program, arguments, settings)
            log += f'$ {sample.name} {" ".join(arguments)}\n{output}\nexit status {status}\n'
            this, why = judge(sample.name, status, output, self.timeout)
            if this != 'pass' and verdict == 'pass':
                verdict, cause = this, why
        self.log_of(sample.name).write_text(log)
        return verdict, round(time.monotonic() - start, 1), cause

    def log_of(self, name):
        return self.log_folder / f'{name}.log'

    def execute(self, program, arguments, settings):
        environment = dict(self.environment)
        environment['LD_LIBRARY_PATH'] = ':'.join([str(self.build / 'softgpu'), *self.libraries])
        # The same card as on a lease, so that what programs say of it is the same.
        environment['FARGPU_SOFTGPU'] = f'{CARD},devices={settings.get("min_gpus", 1)}'
        return run_command([str(program), *arguments], program.parent, environment, self.timeout)


class RemoteRunner(Runner):
    """Runs them on leased cards, with a broker and a daemon of its own."""

    def __init__(self, way, *arguments):
        self.way = way
        super().__init__(*arguments)
        self.fargpu = str(self.build / 'bin/fargpu')
        self.home = tempfile.mkdtemp(prefix='fargpu-samples.')
        self.environment['FARGPU_HOME'] = self.home
        self.environment['FARGPU_TRANSPORT'] = way
        environment = dict(self.environment, FARGPU_SOFTGPU=f'{CARD},devices=2')
        subprocess.run([self.fargpu, 'up', '--driver', 'softgpu'], env=environment, check=True,
                       stdout=subprocess.DEVNULL)

    def close(self):
        subprocess.run([self.fargpu, 'down'], env=self.environment, stdout=subprocess.DEVNULL)
        shutil.rmtree(self.home, ignore_errors=True)

    def execute(self, program, arguments, settings):
        environment = dict(self.environment)
        environment['LD_LIBRARY_PATH'] = ':'.join(
            [str(self.build / 'softgpu/standins'), *self.libraries])
        command = [self.fargpu, 'run', '--memory', CARD_MEMORY, '--count',
                   str(settings.get('min_gpus', 1)), '--', str(program), *arguments]
        return run_command(command, program.parent, environment, self.timeout)


def compare(sample, program, settings, direct, remote, verdict):
    """Whether a remote run printed what a direct one did: ('same' or 'different', where)."""
    if not direct.log_of(sample.name).exists():
        return 'different', 'no direct run to compare with'
    before, after = (runner.log_of(sample.name).read_text(errors='replace')
                     for runner in (direct, remote))
    found = difference(sample.name, before, after)
    if not found:
        return 'same', ''
    if verdict == 'fail':
        return 'different', str(found)
    # Does another direct run differ in these lines too?
    direct.run(sample, program, settings)
    again = direct.log_of(sample.name).read_text(errors='replace')
    own = difference(sample.name, before, again)
    if not difference(sample.name, again, after):
        return 'same', f'as the second of two direct runs, which differ: {own}'
    if own and not collections.Counter(found.missing) - collections.Counter(own.missing):
        return 'same', f'but for lines that change from one direct run to the next: {own}'
    return 'different', str(found)


def run_command(command, folder, environment, timeout):
    """(exit status, or None if it was ended; its output)"""
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True)
    try:
        output = process.communicate(timeout=timeout)[0]
        return process.returncode, output.decode(errors='replace')
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0].decode(errors='replace')


def judge(name, status, output, timeout):
    ours = [line for line in output.splitlines() if line.startswith('fargpu: ')]
    theirs = [line for line in output.splitlines() if not line.startswith('fargpu: ')]
    last = next((line.strip() for line in reversed(theirs) if line.strip()), '')
    failure = next((line.strip() for line in theirs if FAILURE.search(line)), last)
    reason = ours[0] if ours else failure
    if status is None:
        return 'fail', f'no end within {timeout:g} s'
    if status == WAIVED:
        return 'waived', last[:200]
    if status != 0:
        return 'fail', f'exit status {status}: {reason[:200]}'
    if FAILURE.search(failure) and name not in SHOWS_FAILURE:
        return 'fail', f'exit status 0, but says: {failure[:200]}'
    return 'pass', ''


def table(results):
    """Markdown: one row for each that does not pass or is not the same, then the counts."""
    ways = [way for way in WAYS if any(way in r for r in results.values())]
    lines = ['| sample | ' + ' | '.join(ways) + ' | cause |', '|---' * (len(ways) + 2) + '|']
    for name, result in sorted(results.items()):
        if 'not_built' in result:
            lines.append(f'| {name} | ' + 'not built | ' * len(ways) + f'{result["not_built"]} |')
            continue
        causes = [result[way][key] for way in ways if way in result
                  for key in ('cause', 'where') if result[way].get(key)]
        if causes:
            cells = [f'{result[way]["verdict"]} {result[way].get("compared", "")} '
                     f'({result[way]["seconds"]} s)' if way in result else '' for way in ways]
            lines.append(f'| {name} | ' + ' | '.join(cells) + f' | {causes[0].replace("|", "/")} |')
    lines.append('')
    for way in ways:
        ran = [r[way] for r in results.values() if way in r]
        verdicts = [r['verdict'] for r in ran]
        counts = ', '.join(f'{verdicts.count(v)} {v}' for v in ('pass', 'fail', 'waived'))
        if way != 'direct':
            compared = [r.get('compared') for r in ran]
            counts += ''.join(f', {compared.count(v)} {v}' for v in ('same', 'different'))
        lines.append(f'{way}: {len(verdicts)} samples: {counts}')
    lines.append(f'not built: {sum("not_built" in r for r in results.values())}')
    return '\n'.join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('checkout', type=pathlib.Path, help='of cuda-samples, outside this tree')
    parser.add_argument('--build', type=pathlib.Path, default=ROOT / 'build/dev',
                        help='build of FarGPU (default: build/dev)')
    parser.add_argument('--work', type=pathlib.Path, default=None,
                        help='where programs, logs and results go (default: build/samples)')
    parser.add_argument('--remote', action='store_true', help='as --ways direct,tcp')
    parser.add_argument('--ways', default='direct', help='how to run them, of direct, tcp, shm; without '
                        'direct, comparisons are with the last direct run (default: direct)')
    parser.add_argument('--only', default='', help='names, separated by commas')
    parser.add_argument('--timeout', type=float, default=120, help='seconds for each run')
    parser.add_argument('--build-only', action='store_true')
    options = parser.parse_args()

    checkout = options.checkout.resolve()
    if not (checkout / 'Samples').is_dir():
        parser.error(f'{checkout} holds no folder Samples')
    if ROOT in checkout.parents:
        parser.error(f'{checkout} lies in this tree; nothing of NVIDIA\'s belongs there')
    cuda = pathlib.Path(os.environ.get('CUDA_HOME', '/usr/local/cuda')).resolve()
    work = (options.work or ROOT / 'build/samples').resolve()
    logs = work / 'logs'
    logs.mkdir(parents=True, exist_ok=True)
    settings_file = checkout / 'test_args.json'
    settings = json.loads(settings_file.read_text()) if settings_file.exists() else {}
    only = set(filter(None, options.only.split(',')))
    chosen = [s for s in samples_of(checkout) if not only or s.name in only]
    unknown = only - {s.name for s in chosen}
    if unknown:
        parser.error(f'no sample {", ".join(sorted(unknown))} that needs CUDA only')

    results_file = work / 'results.json'
    results = json.loads(results_file.read_text()) if results_file.exists() else {}
    builder = Builder(checkout, work / 'programs', cuda)
    ways = ['direct', 'tcp'] if options.remote else options.ways.split(',')
    if not set(ways) <= set(WAYS):
        parser.error(f'--ways knows {", ".join(WAYS)}')
    # Quick ones first, as far as an earlier run says.
    chosen.sort(key=lambda s: results.get(s.name, {}).get('direct', {}).get('seconds', 1e9))
    arguments = (options.build.resolve(), cuda, options.timeout, logs)
    direct = Runner(*arguments)
    runners = {}
    try:
        for way in () if options.build_only else ways:
            runners[way] = direct if way == 'direct' else RemoteRunner(way, *arguments)
        for sample in chosen:
            own = settings.get(sample.name, {})
            if own.get('skip'):
                continue
            program, why = builder.build(sample)
            result = results.get(sample.name, {}) if program else {'not_built': why}
            for way, runner in runners.items() if program else []:
                verdict, seconds, cause = runner.run(sample, program, own)
                result[way] = {'verdict': verdict, 'seconds': seconds, 'cause': cause}
                shown = verdict
                if way != 'direct':
                    compared, where = compare(sample, program, own, direct, runner, verdict)
                    result[way].update(compared=compared, where=where)
                    shown, cause = f'{verdict} {compared}', cause or where
                print(f'{way:6} {shown:14} {seconds:6.1f} s  {sample.name}  {cause}', flush=True)
            if not program:
                print(f'not built: {sample.name}: {why}', flush=True)
            results[sample.name] = result
            results_file.write_text(json.dumps(results, indent=1))
    finally:
        for runner in runners.values():
            runner.close()
    shown = {s.name: results[s.name] for s in chosen if s.name in results}
    print('\n' + table(shown))
    bad = any('fail' in (r[way]['verdict'], r[way].get('compared', '').replace('different', 'fail'))
              for r in shown.values() for way in runners if way in r)
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
