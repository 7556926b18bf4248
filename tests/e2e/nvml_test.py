"""What programs see by NVML of their lease, beside what CUDA tells them of the same cards."""

import json
import os
import re
import signal
import sys
import unittest

from harness import BIN, E2eTest, MIB, PROGRAMS, Pool, SLOWNESS, preloaded

# Asks NVML first, then CUDA, then NVML again while memory is held; prints all answers as JSON.
PROGRAM = r'''
import ctypes, json, os
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p, create_string_buffer

nvml = ctypes.CDLL('libnvidia-ml.so.1')
nvml.nvmlErrorString.restype = c_char_p

class Memory(ctypes.Structure):
    _fields_ = [('total', c_uint64), ('free', c_uint64), ('used', c_uint64)]

class Process(ctypes.Structure):
    _fields_ = [('pid', c_uint), ('used', c_uint64), ('gpu', c_uint), ('compute', c_uint)]

class Place(ctypes.Structure):
    _fields_ = [('legacy', ctypes.c_char * 16), ('domain', c_uint), ('bus', c_uint),
                ('device', c_uint), ('id', c_uint), ('subsystem', c_uint), ('bus_id', ctypes.c_char * 32)]

def good(result):
    assert result == 0, (result, nvml.nvmlErrorString(result))

def text(function, *arguments):
    out = create_string_buffer(96)
    good(function(*arguments, out, c_uint(96)))
    return out.value.decode()

def memory_of(device):
    memory = Memory()
    good(nvml.nvmlDeviceGetMemoryInfo(device, byref(memory)))
    return [memory.total, memory.used, memory.free]

def processes_of(device):
    count = c_uint(16)
    found = (Process * 16)()
    good(nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, byref(count), found))
    return [[found[i].pid, found[i].used] for i in range(count.value)]

def by_nvml(device):
    place, major, minor, answer = Place(), c_int(), c_int(), c_uint()
    good(nvml.nvmlDeviceGetPciInfo_v3(device, byref(place)))
    good(nvml.nvmlDeviceGetCudaComputeCapability(device, byref(major), byref(minor)))
    return {'name': text(nvml.nvmlDeviceGetName, device), 'uuid': text(nvml.nvmlDeviceGetUUID, device),
            'memory': memory_of(device)[0], 'pci': [place.domain, place.bus, place.device],
            'capability': [major.value, minor.value]}

def by_cuda(number):
    def attribute(name):
        value = c_int()
        good(cuda.cuDeviceGetAttribute(byref(value), name, number))
        return value.value
    uuid, memory = create_string_buffer(16), c_size_t()
    good(cuda.cuDeviceGetUuid_v2(uuid, number))
    good(cuda.cuDeviceTotalMem_v2(byref(memory), number))
    name = create_string_buffer(96)
    good(cuda.cuDeviceGetName(name, 96, number))
    digits = uuid.raw.hex()
    parts = [digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]]
    return {'name': name.value.decode(), 'uuid': 'GPU-' + '-'.join(parts), 'memory': memory.value,
            'pci': [attribute(50), attribute(33), attribute(34)],
            'capability': [attribute(75), attribute(76)]}

assert nvml.nvmlDeviceGetCount_v2(byref(c_uint())) == 1
good(nvml.nvmlInit_v2())
count = c_uint()
good(nvml.nvmlDeviceGetCount_v2(byref(count)))
devices = []
for i in range(count.value):
    device = c_void_p()
    good(nvml.nvmlDeviceGetHandleByIndex_v2(i, byref(device)))
    devices.append(device)
version, driver_version = c_int(), c_int()
good(nvml.nvmlSystemGetCudaDriverVersion(byref(version)))
before = {'memory': memory_of(devices[0]), 'processes': processes_of(devices[0])}

# A child that is forked after nvmlInit may use CUDA, and its parent too.
cuda = ctypes.CDLL('libcuda.so.1')
child = os.fork()
if child == 0:
    os._exit(0 if cuda.cuInit(0) == 0 and memory_of(devices[0]) == before['memory'] else 1)
assert os.waitpid(child, 0)[1] == 0
good(cuda.cuInit(0))
good(cuda.cuDriverGetVersion(byref(driver_version)))
context, pointer = c_void_p(), c_void_p()
good(cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
good(cuda.cuCtxSetCurrent(context))
good(cuda.cuMemAlloc_v2(byref(pointer), c_size_t(100 << 20)))
free, total = c_size_t(), c_size_t()
good(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
name = create_string_buffer(64)
good(nvml.nvmlSystemGetProcessName(os.getpid(), name, 64))
print(json.dumps({
    'nvml': [by_nvml(device) for device in devices], 'cuda': [by_cuda(i) for i in range(count.value)],
    'version': version.value, 'driver_version': driver_version.value, 'before': before,
    'held': {'memory': memory_of(devices[0]), 'processes': processes_of(devices[0]),
             'cuda': [total.value, total.value - free.value, free.value]},
    'pid': os.getpid(), 'program': name.value.decode(), 'executable': os.readlink('/proc/self/exe'),
    'temperature': nvml.nvmlDeviceGetTemperature(devices[0], 0, byref(c_uint())),
    'utilization': nvml.nvmlDeviceGetUtilizationRates(devices[0], byref((c_uint * 2)()))}))
'''

