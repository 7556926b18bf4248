"""The battery's answers through FarGPU are those of the software device, code for code.

battery_test.py [SITUATION...]: all of them without arguments. What differences.txt lists is known to
differ; a line that matches no difference any more is told.
"""

import os
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'e2e'))

from harness import BIN, Pool, SLOWNESS, SOFTGPU, clean_environment, run_command  # noqa: E402

BATTERY = pathlib.Path(os.environ.get('FARGPU_BATTERY', 'build/dev/conformance/battery')).resolve()
KNOWN = pathlib.Path(__file__).resolve().parent / 'differences.txt'
NEWER = KNOWN.parent / 'newer_names.txt'
DOCUMENTED = KNOWN.parent / 'documented.tsv'
CLIENT = pathlib.Path(os.environ.get('FARGPU_E2E_CLIENT', 'build/dev/client')).resolve()
CODES = {'CUDA_SUCCESS': '0', 'CUDA_ERROR_INVALID_VALUE': '1', 'CUDA_ERROR_NOT_INITIALIZED': '3',
         'CUDA_ERROR_INVALID_DEVICE': '101', 'CUDA_ERROR_INVALID_CONTEXT': '201',
         'CUDA_ERROR_INVALID_HANDLE': '400', 'CUDA_ERROR_NOT_FOUND': '500',
         'CUDA_ERROR_CONTEXT_IS_DESTROYED': '709'}
SITUATIONS = ('normal', 'before_init', 'no_context', 'destroyed_context', 'capture', 'sticky')
DEVICES = 'devices=2,memory=4GiB'
LIMIT_S = 300 * SLOWNESS


def known_differences():
    """[(situation, pattern of "function case", why)]; a line is "situation pattern: why"."""
    known = []
    for line in KNOWN.read_text().splitlines():
        if line and line[0] != '#':
            case, why = line.split(': ', 1)
            situation, pattern = case.split(' ', 1)
            known.append((situation, re.compile(pattern), why))
    return known


def directly(situation):
    environment = clean_environment(FARGPU_SOFTGPU=DEVICES)
    environment['LD_LIBRARY_PATH'] = str(SOFTGPU)
    return run_command([BATTERY, situation], environment, LIMIT_S)


def remotely(pool, situation):
    return run_command([BIN / 'fargpu', 'run', '--memory', '4GiB', '--count', '2', '--', BATTERY, situation],
                       pool.environment, LIMIT_S)


def answers(text):
    """{"function case": CUresult} of a battery's output."""
    return dict(line.rsplit(' ', 1) for line in text.decode().splitlines())


class BatteryTest(unittest.TestCase):

    def test_same_answers(self):
        known = known_differences()
        chosen = CHOSEN or SITUATIONS
        with Pool(softgpu=DEVICES, FARGPU_TRANSPORT='tcp') as pool:
            for situation in chosen:
                with self.subTest(situation):
                    direct, remote = directly(situation), remotely(pool, situation)
                    self.assertEqual((0, 0), (direct.status, remote.status), direct.stderr + remote.stderr)
                    expected, actual = answers(direct.stdout), answers(remote.stdout)
                    self.assertGreater(len(expected), 500)
                    patterns = [pattern for where, pattern, _ in known if where == situation]
                    matched, wrong = set(), []
                    for case in sorted({*expected, *actual}):
                        if expected.get(case) == actual.get(case):
                            continue
                        matching = [pattern for pattern in patterns if pattern.fullmatch(case)]
                        matched.update(matching)
                        if not matching:
                            wrong.append(f'{situation} {case}: directly {expected.get(case)}, '
                                         f'remotely {actual.get(case)}')
                    for pattern in patterns:
                        if pattern not in matched:
                            print(f'{situation} {pattern.pattern} differs no more')
                    self.assertEqual([], wrong, f'{len(wrong)} of {len(expected)} cases')

    def test_names(self):
        """Every name of cuda.h 13.0 is found, every newer one is not."""
        newer = {line for line in NEWER.read_text().split('\n') if line and line[0] != '#'}
        self.assertGreater(len(newer), 30)
        environment = clean_environment(FARGPU_SOFTGPU=DEVICES)
        environment['LD_LIBRARY_PATH'] = str(SOFTGPU)
        direct = run_command([BATTERY, 'names', NEWER], environment)
        environment['LD_LIBRARY_PATH'] = str(CLIENT)
        client = run_command([BATTERY, 'names', NEWER], environment)
        self.assertEqual(direct.stdout, client.stdout)
        lines = dict(line.split(' ', 1) for line in direct.stdout.decode().splitlines())
        self.assertGreater(len(lines), 480)
        for name, answer in lines.items():
            self.assertEqual('500 1' if name in newer else '0 0', answer, name)

    def test_documented(self):
        """What NVIDIA's manual documents, on the software device."""
        rows = [line.split('\t') for line in DOCUMENTED.read_text().splitlines()
                if line and line[0] != '#']
        self.assertGreaterEqual(len(rows), 300)
        wanted = {}
        for function, situation, case, code, _ in rows:
            wanted.setdefault(situation, {})[f'{function} {case}'] = CODES[code]
        for situation, cases in wanted.items():
            got = answers(directly(situation).stdout)
            wrong = [f'{case}: {got.get(case)}, the manual says {code}'
                     for case, code in cases.items() if got.get(case) != code]
            with self.subTest(situation):
                self.assertEqual([], wrong)


CHOSEN = [argument for argument in sys.argv[1:] if argument in SITUATIONS]

if __name__ == '__main__':
    unittest.main(argv=[argument for argument in sys.argv if argument not in SITUATIONS])
