"""A library that foreign programs load in place of NVIDIA's shows its symbols and nothing else, and
needs nothing that could meet another copy in that program. exports_test.py --library PATH"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

LIBRARY = None
# What a library may export, and some of what it must. cu followed by a capital; cudbg* and the like
# belong to the debugger and are not ours.
RULES = {
    'libcuda.so.1': (re.compile(r'cu[A-Z]\w*'), {'cuGetProcAddress_v2', 'cuInit'}),
    'libnvidia-ml.so.1': (re.compile(r'nvml[A-Z]\w*'), {'nvmlInit_v2', 'nvmlDeviceGetMemoryInfo'}),
}
# libc's parts, the C++ runtime, the loader.
NEEDED = re.compile(r'(?:libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-linux-x86-64|libresolv)'
                    r'\.so(?:\.\d+)*')
SANITIZER = re.compile(r'lib(?:a|t|ub)san\.so|libclang_rt')


def exported(library):
    listing = subprocess.run(['nm', '-D', '--defined-only', '--format=posix', library],
                             capture_output=True, text=True, check=True).stdout
    # "name@@VERSION T address size"; absolute symbols (A) are the version names themselves, and
    # lower-case letters mean local ones, except for kinds of weak and unique symbols.
    rows = [line.split() for line in listing.splitlines() if line]
    return sorted(row[0].split('@')[0] for row in rows
                  if row[1] != 'A' and (row[1].isupper() or row[1] in 'iuvw'))


def dynamic(library, tag):
    listing = subprocess.run(['readelf', '-d', '--wide', library], capture_output=True, text=True,
                             check=True).stdout
    return re.findall(r'\(' + tag + r'\).*\[(.*)\]', listing)


def foreign_symbols(library, soname):
    return [name for name in exported(library) if not RULES[soname][0].fullmatch(name)]


class ExportsTest(unittest.TestCase):

    def test_exports_its_interface_only(self):
        soname = pathlib.Path(LIBRARY).name
        self.assertEqual([], foreign_symbols(LIBRARY, soname))
        self.assertLessEqual(RULES[soname][1], set(exported(LIBRARY)))

    def test_has_the_name_that_programs_load(self):
        self.assertEqual([pathlib.Path(LIBRARY).name], dynamic(LIBRARY, 'SONAME'))

    def test_needs_the_c_and_cpp_runtime_only(self):
        needed = dynamic(LIBRARY, 'NEEDED')
        if any(SANITIZER.match(name) for name in needed):
            self.skipTest('a sanitizer build needs the sanitizer\'s library')
        if 'softgpu' in LIBRARY:
            self.skipTest('softgpu brings LLVM and is loaded by workers of ours')
        self.assertEqual([], [name for name in needed if not NEEDED.fullmatch(name)])

    def test_finds_a_foreign_symbol(self):
        with tempfile.TemporaryDirectory() as folder:
            library = str(pathlib.Path(folder) / 'libx.so')
            subprocess.run(['gcc', '-shared', '-fPIC', '-x', 'c', '-', '-o', library], text=True,
                           input='int cuInit(void) { return 0; }\nint leaked(void) { return 0; }\n',
                           check=True)
            self.assertEqual(['leaked'], foreign_symbols(library, 'libcuda.so.1'))


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--library', required=True)
    options, rest = parser.parse_known_args()
    LIBRARY = options.library
    unittest.main(argv=[sys.argv[0], *rest])
