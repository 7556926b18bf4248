"""Memory of the program that kernels reach: how much of it travels."""

import unittest

from harness import E2eTest, MIB, Pool, run_directly


class HostMemoryTest(E2eTest):

    def test_only_touched_pages_of_managed_memory_travel(self):
        expected = run_directly('managed_sparse', softgpu='memory=8GiB')
        self.assert_succeeds(expected)
        for transport in ('tcp', 'shm'):
            with self.subTest(transport), Pool(softgpu='memory=8GiB', FARGPU_TRANSPORT=transport) as pool:
                stats = pool.home / 'stats'
                result = pool.run('managed_sparse', memory='6GiB', FARGPU_STATS=str(stats))
                self.assert_succeeds(result)
                self.assertEqual(expected.stdout, result.stdout)
                counts = dict(line.split() for line in stats.read_text().splitlines())
                moved = int(counts['bulk_bytes_sent']) + int(counts['bulk_bytes_received'])
                # 100 pages, twice out and twice back, cannot be less than this.
                self.assertGreater(moved, 4 * 100 * 4096 - 1, counts)
                self.assertLess(moved, 4 * MIB, counts)


if __name__ == '__main__':
    unittest.main()
