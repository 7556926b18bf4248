"""What same_output.py lets pass and what it does not."""

import unittest

from same_output import difference


class SameOutputTest(unittest.TestCase):

    def assert_same(self, first, second, name='any'):
        self.assertFalse(difference(name, first, second), str(difference(name, first, second)))

    def assert_differ(self, first, second, name='any'):
        self.assertTrue(difference(name, first, second))

    def test_times_and_rates_are_not_compared(self):
        for first, second in (
                ('GPU time: 231.89 ms; GOP/s: 1.2\n', 'GPU time: 7 ms; GOP/s: 30.5\n'),
                ('took 1.5 seconds', 'took 22.75 seconds'),
                ('Bandwidth:    0.77 GB/s', 'Bandwidth:   11.2 GB/s'),
                ('[ 3.5ms ] done', '[ 12.25ms ] done'),
                ('16.73 Mpixels/sec', '6 Mpixels/sec')):
            self.assert_same(first, second)

    def test_results_are(self):
        for first, second in (
                ('sum = 14', 'sum = 15'),
                ('Test passed', 'Test failed'),
                ('GPU time: 1 ms, passed', 'GPU time: 1 ms, failed'),
                ('residual = 1.6e-06', 'residual = 1.7e-06'),
                ('alpha = (0x3f800000, 1)', 'alpha = (0x40000000, 1)'),
                ('a\nb\n', 'a\n'),
                ('a\nb\n', 'b\na\n')):
            self.assert_differ(first, second)

    def test_handles_and_log_lines_are_not(self):
        self.assert_same('at 0x7f00deadbeef', 'at 0x7f11deadbeef')
        self.assert_same('a\n', 'fargpu: error: something\na  \n\n')

    def test_order_of_threads_is_not_where_there_are_some(self):
        self.assert_same('a\nb\n', 'b\na\n', name='cudaOpenMP')
        self.assert_differ('a\nb\n', 'b\nc\n', name='cudaOpenMP')


if __name__ == '__main__':
    unittest.main()
