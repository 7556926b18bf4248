"""The dependency rule of the source tree, checked by include lines.

common <- protocol <- {memory, transport} <- {client, server}; softgpu is reached by the server only
through dlopen; the scheduler sees common and its own protos; the command sees protos.
"""

import re
import tempfile
import unittest

from source_tree import ROOT, read_text, tracked_files, write_tree

# Folder: prefixes of what it may include of ours. The longest matching folder decides.
ALLOWED = {
    'common': ['common/'],
    'protocol': ['common/', 'protocol/'],
    'memory': ['common/', 'protocol/', 'memory/'],
    'transport': ['common/', 'protocol/', 'transport/'],
    'client': ['common/', 'protocol/', 'memory/', 'transport/', 'client/'],
    'server': ['common/', 'protocol/', 'memory/', 'transport/', 'server/'],
    'softgpu': ['common/', 'protocol/', 'softgpu/'],
    'scheduler': ['common/', 'protocol/proto/', 'scheduler/'],
    'cli': ['common/', 'protocol/proto/', 'protocol/lease_file.h', 'cli/'],
}

# Part: what it must never include, though the table above would let it.
FORBIDDEN = {
    # The client library and what goes into it use neither gRPC nor protobuf.
    'client/cuda': ['protocol/proto/', 'grpc', 'google/protobuf'],
    'client/nvml': ['protocol/proto/', 'grpc', 'google/protobuf'],
    'transport': ['protocol/proto/', 'grpc', 'google/protobuf'],
    'memory': ['protocol/proto/', 'grpc', 'google/protobuf'],
    'protocol/wire': ['protocol/proto/', 'grpc', 'google/protobuf'],
    'softgpu': ['protocol/proto/', 'grpc', 'google/protobuf', 'ucp/'],
    # The worker is one session; the control plane ends at the daemon.
    'server/worker': ['protocol/proto/', 'grpc', 'google/protobuf'],
    'server/handlers': ['protocol/proto/', 'grpc', 'google/protobuf'],
}

FOLDERS = set(ALLOWED) | {'tests', 'deploy'}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def longest_match(table, name):
    matches = [folder for folder in table if name.startswith(folder + '/')]
    return max(matches, key=len, default=None)


def violations(root):
    """Lines 'file:line: why' for every include that breaks the rule."""
    found = []
    for name in tracked_files(root, {'.cc', '.h', '.inc', '.cu'}):
        allowed = longest_match(ALLOWED, name)
        forbidden = longest_match(FORBIDDEN, name)
        if allowed is None:
            continue
        for number, line in enumerate((read_text(root / name) or '').splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            target = match.group(2)
            top = target.split('/')[0]
            ours = match.group(1) == '"' and '/' in target and top in FOLDERS
            if ours and not any(target.startswith(prefix) for prefix in ALLOWED[allowed]):
                found.append(f'{name}:{number}: {allowed}/ may not include {target}')
            elif forbidden and any(target.startswith(prefix) for prefix in FORBIDDEN[forbidden]):
                found.append(f'{name}:{number}: {forbidden}/ may not include {target}')
    return found


class LayersTest(unittest.TestCase):

    def test_tree_keeps_the_rule(self):
        self.assertEqual([], violations(ROOT))

    def test_every_part_is_in_the_table(self):
        text = read_text(ROOT / 'CMakeLists.txt')
        parts = re.search(r'set\(FARGPU_PARTS ([a-z \n]+)', text).group(1).split()
        self.assertLessEqual(set(parts) - {'tests'}, set(ALLOWED))

    def test_finds_what_breaks_the_rule(self):
        with tempfile.TemporaryDirectory() as folder:
            root = write_tree(folder, {
                'common/a.h': '#include "protocol/wire/frame.h"\n',
                'server/worker/b.cc': '#include "common/log.h"\n#include <grpcpp/grpcpp.h>\n',
                'server/daemon/c.cc': '#include "softgpu/driver/driver.h"\n',
                'scheduler/d.cc': '#include "protocol/wire/codec.h"\n',
                'client/lease/e.cc': '#include <grpcpp/grpcpp.h>\n#include "common/ids.h"\n',
            })
            self.assertEqual([
                'common/a.h:1: common/ may not include protocol/wire/frame.h',
                'scheduler/d.cc:1: scheduler/ may not include protocol/wire/codec.h',
                'server/daemon/c.cc:1: server/ may not include softgpu/driver/driver.h',
                'server/worker/b.cc:2: server/worker/ may not include grpcpp/grpcpp.h',
            ], violations(root))


if __name__ == '__main__':
    unittest.main()
