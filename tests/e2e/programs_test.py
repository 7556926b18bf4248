"""Every test program gives the same bytes on the software device and through FarGPU."""

import unittest

from harness import E2eTest, PROGRAMS, Pool, run_directly

# Output and exit status are compared between all ways to run.
COMPARED = [
    'vector_add', 'matmul_tiled', 'reduction', 'histogram', 'symbols', 'streams', 'concurrent_streams',
    'rdc', 'per_thread_stream', 'printf', 'nvrtc', 'device_reset', 'function_pointers', 'vmm',
    'wild_address', 'exit_from_thread', 'exit_without_cleanup', 'fork_before', 'fork_after',
]
# Their output depends on the lease or on the absence of a pool; other tests run them.
OTHERS = {'alloc_limit', 'device_query', 'hold', 'no_device'}
SHARED = '_shared'


def built_programs():
    return {path.name for path in PROGRAMS.iterdir()
            if path.is_file() and path.stat().st_mode & 0o111 and '.' not in path.name}


class ProgramsTest(E2eTest):

    def test_knows_every_program(self):
        names = {name.removesuffix(SHARED) for name in built_programs()}
        self.assertEqual(set(COMPARED) | OTHERS, names)

    def test_both_cudarts_are_built(self):
        shared = {name for name in built_programs() if name.endswith(SHARED)}
        # nvrtc uses no cudart.
        self.assertLessEqual({name + SHARED for name in COMPARED if name != 'nvrtc'}, shared)


class DirectTest(E2eTest):

    def test_direct(self):
        for program in COMPARED:
            with self.subTest(program):
                result = run_directly(program)
                self.assert_succeeds(result)
                self.assertNotEqual(b'', result.stdout)
                if program + SHARED in built_programs():
                    shared = run_directly(program + SHARED)
                    self.assert_succeeds(shared)
                    self.assertEqual(result.stdout, shared.stdout)


class RemoteTest(E2eTest):

    def check_transport(self, transport):
        with Pool(FARGPU_TRANSPORT=transport) as pool:
            for program in COMPARED:
                expected = run_directly(program)
                for name in (program, program + SHARED):
                    if name not in built_programs():
                        continue
                    with self.subTest(f'{name} over {transport}'):
                        result = pool.run(name)
                        self.assertEqual(expected.status, result.status, result.explain())
                        self.assertEqual(expected.stdout.decode(), result.stdout.decode(), result.stderr)
            self.assertEqual([], pool.leases())

    def test_tcp(self):
        self.check_transport('tcp')

    def test_shm(self):
        self.check_transport('shm')


if __name__ == '__main__':
    unittest.main()
