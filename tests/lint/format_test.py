"""C++ sources are formatted as .clang-format says."""

import shutil
import subprocess
import tempfile
import unittest

from source_tree import ROOT, tracked_files, write_tree

CLANG_FORMAT = shutil.which('clang-format-14') or shutil.which('clang-format')


def badly_formatted(root, names):
    """Those of `names` that clang-format would change."""
    if not names:
        return []
    run = subprocess.run([CLANG_FORMAT, '--dry-run', '-ferror-limit=1', *names], cwd=root,
                         capture_output=True, text=True, check=True)
    return sorted({line.split(':')[0] for line in run.stderr.splitlines()
                   if 'clang-format-violations' in line})


class FormatTest(unittest.TestCase):

    def test_is_version_14(self):
        self.assertIsNotNone(CLANG_FORMAT, 'clang-format is missing; run scripts/setup.sh')
        version = subprocess.run([CLANG_FORMAT, '--version'], capture_output=True, text=True,
                                 check=True).stdout
        self.assertRegex(version, r'version 14\.', 'other versions format differently')

    def test_tree_is_formatted(self):
        self.assertEqual([], badly_formatted(ROOT, tracked_files(ROOT, {'.cc', '.h'})),
                         'run: git ls-files "*.cc" "*.h" | xargs clang-format-14 -i')

    def test_finds_bad_format(self):
        with tempfile.TemporaryDirectory() as folder:
            root = write_tree(folder, {'bad.cc': 'int  f( ){return 1;}\n',
                                       'good.cc': 'int f() { return 1; }\n',
                                       '.clang-format': 'BasedOnStyle: Google\n'})
            self.assertEqual(['bad.cc'], badly_formatted(root, ['bad.cc', 'good.cc']))


if __name__ == '__main__':
    unittest.main()
