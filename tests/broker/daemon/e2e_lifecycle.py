"""How brokers begin and end: private ones for a command tree, system ones under signals, and what they leave behind."""

import json
import os
import pathlib
import re
import signal
import tempfile

import e2e_support
from e2e_support import *

SOCKET = "/run/sluice/sluiced.sock"
SAID = "sluice: no broker was running, so a private one was started"


@unittest.skipIf(os.path.exists(SOCKET) or os.path.exists("/etc/sluice/sluice.toml"), "this machine has a broker of its own")
class Private(BrokerTest):
    def setUp(self):
        # A place of its own, so that what is left behind can be seen.
        self.place = pathlib.Path(tempfile.mkdtemp(prefix="sluice-e2e-"))
        self.addCleanup(shutil.rmtree, self.place, True)
        self.env = environment(XDG_RUNTIME_DIR=str(self.place))

    def pid_of_broker(self):
        """The private broker whose directory lies in our place."""
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if words[0].endswith(b"/sluiced") and any(word.startswith(bytes(self.place)) for word in words):
                    return int(entry.name)
        return None

    def assert_gone(self):
        wait_until("the broker has ended", lambda: self.pid_of_broker() is None)
        wait_until("its directory is gone", lambda: list(self.place.iterdir()) == [])

    def test_starts_says_so_once_and_ends(self):
        result = self.sluice("run", "--memory", "64MiB", "--", "sh", "-c", "echo $SLUICE_SOCKET", env=self.env)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr.count(SAID), 1)
        self.assertTrue(result.stdout.startswith(str(self.place)), result.stdout)
        self.assert_gone()

    def test_starts_with_closed_standard_streams(self):
        """What the program finds closed it finds as without: closed."""
        inner = "test ! -e /proc/self/fd/1 && exit 7"
        for closed in ("<&- >&- 2>&-", ">&- 2>&-", "<&- >&-", ">&-"):
            command = f"{program('sluice')} run --memory 64MiB -- sh -c '{inner}' {closed}"
            result = subprocess.run(["sh", "-c", command], env=self.env, timeout=PATIENCE_S, stdin=subprocess.DEVNULL, check=False,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertEqual(result.returncode, 7, f"{closed}: {result}")
            self.assert_gone()

    def test_directory_is_the_users_alone(self):
        result = self.sluice("run", "--", "sh", "-c", "stat -c %a $(dirname $SLUICE_SOCKET) $SLUICE_SOCKET", env=self.env)
        self.assertEqual(result.stdout.split(), ["700", "600"])

    def test_nested_runs_share_it(self):
        inner = f"{program('sluice')} run --memory 64MiB -- sh -c '{program('sluice')} status --json'"
        result = self.sluice("run", "--memory", "64MiB", "--", "sh", "-c", inner, env=self.env)
        self.assertEqual(result.stderr.count(SAID), 1, result.stderr)
        self.assertEqual(len(json.loads(result.stdout)["tenants"]), 2)
        self.assert_gone()

    def test_software_gpus(self):
        env = dict(self.env)
        del env["LD_LIBRARY_PATH"]
        result = self.sluice("run", "--soft", "3", "--", "sh", "-c", "echo $SOFTGPU_COUNT $LD_LIBRARY_PATH", env=env)
        self.assertEqual(result.stdout.split(), ["3", f"{e2e_support.INSTALLATION}/lib/softgpu"])

    def test_relative_paths_of_software_gpus(self):
        """The broker works in "/" and the program where it likes: both are told whole paths."""
        relative = {"SOFTGPU_DIR": "gpus", "SOFTGPU_PROFILE": "./fast.profile", "SOFTGPU_LOG": "1"}
        result = self.sluice("run", "--", "sh", "-c", "cd /; echo $SOFTGPU_DIR $SOFTGPU_PROFILE $SOFTGPU_LOG",
                             env=dict(self.env, **relative), cwd=self.place)
        self.assertEqual(result.returncode, 0, result.stderr)
        here = os.path.realpath(self.place)
        self.assertEqual([os.path.normpath(word) for word in result.stdout.split()],
                         [f"{here}/gpus", f"{here}/fast.profile", "1"])

    def test_refused_run_leaves_nothing(self):
        result = self.sluice("run", "--memory", "1MiB", "--", "true", env=self.env)
        self.assertEqual(result.returncode, 125)
        self.assert_gone()

    def test_no_gpu_is_one_clear_line(self):
        result = self.sluice("run", "--", "true", env=dict(self.env, FAKE_FAULT="empty"))
        self.assertEqual(result.returncode, 125)
        self.assertRegex(result.stderr, r"^sluice: the driver is loaded but there is no GPU; [^\n]*--soft N\n$")
        self.assert_gone()

    def test_no_driver_is_one_clear_line(self):
        env = dict(self.env)
        del env["LD_LIBRARY_PATH"]
        result = self.sluice("run", "--", "true", env=env)
        if result.returncode == 0:
            self.skipTest("this machine has an NVIDIA driver")
        self.assertEqual(result.returncode, 125)
        self.assertRegex(result.stderr, r"^sluice: cannot load libnvidia-ml.so.1 [^\n]*\n$")

    def test_broken_probe_costs_the_figure_only(self):
        result = self.sluice("run", "--memory", "64MiB", "--", program("sluice"), "status", "--json",
                             env=dict(self.env, FAKE_FAULT="crash"))
        self.assertEqual([gpu["context_bytes"] for gpu in json.loads(result.stdout)["gpus"]], [0, 0])

    def limited(self, limits, *command):
        """`sluice run` under limits as ulimit sets them."""
        return subprocess.run(["sh", "-c", f'ulimit {limits}; exec "$@"', "sh", program("sluice"), "run", "--memory", "64MiB", "--",
                               *command], env=self.env, timeout=PATIENCE_S, stdin=subprocess.DEVNULL, check=False,
                              capture_output=True, text=True)

    def test_a_soft_limit_of_the_user_is_the_programs_and_not_the_brokers(self):
        for option, low in (("n", "20"), ("f", "0")):
            result = self.limited(f"-S{option} {low}", "sh", "-c", f"ulimit -S{option}; {program('sluice')} status --json | cat")
            self.assertEqual(result.returncode, 0, result.stderr)
            limit, status = result.stdout.split("\n", 1)
            self.assertEqual(limit, low)
            self.assertEqual(len(json.loads(status)["tenants"]), 1)
            self.assert_gone()

    def test_a_hard_limit_that_is_too_low_is_named(self):
        for limits, text in (("-n 100", "the broker needs 128 open files and the limit is 100; raise it (ulimit -n, or LimitNOFILE"),
                             ("-n 16", "open files and the limit is 16; raise it (ulimit -n"),
                             ("-n 6", "open files and the limit is 6; raise it (ulimit -n"),
                             ("-n 4", "Too many open files; raise the limit (ulimit -n)"),
                             ("-f 8", "the broker needs files of 16 MiB and the limit is 4 KiB; raise it (ulimit -f, or LimitFSIZE"),
                             ("-f 0", "files of 16 MiB and the limit is 0 B; raise it (ulimit -f")):
            with self.subTest(limits=limits):
                result = self.limited(limits, "true")
                self.assertEqual(result.returncode, 125)
                self.assertRegex(result.stderr, r"^sluice: [^\n]*\n$")
                self.assertIn(text, result.stderr)
                self.assert_gone()

    def test_a_limit_on_files_ends_neither_sluice_nor_its_program_by_a_signal(self):
        """Where standard error is a file that may not grow, the exit code alone says it."""
        with tempfile.TemporaryFile() as words:
            result = subprocess.run(["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", program("sluice"), "run", "--memory", "64MiB", "true"],
                                    env=self.env, stdin=subprocess.DEVNULL, stdout=words, stderr=words, timeout=PATIENCE_S, check=False)
        self.assertEqual(result.returncode, 125)
        self.assert_gone()
        handles = "sed -n 's/^SigIgn:\\t//p' /proc/self/status"
        plain = subprocess.run(["sh", "-c", handles], env=self.env, capture_output=True, text=True, check=True).stdout
        result = self.limited("-Sf unlimited", "sh", "-c", handles)
        self.assertEqual(result.stdout, plain, "the program has the signal as sluice found it")

    def test_a_log_that_may_not_grow_ends_no_broker(self):
        server = self.broker(before=["prlimit", f"--fsize={16 << 20}"])
        server.log_path.open("ab").truncate(16 << 20)
        client = self.client(server)
        self.assertEqual(client.ask(admit()).kind, ADMITTED)
        self.assertEqual(len(server.tenants()), 1)

    def test_a_private_broker_that_was_killed_is_named(self):
        """Nothing is put in its place: what it promised is in use."""
        inner = (f'read pid; kill -9 "$pid"; while kill -0 "$pid" 2>/dev/null; do sleep 0.01; done; for c in status "run -- true" '
                 f'"suspend 1" doctor; do {program("sluice")} $c 2>&1; echo "exit $?"; done; echo goes on')
        job = subprocess.Popen([program("sluice"), "run", "--", "sh", "-c", inner], env=self.env, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        pid = wait_until("the broker runs", self.pid_of_broker)
        said = job.communicate(f"{pid}\n", timeout=PATIENCE_S)[0]
        self.assertEqual(job.returncode, 0)
        self.assertEqual(re.findall(r"^exit (.*)", said, re.M), ["1", "125", "1", "1"], said)
        self.assertEqual(len(re.findall(r"the private broker of this sluice run has ended", said)), 4, said)
        self.assertIn("goes on", said)
        self.assertNotIn("systemctl", said)
        self.assertEqual(self.sluice("run", "--", "true", env=self.env).returncode, 0, "the next command has one of its own")

    def test_everything_killed_leaves_no_process(self):
        job = subprocess.Popen([program("sluice"), "run", "--", "sleep", "1000"], env=self.env, stderr=subprocess.PIPE)
        wait_until("the broker runs", self.pid_of_broker)
        wait_until("the job runs", lambda: b"sleep" in pathlib.Path(f"/proc/{job.pid}/cmdline").read_bytes().split(b"\0")[0])
        job.kill()
        job.communicate()
        self.assert_gone()

    def test_holds_no_pipe_of_its_starter(self):
        # communicate() returns at end of file: a broker that kept the pipe would hold it up for its idle time and more.
        job = subprocess.Popen([program("sluice"), "run", "--", "sh", "-c", "sleep 1000 & echo $!"], env=self.env,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        sleeper = int(job.stdout.readline())
        broker = self.pid_of_broker()
        if broker is not None:
            targets = {os.readlink(f"/proc/{broker}/fd/{fd}") for fd in ("0", "1", "2")}
            self.assertEqual(targets, {"/dev/null"})
        os.kill(sleeper, signal.SIGKILL)
        job.communicate()
        self.assert_gone()


class System(BrokerTest):
    def test_sigterm_ends_cleanly(self):
        server = self.broker()
        job = self.job(server)
        job.ask("register")
        server.process.terminate()
        self.assertEqual(server.process.wait(PATIENCE_S), 0)
        self.assertFalse(server.socket.exists())
        self.assertEqual(job.ask("hello"), "hello", "programs go on")
        self.assertIn("event=ending", server.log())

    def test_second_broker_is_refused(self):
        server = self.broker()
        result = subprocess.run([program("sluiced"), "--socket", server.socket], env=environment(), capture_output=True,
                                text=True, timeout=PATIENCE_S)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"another broker already answers at {server.socket}", result.stderr)

    def test_socket_of_a_killed_broker_is_taken_over(self):
        server = self.broker()
        server.process.kill()
        server.process.wait()
        self.assertTrue(server.socket.exists())
        again = subprocess.Popen([program("sluiced"), "--socket", server.socket, "--log", "/dev/null"], env=environment())
        self.addCleanup(again.wait, PATIENCE_S)
        self.addCleanup(again.terminate)

        def answers():
            try:
                return server.client()
            except OSError:
                return None
        client = wait_until("the new one answers", answers)
        self.assertEqual(client.ask(admit()).kind, ADMITTED)
        client.close()

    def test_mistake_in_the_configuration_is_told_to_the_starter(self):
        broken = Broker('[scheduler]\nquantun = "5ms"\n')
        self.addCleanup(broken.stop)
        self.assertEqual(broken.process.wait(PATIENCE_S), 1)
        self.assertRegex(broken.word, r"^sluice: .*sluice.toml:4:1: .*quantun.*quantum")

    def test_each_mistake_in_the_configuration_is_a_line(self):
        broken = Broker('[scheduler]\nquantun = "5ms"\npolicy = "lifo"\n')
        self.addCleanup(broken.stop)
        self.assertEqual(broken.process.wait(PATIENCE_S), 1)
        said = [line for line in broken.log().splitlines() if "event=failed" in line]
        self.assertEqual(len(said), 2, said)
        self.assertRegex(said[0], r'msg="sluice: .*:4:1: .*quantun')
        self.assertRegex(said[1], r'msg="sluice: .*:5:10: .*lifo')
        self.assertNotIn("??", broken.log())

    def test_idle_exit(self):
        server = self.broker(options=["--idle-exit", "100ms"])
        client = server.client()
        self.assertEqual(client.ask(admit()).kind, ADMITTED)
        client.close()
        self.assertIsNone(server.process.poll(), "this process founded a tenant and lives")
        server.process.terminate()
        self.assertEqual(server.process.wait(PATIENCE_S), 0)
        other = self.broker(options=["--idle-exit", "100ms"])
        self.assertEqual(self.sluice("run", "--socket", other.socket, "--", "true").returncode, 0)
        self.assertEqual(other.process.wait(PATIENCE_S), 0)

    def test_socket_activation_and_readiness(self):
        directory = pathlib.Path(tempfile.mkdtemp(prefix="sluice-e2e-"))
        self.addCleanup(shutil.rmtree, directory, True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listening.bind(str(directory / "s"))
        listening.listen()
        told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        told.bind(str(directory / "notify"))
        told.settimeout(PATIENCE_S)
        child = os.fork()
        if child == 0:
            os.dup2(listening.fileno(), 3)
            os.set_inheritable(3, True)
            env = environment(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", NOTIFY_SOCKET=str(directory / "notify"))
            os.execve(program("sluiced"), ["sluiced", "--log", str(directory / "log")], env)
        self.addCleanup(os.waitpid, child, 0)
        self.addCleanup(os.kill, child, signal.SIGTERM)
        self.assertEqual(told.recv(100), b"READY=1")
        client = Client(directory / "s")
        self.assertEqual(client.ask(admit()).kind, ADMITTED)
        client.close()


@unittest.skipUnless(os.geteuid() == 0, "only root may run before ordinary programs")
class Realtime(BrokerTest):
    FIRST = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK

    def test_it_runs_before_ordinary_programs_and_not_for_ever(self):
        server = self.broker(options=["--realtime"])
        self.assertEqual(os.sched_getscheduler(server.process.pid), self.FIRST)
        limits = pathlib.Path(f"/proc/{server.process.pid}/limits").read_text()
        self.assertRegex(limits, r"Max realtime timeout +2000000 +3000000")
        self.assertNotIn("not_realtime", server.log())
        ordinary = self.broker()
        self.assertEqual(os.sched_getscheduler(ordinary.process.pid), os.SCHED_OTHER)

    def test_where_that_is_not_permitted_it_says_so_and_works(self):
        server = Broker(options=["--realtime"], before=["setpriv", "--bounding-set", "-sys_nice"])
        self.addCleanup(server.stop)
        self.assertEqual(server.word, "ready\n")
        self.assertEqual(os.sched_getscheduler(server.process.pid), os.SCHED_OTHER)
        self.assertRegex(server.log(), r"--realtime is not permitted \(Operation not permitted\).*LimitRTPRIO=1")
        self.assertEqual(server.tenants(), [])


if __name__ == "__main__":
    e2e_support.main()
