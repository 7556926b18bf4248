"""Rules for files of the tree: length, names, what must not stand in them, READMEs."""

import pathlib
import re
import tempfile
import unittest

from source_tree import ROOT, read_text, tracked_files, write_tree

CODE = {'.cc', '.h', '.py', '.sh', '.cu', '.j2'}
MAX_LINES = 1000
MAX_README_LINES = 75
# Folders of somebody's machine. The tail keeps a relative "framework/..." from matching.
MACHINE_PATH = re.compile(r'(?<![\w.$}])/(?:work|root|home|Users)/[A-Za-z0-9_.-]+')
URL = re.compile(r'\bhttps?://[^\s"\'<>)]+')
NAME = re.compile(r'[a-z0-9_]+\.(?:cc|h)')
# The folders of the source tree that a newcomer opens first.
PARTS = ['common', 'protocol', 'transport', 'memory', 'client', 'server', 'scheduler', 'softgpu', 'cli',
         'tests', 'deploy']


def violations(root):
    found = []
    for name in tracked_files(root):
        path = pathlib.Path(name)
        text = read_text(root / name)
        if text is None:
            continue
        lines = text.splitlines()
        if path.suffix in CODE and len(lines) >= MAX_LINES:
            found.append(f'{name}: {len(lines)} lines, limit {MAX_LINES}')
        if path.suffix in {'.cc', '.h'} and not NAME.fullmatch(path.name):
            found.append(f'{name}: file names are lower case with underscores')
        if path.suffix == '.h' and '#pragma once' not in text:
            found.append(f'{name}: no #pragma once')
        if path.name == 'README.md' and len(path.parts) > 1 and len(lines) > MAX_README_LINES:
            found.append(f'{name}: {len(lines)} lines, a folder\'s README has one screen'
                         f' ({MAX_README_LINES})')
        for number, line in enumerate(lines, 1):
            if MACHINE_PATH.search(line) and path.name != pathlib.Path(__file__).name:
                found.append(f'{name}:{number}: a path of one machine')
            # Scripts use the package sources of the machine that they run on.
            if URL.search(line) and path.parts[0] in {'scripts', '.ci', 'cmake'}:
                found.append(f'{name}:{number}: an address in a script')
    return found


class TreeTest(unittest.TestCase):

    def test_tree_keeps_the_rules(self):
        self.assertEqual([], violations(ROOT))

    def test_every_part_has_a_readme(self):
        built = [part for part in PARTS if any(
            name.startswith(part + '/') and name.endswith('.cc') for name in tracked_files(ROOT))]
        self.assertEqual([], [part for part in built if not (ROOT / part / 'README.md').exists()])

    def test_finds_what_breaks_them(self):
        with tempfile.TemporaryDirectory() as folder:
            root = write_tree(folder, {
                'common/long.cc': 'int x;\n' * MAX_LINES,
                'common/Camel.cc': '',
                'common/bare.h': 'int x;\n',
                'common/README.md': 'x\n' * (MAX_README_LINES + 1),
                'scripts/get.sh': 'curl ' + 'http' + '://example.org/x\n',
                'docs/a.md': 'see /' + 'home/someone/x, framework/' + 'work/x is fine\n',
            })
            found = violations(root)
            self.assertEqual([
                'common/Camel.cc', 'common/README.md', 'common/bare.h', 'common/long.cc',
                'docs/a.md', 'scripts/get.sh'], [line.split(':')[0] for line in found], found)


if __name__ == '__main__':
    unittest.main()
