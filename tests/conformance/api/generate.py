"""generate.py API_DIR CASES_YAML OUTPUT: the table of calls of the conformance battery.

One row per entry point of protocol/api/*.yaml: the cases to run, and a function that makes the call.
Which arguments a type stands for is decided here, by the type's name; what the calls are made with is
in world.h.
"""

import pathlib
import re
import sys

import yaml

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPOSITORY / 'protocol/codegen'))

import load  # noqa: E402

HANDLES = {'CUcontext', 'CUstream', 'CUevent', 'CUmodule', 'CUfunction', 'CUkernel', 'CUlibrary',
           'CUarray', 'CUmipmappedArray', 'CUgraph', 'CUgraphNode', 'CUgraphExec', 'CUmemoryPool',
           'CUgreenCtx', 'CUlinkState', 'CUtexref', 'CUsurfref', 'CUuserObject', 'CUdevResourceDesc',
           'CUgraphicsResource', 'CUexternalMemory', 'CUexternalSemaphore', 'CUasyncCallbackHandle',
           'CUlogsCallbackHandle'}
NUMBERED = {'CUtexObject': 'Texture', 'CUsurfObject': 'Surface',
            'CUmemGenericAllocationHandle': 'Physical'}
CALLBACKS = {'CUhostFn', 'CUstreamCallback', 'CUasyncCallback', 'CUlogsCallback', 'CUoccupancyB2DSize'}
STRUCTS = {'CUmemLocation', 'CUipcEventHandle', 'CUipcMemHandle'}
WIDE = {'size_t', 'unsigned long long', 'cuuint64_t'}
NARROW = {'unsigned int', 'unsigned', 'cuuint32_t', 'unsigned char', 'unsigned short'}

HANDLE_CASES = ['null', 'bad', 'destroyed', 'other_context', 'other_device']
POINTER_CASES = ['0', 'wild', 'freed', 'end']
DEVICE_CASES = ['-1', 'count', '2147483647', '1']
WIDE_CASES = ['0', '1', '9223372036854775808', '18446744073709551615']
NARROW_CASES = ['0', '1', '2147483648', '4294967295']
INT_CASES = ['0', '-1', '2147483647']
ENUM_CASES = ['-1', '2147483647']


class Cases:
    """What cases.yaml says: `values` by argument, cases to leave out by function and argument."""

    def __init__(self, path):
        rules = yaml.safe_load(path.read_text())
        self.values = [(re.compile(rule['argument']), rule['value']) for rule in rules['values']]
        self.skips = [(re.compile(rule['case']), rule['why']) for rule in rules['skips']]

    def value(self, call, arg, default):
        for pattern, value in self.values:
            if pattern.fullmatch(f'{call.symbol}.{arg.name}'):
                return value
        return default

    def skipped(self, call, case):
        return any(pattern.fullmatch(f'{call.symbol} {case}') for pattern, _ in self.skips)


def argument(call, arg, index, cases):
    """The expression of the argument and the names of its cases."""
    kind = arg.type
    if kind in HANDLES:
        names = list(HANDLE_CASES)
        if kind == 'CUstream':
            names += ['legacy', 'per_thread']
        return f'a.Handle<{kind}>({index})', names
    if kind in NUMBERED:
        return f'a.{NUMBERED[kind]}({index})', ['0', 'bad', 'destroyed']
    if kind in CALLBACKS:
        return f'a.Callback<{kind}>({index})', ['null']
    if kind in STRUCTS:
        return f'a.Struct<{kind}>({index})', ['bad']
    if kind == 'CUdevice':
        return f'a.Device({index})', DEVICE_CASES
    if kind == 'CUdeviceptr_v1':
        # No memory has such an address.
        return f'a.Narrow({index}, 4096)', ['0']
    if kind == 'CUdeviceptr':
        return f'a.Address({index})', POINTER_CASES
    if kind == 'float':
        return f'a.Float({index})', ['-1', 'nan']
    if kind in WIDE:
        value = cases.value(call, arg, 0)
        return f'static_cast<{kind}>(a.Wide({index}, {value}))', WIDE_CASES
    if kind in NARROW:
        value = cases.value(call, arg, 0)
        return f'static_cast<{kind}>(a.Narrow({index}, {value}))', NARROW_CASES
    if kind == 'int':
        return f'a.Int({index}, {cases.value(call, arg, 1)})', INT_CASES
    if '*' not in kind:
        return f'static_cast<{kind}>(a.Int({index}, {cases.value(call, arg, 0)}))', ENUM_CASES
    what = cases.value(call, arg, None)
    if what == 'null':
        return f'static_cast<{kind}>(nullptr)', []
    if kind in ('void *', 'const void *'):
        return f'a.Memory({index}, World::Memory::k{what or "Host"})', ['null']
    if kind == 'const char *':
        return f'a.Text({index}, "{what or "nothing"}")', ['null']
    pointee = arg.pointee if kind.count('*') == 1 else kind[:-1].strip()
    pointee = pointee if kind.count('*') == 1 else kind.rsplit('*', 1)[0].strip()
    return f'a.Pointer<{pointee}>({index})', ['null']


def row(call, cases):
    arguments, names = [], ['good']
    for index, arg in enumerate(call.args):
        expression, variants = argument(call, arg, index, cases)
        arguments.append(expression)
        names += [f'{arg.name}={variant}' for variant in variants]
    kept = [name for name in names if not cases.skipped(call, name)]
    listed = ', '.join(f'"{name}"' for name in kept)
    indices = ', '.join(f'"{arg.name}"' for arg in call.args)
    return f'''{{"{call.symbol}", {{{indices}}}, {{{listed}}}, [](Arguments& a) {{
   return a.Call<decltype(&::{call.symbol})>({', '.join([f'"{call.symbol}"'] + arguments)});
 }}}},
'''


def main():
    api_dir, cases_path, output = sys.argv[1:4]
    cases = Cases(pathlib.Path(cases_path))
    calls = [call for call in load.load(api_dir) if call.symbol]
    text = '// Generated by generate.py from protocol/api/*.yaml; do not edit.\n'
    text += ''.join(row(call, cases) for call in calls)
    pathlib.Path(output).write_text(text)


if __name__ == '__main__':
    main()
