"""Whether two runs of a program have printed the same.

What is not compared, and nothing else:
- the numbers in a line that tells of times or rates (MEASURED), and in the lines that belong to a
  table of such (the sample is in TABLES_OF_TIMES);
- handles and addresses: hexadecimal numbers of more than 8 digits, and those that HANDLES finds;
- lines of FarGPU's log, "fargpu: ...", which the runs ask for;
- empty lines, and spaces at the ends of lines (columns are padded for the numbers in them);
- the order of lines where threads or processes print side by side (UNORDERED).
"""

import collections
import dataclasses
import re

NUMBER = re.compile(r'(?<![\w.])[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|\b(?:nan|inf)\b')
# The unit or the word by which a line says that it tells of what the clock gave. A number may stand
# right before the unit: "4.5ms".
MEASURED = re.compile(
    r'(?:\b|\d)(?:m|u|µ|n)?s(?:ec(?:ond)?s?)?\b(?!\()|\bm?secs?\b|(?i:\b(?:elapsed|took|times?|timing|'
    r'throughput|bandwidth|speed-?up|performance|latency|per ?sec\w*|cycles|clocks?)\b)|'
    r'[GMK]?(?:[Ff]lops?|FLOPS?|i?B|Bytes|[Pp]ix(?:els?)?|Elements|[Oo]ps|OPs?|[Nn]umbers|[Oo]ptions|'
    r'[Ss]amples|sims|texlookups)/s|\b[kMG]?Hz\b|\b[Ff][Pp][Ss]\b')
HANDLES = re.compile(r'(?<=Context=)0x[0-9a-fA-F]+|0x[0-9a-fA-F]{9,}|'
                     r'(?i:(?<=pid )|(?<=process ))\d+')
TABLES_OF_TIMES = {
    'UnifiedMemoryPerf', 'alignedTypes', 'clock', 'clock_nvrtc', 'cudaGraphsPerfScaling',
    'p2pBandwidthLatencyTest', 'simpleMultiCopy', 'simpleHyperQ'
}
UNORDERED = {
    'cudaOpenMP', 'simpleCallback', 'simpleIPC', 'streamOrderedAllocationIPC', 'memMapIPCDrv',
    'threadMigration', 'UnifiedMemoryStreams', 'simpleHyperQ'
}


def comparable(name, output):
    """The lines of what the sample printed, with # in place of what is not compared."""
    lines = []
    for line in output.splitlines():
        line = HANDLES.sub('#', line.rstrip())
        if MEASURED.search(line) or name in TABLES_OF_TIMES:
            line = re.sub(r'[ \t]+', ' ', NUMBER.sub('#', line))
        if line.strip() and not line.startswith('fargpu: '):
            lines.append(line)
    return sorted(lines) if name in UNORDERED else lines


@dataclasses.dataclass
class Difference:
    missing: list  # lines of the first that the second lacks
    added: list

    def __bool__(self):
        return bool(self.missing or self.added)

    def lines(self):
        return collections.Counter(self.missing), collections.Counter(self.added)

    def __str__(self):
        def first(lines):
            return f'"{lines[0].strip()[:70]}"' if lines else 'nothing'
        return (f'{len(self.missing)} lines in place of {len(self.added)}: {first(self.added)} '
                f'for {first(self.missing)}')


def difference(name, first, second):
    """What `second` printed in place of what `first` did; false if nothing."""
    before, after = comparable(name, first), comparable(name, second)
    if before == after:
        return Difference([], [])
    missing = list((collections.Counter(before) - collections.Counter(after)).elements())
    added = list((collections.Counter(after) - collections.Counter(before)).elements())
    if not missing and not added:
        # The same lines in another order.
        place = next(i for i, line in enumerate(before) if line != after[i])
        return Difference([before[place] + ' (order)'], [after[place] + ' (order)'])
    return Difference(missing, added)
