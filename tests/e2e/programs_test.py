"""Every test program gives the same bytes on the software device and through FarGPU."""

import pathlib
import unittest

from harness import E2eTest, Pool, run_directly

LIST = pathlib.Path(__file__).resolve().parents[1] / 'programs' / 'programs.txt'
COMPARED_KINDS = ('acceptance', 'behaviour', 'wider')
SHARED = '_shared'


def compared_programs():
    """(name, expected exit status, arguments) of every program whose output is always the same."""
    rows = [line.split() for line in LIST.read_text().splitlines() if line and line[0] != '#']
    return [(row[0], int(row[1]), row[3:]) for row in rows if row[2] in COMPARED_KINDS]


class DirectTest(E2eTest):

    def test_direct(self):
        for program, status, arguments in compared_programs():
            with self.subTest(program):
                static = run_directly(program, *arguments)
                self.assertEqual(status, static.status, static.explain())
                self.assertNotEqual(b'', static.stdout)
                shared = run_directly(program + SHARED, *arguments)
                self.assertEqual(status, shared.status, shared.explain())
                self.assertEqual(static.stdout, shared.stdout)


class RemoteTest(E2eTest):

    def check_transport(self, transport):
        with Pool(FARGPU_TRANSPORT=transport) as pool:
            for program, status, arguments in compared_programs():
                expected = run_directly(program, *arguments)
                for name in (program, program + SHARED):
                    with self.subTest(f'{name} over {transport}'):
                        result = pool.run(name, *arguments)
                        self.assertEqual(status, result.status, result.explain())
                        self.assertEqual(expected.stdout.decode(), result.stdout.decode(), result.stderr)
            self.assertEqual([], pool.leases())

    def test_tcp(self):
        self.check_transport('tcp')

    def test_shm(self):
        self.check_transport('shm')


if __name__ == '__main__':
    unittest.main()
