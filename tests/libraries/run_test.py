"""run.py on programs that behave in all ways: what it reports, and where it starts again."""

import contextlib
import io
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import run  # noqa: E402

# Cases in order: name and what the program does in it.
PROGRAM = '''#!/usr/bin/env python3
import sys, time
arguments = sys.argv[1:]
after = arguments[1] if arguments[:1] == ['--after'] else None
print('version\\tcuFake 1.2.3', flush=True)
for name in {cases}:
    if after is not None:
        if name == after:
            after = None
        continue
    print('begin\\t' + name, flush=True)
    if name.startswith('hang'):
        time.sleep(600)
    if name.startswith('crash'):
        sys.exit('a last word')
    if name.startswith('gone'):
        print('FAIL\\t' + name + '\\tinf\\t0\\t0.1\\tdevice')
        print('the context is gone', flush=True)
        sys.exit(1)
    bad = name.startswith('bad')
    print(('FAIL' if bad else 'ok') + '\\t' + name + '\\t' + ('1' if bad else '0') + '\\t0\\t0.1\\t')
print('end', flush=True)
'''


class RunTest(unittest.TestCase):

    def run_cases(self, cases, body=PROGRAM):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / 'cufft_test'
            program.write_text(body.format(cases=cases))
            os.chmod(program, 0o755)
            printed = io.StringIO()
            arguments = sys.argv
            sys.argv = ['run.py', '--programs', folder, '--limit', '2', 'cufft']
            try:
                with contextlib.redirect_stdout(printed):
                    status = run.main()
            finally:
                sys.argv = arguments
            rows = [line.split()[1:3] for line in printed.getvalue().splitlines()
                    if line.startswith('cufft ')]
            return status, rows, printed.getvalue()

    def test_all_right(self):
        status, rows, printed = self.run_cases(['a', 'b'])
        self.assertEqual(0, status)
        self.assertEqual([['a', 'ok'], ['b', 'ok']], rows)
        self.assertIn('cuFake 1.2.3: 2 of 2 right', printed)

    def test_goes_on_behind_what_fails(self):
        status, rows, printed = self.run_cases(['a', 'bad', 'hang', 'b', 'crash', 'gone', 'c'])
        self.assertEqual(1, status)
        self.assertEqual([['a', 'ok'], ['bad', 'FAIL'], ['hang', 'TIME'], ['b', 'ok'],
                          ['crash', 'CRASH'], ['gone', 'FAIL'], ['c', 'ok']], rows)
        self.assertIn('a last word', printed)
        self.assertIn('cuFake 1.2.3: 3 of 7 right', printed)

    def test_nothing_to_run(self):
        status, rows, _ = self.run_cases([], '#!/bin/sh\nexit 77\n')
        self.assertEqual(run.SKIPPED, status)
        self.assertEqual([], rows)

    def test_a_program_that_does_not_start(self):
        status, rows, _ = self.run_cases([], '#!/bin/sh\nexit 3\n')
        self.assertEqual(1, status)
        self.assertEqual([['start', 'CRASH']], rows)


if __name__ == '__main__':
    unittest.main()