# Looks at its card until that fails.
WATCHING_PROGRAM = r'''
import ctypes, time
nvml = ctypes.CDLL('libnvidia-ml.so.1')
device, memory = ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
print('ready', flush=True)
result = 0
while result == 0:
    result = nvml.nvmlDeviceGetMemoryInfo(device, memory)
    time.sleep(0.05)
print('result', result, flush=True)
'''


class NvmlTest(E2eTest):

    def answers(self, pool):
        result = pool.run('/usr/bin/env', *preloaded(sys.executable), '-c', PROGRAM)
        self.assert_succeeds(result)
        return json.loads(result.stdout)

    def test_the_lease_is_the_card(self):
        with Pool() as pool:
            answers = self.answers(pool)
        self.assertEqual(1, len(answers['cuda']))
        self.assertEqual(answers['cuda'], answers['nvml'])
        self.assertEqual(1024 * MIB, answers['nvml'][0]['memory'])
        self.assertEqual(answers['driver_version'], answers['version'])
        # Looking is no session, and takes nothing.
        self.assertEqual({'memory': [1024 * MIB, 0, 1024 * MIB], 'processes': []}, answers['before'])
        held = answers['held']
        self.assertEqual(held['cuda'], held['memory'])
        self.assertGreaterEqual(held['memory'][1], 100 * MIB)
        self.assertEqual([[answers['pid'], held['memory'][1]]], held['processes'])
        self.assertTrue(answers['executable'].endswith('/' + answers['program']), answers)
        self.assertEqual((3, 3), (answers['temperature'], answers['utilization']))  # NOT_SUPPORTED

    def test_smi_of_the_lease_and_of_the_pool(self):
        with Pool() as pool:
            of_lease = pool.run(BIN / 'fargpu', 'smi', memory='512MiB', cores=25)
            self.assert_succeeds(of_lease)
            table = of_lease.stdout.decode()
            self.assertRegex(table, r'\| 0 +\| FarGPU Software Device +\| [0-9A-F:.]{16} +\| N/A +\| N/A +'
                                    r'\| 0MiB / 512MiB +\| 25% +\| N/A +\|')
            self.assertIn('No running processes found', table)
            boxes = table.split('\n\n')
            self.assertEqual([1, 1], [len({len(line) for line in box.splitlines()}) for box in boxes], table)
            hold = ' '.join(str(part) for part in preloaded(PROGRAMS / 'hold'))
            busy = pool.run('/bin/sh', '-c',
                            f'{hold} 64 300 >{pool.home}/out & '
                            f'until grep -q ready {pool.home}/out; do sleep 0.05; done; '
                            f'{BIN}/fargpu smi; kill $!; wait')
            self.assert_succeeds(busy)
            rows = re.findall(r'\| 0 +\| \d+ +\| hold +\| (\d+)MiB', busy.stdout.decode())
            self.assertEqual(1, len(rows), busy.stdout)
            self.assertGreaterEqual(int(rows[0]), 64)
            self.assertIn(f'{rows[0]}MiB / 1024MiB', busy.stdout.decode())
            of_pool = pool.command('smi')
            self.assert_succeeds(of_pool)
            self.assertRegex(of_pool.stdout.decode(), r'\| 0 +\| FarGPU Software Device .* 4096MiB')

    def test_no_lease_no_driver(self):
        with Pool() as pool:
            script = 'import ctypes; print(ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2())'
            result = pool.run('/usr/bin/env', '-u', 'FARGPU_LEASE', *preloaded(sys.executable), '-c', script)
            self.assert_succeeds(result)
            self.assertEqual(b'9\n', result.stdout)  # DRIVER_NOT_LOADED
            self.assertEqual('', result.stderr)

    def test_a_daemon_that_is_gone_is_a_lost_card(self):
        with Pool() as pool:
            program = pool.start('/usr/bin/env', *preloaded(sys.executable), '-c', WATCHING_PROGRAM)
            program.wait_for_output('ready')
            os.kill(pool.one_pid('fargpud'), signal.SIGKILL)
            program.wait_for_output('result 15', 20 * SLOWNESS)


if __name__ == '__main__':
    unittest.main()
