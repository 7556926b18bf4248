"""The fargpu command from end to end, with the real broker and a stand-in for fargpud.

Usage: cli_e2e_test.py FARGPU FARGPU_BROKER FAKE_FARGPUD FARGPU_LEASE
"""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PROGRAMS = []
TIMEOUT = 30


def processes_with(text):
    """Process numbers whose environment holds `text`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if text.encode() in (entry / "environ").read_bytes() and "Z" not in (
                    entry / "stat").read_text().rpartition(")")[2].split()[0]:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


class CliTest(unittest.TestCase):

    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="fargpu_cli_"))
        (self.root / "bin").mkdir()
        for source, name in zip(PROGRAMS, ("fargpu", "fargpu-broker", "fargpud", "fargpu-lease")):
            try:
                os.link(source, self.root / "bin" / name)
            except OSError:
                shutil.copy(source, self.root / "bin" / name)
        (self.root / "client").mkdir()
        (self.root / "client" / "libcuda.so.1").write_text("stands in for ours")
        self.home = self.root / "home"
        self.env = dict(os.environ, FARGPU_HOME=str(self.home))
        for name in ("FARGPU_BROKER", "FARGPU_LEASE", "LD_LIBRARY_PATH"):
            self.env.pop(name, None)

    def tearDown(self):
        self.fargpu("down")
        self.assertEqual(processes_with(f"FARGPU_UP_HOME={self.home}\0"), [])
        shutil.rmtree(self.root)

    def fargpu(self, *arguments, **options):
        return subprocess.run([str(self.root / "bin" / "fargpu"), *arguments],
                              env=self.env, capture_output=True, text=True, timeout=TIMEOUT,
                              stdin=subprocess.DEVNULL, check=False, **options)

    def start_fargpu(self, *arguments, **options):
        return subprocess.Popen([str(self.root / "bin" / "fargpu"), *arguments],
                                env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, **options)

    def up(self, *arguments):
        result = self.fargpu("up", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def run_program(self, *command, memory="1GiB", cores="30"):
        return self.fargpu("run", "--memory", memory, "--cores", cores, "--", *command)

    def test_softgpu_run_needs_no_daemon(self):
        (self.root / "softgpu").mkdir()
        (self.root / "softgpu" / "libcuda.so.1").write_text("stands in for the software device")
        script = "echo $LD_LIBRARY_PATH; echo $FARGPU_SOFTGPU; exit 7"
        result = self.fargpu("softgpu", "run", "--model", "h100", "--count", "2", "--memory", "1GiB",
                             "--", "sh", "-c", script)
        self.assertEqual(result.returncode, 7, result.stderr)
        self.assertEqual(result.stdout.splitlines(),
                         [f"{self.root}/softgpu", "model=h100,devices=2,memory=1GiB"])
        result = self.fargpu("softgpu", "run", "--config", "cards.toml", "--", "sh", "-c", script)
        self.assertTrue(result.stdout.splitlines()[1].endswith("/cards.toml"), result.stdout)
        self.assertEqual(self.fargpu("softgpu", "run", "--", "/no/such/program").returncode, 127)
        result = self.fargpu("softgpu", "run", "--config", "cards.txt", "--", "true")
        self.assertEqual(result.returncode, 125)
        self.assertIn(".toml", result.stderr)
        self.assertEqual(self.fargpu("softgpu", "run").returncode, 125)
        (self.root / "softgpu" / "libcuda.so.1").unlink()
        self.assertEqual(self.fargpu("softgpu", "run", "--", "true").returncode, 125)

    def test_up_run_pool_leases_down(self):
        self.assertIn("up: broker at 127.0.0.1:", self.up())
        self.assertIn("already up: ", self.up())
        self.assertEqual(len(processes_with(f"FARGPU_UP_HOME={self.home}\0")), 2)

        pool = self.fargpu("pool").stdout.splitlines()
        self.assertEqual(pool[0].split()[:4], ["NODE", "STATE", "CARD", "MODEL"])
        self.assertIn("Fake GPU", pool[1])
        self.assertIn("0/100%", pool[1])
        self.assertEqual(self.fargpu("leases").stdout, "No leases.\n")

        script = ("cat $FARGPU_LEASE; stat -c %a $FARGPU_LEASE; echo $LD_LIBRARY_PATH; "
                  f"{self.root}/bin/fargpu leases; {self.root}/bin/fargpu pool; exit 7")
        result = self.run_program("sh", "-c", script)
        self.assertEqual(result.returncode, 7, result.stderr)
        lines = result.stdout.splitlines()
        lease_id = lines[0].split()[1]
        self.assertEqual(len(lease_id), 32)
        self.assertEqual(len(lines[1].split()[1]), 64)
        self.assertEqual(lines[2], f"endpoint unix:{self.home}/run/fargpud.sock")
        self.assertIn("memory_bytes 1073741824", lines)
        self.assertIn("cores_percent 30", lines)
        self.assertIn("600", lines)
        self.assertIn(str(self.root / "client"), lines)
        self.assertTrue(any(line.startswith(lease_id) and " sh " in line for line in lines))
        self.assertTrue(any("Fake GPU" in line and "1 GiB" in line and "30/100%" in line
                            for line in lines))
        # Over: the lease is back, its file gone.
        self.assertEqual(self.fargpu("leases").stdout, "No leases.\n")
        self.assertIn("ended: its program ended", self.fargpu("leases", "--all").stdout)
        self.assertEqual(list((self.home / "leases").iterdir()), [])

        self.assertEqual(self.fargpu("down").stdout, "down\n")
        self.assertEqual(self.fargpu("down").stdout, "nothing was running\n")

    def test_programs_on_software_cards_find_the_stand_ins(self):
        standins = self.root / "softgpu" / "standins"
        standins.mkdir(parents=True)
        (self.root / "softgpu" / "libcuda.so.1").write_text("stands in for the software device")
        for uuid, folders in (("GPU-46617247-0000-8000-8000-000000000001",
                               [str(self.root / "client"), str(standins)]),
                              ("GPU-46617247-0000-4000-8000-000000000001",
                               [str(self.root / "client")])):
            self.env["FAKE_FARGPUD_UUID"] = uuid
            self.up()
            result = self.run_program("sh", "-c", "echo $LD_LIBRARY_PATH")
            self.assertEqual(result.stdout.strip().split(":"), folders, result.stderr)
            self.fargpu("down")

    def test_exit_statuses_of_run(self):
        self.env["FARGPU_BROKER"] = "127.0.0.1:1"  # the default may be somebody's
        result = self.run_program("true")
        del self.env["FARGPU_BROKER"]
        self.assertEqual(result.returncode, 125)
        self.assertRegex(result.stderr,
                         r"^fargpu: no broker at 127.0.0.1:\d+; start one with `fargpu up`\n$")
        self.up()
        self.assertEqual(self.run_program("true").returncode, 0)
        self.assertEqual(self.run_program("sh", "-c", "kill -SEGV $$").returncode, 128 + 11)
        self.assertEqual(self.run_program("no-such-program").returncode, 127)
        odd_name = str(self.root / "l\u00fcgt\nhier")
        shutil.copy("/bin/true", odd_name)
        self.assertEqual(self.run_program(odd_name).returncode, 0)
        self.assertEqual(self.run_program(str(self.root)).returncode, 126)
        refused = self.run_program("true", memory="5GiB")
        self.assertEqual(refused.returncode, 125)
        self.assertIn("memory_mib is 5120 MiB, but the pool's largest card has 4096 MiB",
                      refused.stderr)
        self.assertEqual(refused.stderr.count("\n"), 1)
        self.assertEqual(self.run_program("true", memory="4GB").returncode, 125)
        self.assertEqual(self.run_program("true", cores="101").returncode, 125)
        self.assertEqual(self.fargpu("run", "--", "true").returncode, 125)
        self.assertEqual(self.fargpu("run", "-m", "1GiB", "--wait", "nan", "--", "true").returncode,
                         125)
        wrong = self.fargpu("bogus", "--broker", "127.0.0.1:1")
        self.assertEqual((wrong.returncode, wrong.stderr),
                         (2, "fargpu: there is no verb bogus; see `fargpu --help`\n"))
        self.assertIn("fargpu ", self.fargpu("--version").stdout)
        with open("/dev/full", "w", encoding="ascii") as full:
            pool = subprocess.run([str(self.root / "bin" / "fargpu"), "pool"], env=self.env,
                                  stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual((pool.returncode, pool.stderr),
                         (1, "fargpu: the output could not be written\n"))
        self.assertEqual(self.fargpu("leases").stdout, "No leases.\n")

    def test_two_leases_share_a_card_and_a_third_is_refused(self):
        self.up()
        holders = [self.start_fargpu("run", "--memory", "1536MiB", "--cores", "40", "--", "cat",
                                     stdin=subprocess.PIPE) for _ in range(2)]
        self.wait_for(lambda: self.fargpu("leases").stdout.count("active") == 2)
        third = self.run_program("true", memory="1536")
        self.assertEqual(third.returncode, 125)
        self.assertIn("no card has 1536 MiB free; the largest free slice is 1024 MiB on node",
                      third.stderr)
        holders[0].stdin.close()
        self.assertEqual(holders[0].wait(TIMEOUT), 0)
        self.assertEqual(self.run_program("true", memory="1536").returncode, 0)
        holders[1].stdin.close()
        self.assertEqual(holders[1].wait(TIMEOUT), 0)
        for holder in holders:
            holder.stdout.close()
            holder.stderr.close()

    def test_signals_reach_the_program(self):
        self.up()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            process = self.start_fargpu(
                "run", "-m", "1", "--", sys.executable, "-c",
                "import signal,sys\n"
                "def end(n, _): print('got', n); sys.exit(5)\n"
                f"signal.signal({int(number)}, end)\n"
                "print('ready', flush=True)\n"
                "signal.pause()")
            self.assertEqual(process.stdout.readline(), "ready\n")
            process.send_signal(number)
            output, _ = process.communicate(timeout=TIMEOUT)
            self.assertEqual(output, f"got {int(number)}\n")
            self.assertEqual(process.returncode, 5)
        process = self.start_fargpu("run", "-m", "1", "--", "sh", "-c", "echo ready; sleep 1000")
        self.assertEqual(process.stdout.readline(), "ready\n")
        process.terminate()
        process.wait(TIMEOUT)
        self.assertEqual(process.returncode, 128 + 15)
        self.assertEqual(self.fargpu("leases").stdout, "No leases.\n")
        process.stdout.close()
        process.stderr.close()
        # The program's signal mask and dispositions are what they would be without us. (Signals
        # from 32 on are the C library's own; posix_spawn leaves 32 and 33 ignored.)
        script = ("import re; s = open('/proc/self/status').read(); print([int(x, 16) & 0x7fffffff"
                  " for x in re.findall('Sig(?:Blk|Ign):\\s*(\\w+)', s)])")
        direct = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                                check=True)
        self.assertEqual(self.run_program(sys.executable, "-c", script).stdout, direct.stdout)
        # Also when our own caller ignores some.
        ignoring = ["sh", "-c", "trap '' HUP PIPE; exec \"$@\"", "sh"]
        command = ["run", "-m", "1", "--", sys.executable, "-S", "-c",
                   "print([l for l in open('/proc/self/status') if 'SigIgn' in l])"]
        result = subprocess.run([*ignoring, str(self.root / "bin" / "fargpu"), *command],
                                env=self.env, capture_output=True, text=True, check=True,
                                timeout=TIMEOUT)
        ignored = int(result.stdout.split("\\t")[1].split("\\n")[0], 16)
        self.assertEqual(ignored & 1, 1)  # SIGHUP
        # A signal also ends the wait for a lease.
        waiting = self.start_fargpu("run", "-m", "4GiB", "--wait", "60", "--", "sleep", "1000")
        self.wait_for(lambda: "active" in self.fargpu("leases").stdout)
        second = self.start_fargpu("run", "-m", "4GiB", "--wait", "60", "--", "true")
        time.sleep(0.5)
        second.send_signal(signal.SIGINT)
        second.communicate(timeout=TIMEOUT)
        self.assertEqual(second.returncode, -signal.SIGINT)
        waiting.terminate()
        waiting.communicate(timeout=TIMEOUT)
        self.assertEqual(waiting.returncode, 128 + 15)

    def test_leases_outlive_the_broker(self):
        self.up()
        holder = self.start_fargpu("run", "-m", "1GiB", "--", "cat", stdin=subprocess.PIPE)
        self.wait_for(lambda: "active" in self.fargpu("leases").stdout)
        before = self.fargpu("leases").stdout.splitlines()[1].split()[0]
        broker = int((self.home / "broker.pid").read_text().split()[0])
        os.kill(broker, signal.SIGKILL)
        self.wait_for(lambda: self.fargpu("leases").returncode == 1)
        address = self.fargpu("leases").stderr.split()[4]
        self.assertIn("up: ", self.up())
        self.assertIn(address.rstrip(";"), self.fargpu("version").stdout)  # the same port again
        after = self.fargpu("leases").stdout.splitlines()[1]
        self.assertEqual(after.split()[0], before)
        self.assertIn("active", after)
        holder.stdin.close()
        self.assertEqual(holder.wait(TIMEOUT), 0)
        self.assertEqual(holder.stderr.read(), "")
        self.assertEqual(self.fargpu("leases").stdout, "No leases.\n")
        holder.stdout.close()
        holder.stderr.close()

    def test_down_after_crashes_and_with_orphans(self):
        self.up("--", "--leave-worker")
        daemon = int((self.home / "daemon.pid").read_text().split()[0])
        os.kill(daemon, signal.SIGKILL)
        self.assertEqual(self.fargpu("down").stdout, "down\n")
        self.assertEqual(processes_with(f"FARGPU_UP_HOME={self.home}\0"), [])
        # A pid file whose number belongs to somebody else by now harms nobody.
        bystander = subprocess.Popen(["sleep", "1000"])
        (self.home / "broker.pid").write_text(f"{bystander.pid} 1\n")
        (self.home / "daemon.pid").write_text("rubbish")
        self.assertEqual(self.fargpu("down").stdout, "nothing was running\n")
        self.assertIsNone(bystander.poll())
        bystander.kill()
        bystander.wait()

    def test_a_daemon_that_fails_is_reported_and_nothing_stays(self):
        result = self.fargpu("up", "--", "--fail")
        self.assertEqual(result.returncode, 1)
        self.assertIn("fargpud ended while starting", result.stderr)
        self.assertIn("the card is on fire", result.stderr)
        self.assertEqual(processes_with(f"FARGPU_UP_HOME={self.home}\0"), [])

    def test_a_taken_port_is_avoided(self):
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                taken.bind(("127.0.0.1", 4830))
            except OSError:
                pass  # somebody else has it, which is as good
            else:
                taken.listen()
            self.assertNotIn("127.0.0.1:4830,", self.up())
            self.assertEqual(self.run_program("true").returncode, 0)

    def test_kill_9_of_the_broker_loses_and_doubles_nothing(self):
        self.up()
        stop = threading.Event()
        outcomes = []

        def run_again_and_again():
            while not stop.is_set():
                result = self.run_program("true", memory="1GiB", cores="25")
                outcomes.append((result.returncode, result.stderr))

        threads = [threading.Thread(target=run_again_and_again) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(4):
            time.sleep(0.4)
            broker = int((self.home / "broker.pid").read_text().split()[0])
            os.kill(broker, signal.SIGKILL)
            self.up()
        time.sleep(0.3)
        stop.set()
        for thread in threads:
            thread.join()
        self.assertGreater(sum(status == 0 for status, _ in outcomes), 3, outcomes)
        # Whoever was not served was told that no broker was there, and nothing else went wrong.
        for status, errors in outcomes:
            if status != 0 or errors:
                self.assertEqual(status, 125, errors)
                self.assertIn("no broker at", errors)
        self.assertEqual(self.fargpu("leases").stdout, "No leases.\n")
        self.assertIn("0/100%", self.fargpu("pool").stdout)

    def test_mutual_tls_beyond_loopback(self):
        keys = self.root / "keys"
        keys.mkdir()

        def openssl(*arguments):
            subprocess.run(["openssl", *arguments], cwd=keys, check=True, capture_output=True)

        for ca in ("ca", "stranger-ca"):
            openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                    "-nodes", "-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-subj", f"/CN={ca}")
        (keys / "san").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        for name, ca in (("broker", "ca"), ("client", "ca"), ("stranger", "stranger-ca")):
            openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
            openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey",
                    f"{ca}.key", "-CAcreateserial", "-out", f"{name}.pem", "-extfile", "san")
        broker = subprocess.Popen(
            [str(self.root / "bin" / "fargpu-broker"), "--listen", "0.0.0.0:0", "--state",
             str(self.root / "state"), "--address-file", str(self.root / "address"),
             "--tls-cert", str(keys / "broker.pem"), "--tls-key", str(keys / "broker.key"),
             "--tls-ca", str(keys / "ca.pem")], stderr=subprocess.DEVNULL)
        try:
            self.wait_for((self.root / "address").exists)
            port = (self.root / "address").read_text().strip().rpartition(":")[2]
            address = f"127.0.0.1:{port}"

            def version(name):
                environment = {} if name is None else {
                    "FARGPU_TLS_CERT": str(keys / f"{name}.pem"),
                    "FARGPU_TLS_KEY": str(keys / f"{name}.key"),
                    "FARGPU_TLS_CA": str(keys / "ca.pem")}
                return subprocess.run(
                    [str(self.root / "bin" / "fargpu"), "version", "--broker", address],
                    env=self.env | environment, capture_output=True, text=True, timeout=TIMEOUT,
                    check=False)

            self.assertIn(f"at {address}", version("client").stdout)
            self.assertEqual(version("stranger").returncode, 1)
            self.assertEqual(version(None).returncode, 1)
        finally:
            broker.terminate()
            start = time.monotonic()
            self.assertEqual(broker.wait(TIMEOUT), 0)
            self.assertLess(time.monotonic() - start, 5)

    def start_lease_helper(self, **settings):
        return subprocess.Popen([str(self.root / "bin" / "fargpu-lease")],
                                env=dict(self.env, **settings), stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_lease_helper_keeps_a_lease_while_stdin_is_open(self):
        self.up()
        broker = (self.home / "broker.address").read_text().strip()
        settings = {"FARGPU_BROKER": broker, "FARGPU_MEMORY": "2GiB", "FARGPU_CORES": "25"}
        helper = self.start_lease_helper(**settings)
        lines = []
        while line := helper.stdout.readline().strip():
            lines.append(line)
        self.assertEqual([line.split()[0] for line in lines],
                         ["lease", "secret", "endpoint", "memory_bytes", "cores_percent"])
        self.assertEqual(lines[3:], ["memory_bytes 2147483648", "cores_percent 25"])
        listed = self.fargpu("leases").stdout.splitlines()[1].split()
        self.assertEqual(listed[0], lines[0].split()[1])
        self.assertTrue(pathlib.Path("/proc/self/comm").read_text().startswith(listed[2]))
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            helper.send_signal(number)
        helper.stdin.write("anything\n")
        helper.stdin.flush()
        time.sleep(0.2)
        self.assertIsNone(helper.poll())
        refused = self.start_lease_helper(**settings | {"FARGPU_MEMORY": "3GiB"})
        refused.wait(TIMEOUT)
        output, errors = refused.communicate(timeout=TIMEOUT)
        self.assertEqual((refused.returncode, output), (1, ""))
        self.assertIn("largest free slice is 2048 MiB", errors)
        self.assertEqual(errors.count("\n"), 1)
        output, errors = helper.communicate(timeout=TIMEOUT)  # closes its stdin
        self.assertEqual((helper.returncode, output, errors), (0, "", ""))
        self.assertEqual(self.fargpu("leases").stdout, "No leases.\n")
        # SIGTERM releases as well.
        helper = self.start_lease_helper(**settings)
        helper.stdout.readline()
        helper.terminate()
        helper.communicate(timeout=TIMEOUT)
        self.assertEqual(helper.returncode, 0)
        self.assertEqual(self.fargpu("leases").stdout, "No leases.\n")

    def test_lease_helper_names_wrong_settings(self):
        for settings, status, message in (
            ({}, 2, "FARGPU_BROKER is not set"),
            ({"FARGPU_BROKER": "127.0.0.1:1"}, 2, "FARGPU_MEMORY is not set"),
            ({"FARGPU_BROKER": "127.0.0.1:1", "FARGPU_MEMORY": "4GB"}, 2, "FARGPU_MEMORY: "),
            ({"FARGPU_BROKER": "127.0.0.1:1", "FARGPU_MEMORY": "1", "FARGPU_CORES": "0"}, 2,
             "FARGPU_CORES is \"0\""),
            ({"FARGPU_BROKER": "127.0.0.1:1", "FARGPU_MEMORY": "1"}, 1,
             "no broker at 127.0.0.1:1"),
            ({"FARGPU_BROKER": "nonsense", "FARGPU_MEMORY": "1"}, 1, "neither HOST:PORT"),
        ):
            helper = self.start_lease_helper(**settings)
            helper.wait(TIMEOUT)
            output, errors = helper.communicate(timeout=TIMEOUT)
            self.assertEqual((helper.returncode, output), (status, ""), settings)
            self.assertIn(message, errors)
            self.assertEqual(errors.count("\n"), 1)

    def test_help_everywhere_with_an_example(self):
        self.assertIn("Example", self.fargpu("--help").stdout)
        for verb in ("up", "down", "run", "pool", "leases", "smi", "version"):
            result = self.fargpu(verb, "--help")
            self.assertEqual(result.returncode, 0)
            self.assertIn("Example", result.stdout, verb)
            self.assertIn(f"fargpu {verb}", result.stdout)

    def test_usage_errors(self):
        for arguments in ((), ("no-such-verb",), ("pool", "--no-such-option")):
            result = self.fargpu(*arguments)
            self.assertEqual(result.returncode, 2)
            self.assertTrue(result.stderr.startswith("fargpu: "))
            self.assertIn("--help", result.stderr)
        result = self.fargpu("pool", "--broker", "10.0.0.1:4830")
        self.assertEqual(result.returncode, 1)
        self.assertIn("FARGPU_TLS_CERT", result.stderr)
        result = self.fargpu("--broker", "nonsense", "pool")
        self.assertIn("neither HOST:PORT nor unix:/path", result.stderr)
        self.env["FARGPU_BROKER"] = "127.0.0.1:1"
        result = self.fargpu("version")
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stdout, r"^fargpu \d+\.\d+\.\d+\n$")

    def wait_for(self, condition):
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            self.assertLess(time.monotonic(), deadline, "condition did not come true")
            time.sleep(0.05)


if __name__ == "__main__":
    PROGRAMS = sys.argv[1:5]
    del sys.argv[1:5]
    unittest.main()
