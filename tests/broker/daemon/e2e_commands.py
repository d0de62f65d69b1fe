"""The command line: what people see and which codes scripts get."""

import os
import pathlib
import pty
import pwd
import signal
import tempfile

import e2e_support
from e2e_support import *


class Run(BrokerTest):
    def setUp(self):
        self.server = self.broker()

    def run_on(self, *arguments, **settings):
        return self.sluice("run", "--socket", self.server.socket, *arguments, **settings)

    def test_codes_are_the_programs_own(self):
        for code in (0, 1, 42, 124):
            self.assertEqual(self.run_on("--", "sh", "-c", f"exit {code}").returncode, code)
        self.assertEqual(self.run_on("--", "sh", "-c", "kill -TERM $$").returncode, -signal.SIGTERM)

    def test_silent_when_all_is_well(self):
        result = self.run_on("--memory", "64MiB", "--", "echo", "hello", "--memory", "3")
        self.assertEqual((result.stdout, result.stderr), ("hello --memory 3\n", ""))

    def test_options_end_at_the_command_even_without_dashes(self):
        self.assertEqual(self.run_on("--memory", "64MiB", "echo", "-n", "--sm", "x").stdout, "--sm x")

    def test_environment(self):
        result = self.run_on("--gpu", "1", "--", "env",
                             env=environment(LD_PRELOAD="libm.so.6", CUDA_VISIBLE_DEVICES="0", SLUICE_TENANT="stale"))
        lines = dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
        self.assertEqual(lines["LD_PRELOAD"], f"libm.so.6:{e2e_support.INSTALLATION}/lib/libsluice.so")
        self.assertEqual(lines["CUDA_VISIBLE_DEVICES"], "GPU-00000000-0000-4000-8000-000000000001")
        self.assertRegex(lines["SLUICE_TENANT"], r"^[0-9a-f]{16}-[0-9a-f]{16}$")
        self.assertEqual(lines["SLUICE_SOCKET"], str(self.server.socket))

    def test_not_found_and_not_executable(self):
        result = self.run_on("--", "no-such-program")
        self.assertEqual((result.returncode, result.stderr),
                         (127, "sluice: there is no program 'no-such-program'; check the name and PATH\n"))
        with tempfile.NamedTemporaryFile() as file:
            result = self.run_on("--", file.name)
            self.assertEqual(result.returncode, 126)
            self.assertIn("is not executable; chmod +x it", result.stderr)
        self.assertEqual(self.server.status()["broker"]["admissions"], 0, "nobody was asked")

    def test_script_without_a_first_line(self):
        with tempfile.NamedTemporaryFile("w", delete=False) as file:
            file.write("exit 9\n")
        self.addCleanup(os.unlink, file.name)
        os.chmod(file.name, 0o755)
        self.assertEqual(self.run_on("--", file.name).returncode, 9)

    def test_refusals_say_what_why_and_what_to_do(self):
        result = self.run_on("--gpu", "7", "--", "true")
        self.assertEqual((result.returncode, result.stderr),
                         (125, "sluice: there is no GPU 7; the broker has 2, numbered from 0; see sluice status\n"))

    def test_quota_below_a_context_names_the_smallest_that_would_do(self):
        too_small = ("sluice: a quota of {} is less than what a context alone takes on this GPU (32 MiB), so no program "
                     "could start; ask for at least 32 MiB\n")
        hello = ("--", "echo", "started")
        for options in ((), ("--no-wait",), ("--dry-run",), ("--gpus", "2"), ("--class", "inference")):
            with self.subTest(options):
                result = self.run_on("--memory", "1MiB", *options, *hello)
                self.assertEqual((result.returncode, result.stdout, result.stderr), (125, "", too_small.format("1 MiB")))
        self.assertEqual(self.run_on("--memory", "31MiB", *hello).stderr, too_small.format("31 MiB"))
        self.assertEqual(self.server.status()["broker"]["admissions"], 0, "nobody was let in")
        result = self.run_on("--memory", "32MiB", *hello)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "started\n", ""), "what was named does")
        self.server.config_write('[class.batch]\nmemory_max = "16MiB"\n')
        self.server.process.send_signal(signal.SIGHUP)
        wait_until("it is read", lambda: self.server.status()["broker"]["reloads_ok"] == 1)
        result = self.run_on(*hello)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (125, "", too_small.format("16 MiB")),
                         "nor does a default of that size")

    def test_gpus_by_uuid_and_beginning(self):
        show = ("--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        uuid = "GPU-00000000-0000-4000-8000-000000000001"
        self.assertEqual(self.run_on("--gpu", uuid, *show).stdout.strip(), uuid)
        self.assertIn("more than one", self.run_on("--gpu", "GPU-0000", *show).stderr)
        both = self.run_on("--gpu", "1", "--gpu", "0", *show).stdout.strip().split(",")
        self.assertEqual(sorted(both), [uuid[:-1] + "0", uuid])
        self.assertIn("named twice", self.run_on("--gpu", "1", "--gpu", uuid, *show).stderr)

    def test_waiting_too_long(self):
        holder = self.job(self.server, "--memory", "4GiB", "--gpus", "2", "--name", "holder")
        result = self.run_on("--memory", "1GiB", "--timeout", "100ms", "--", "true")
        self.assertEqual(result.returncode, 124)
        self.assertRegex(result.stderr.splitlines()[0],
                         r"^sluice: no room yet: the quotas on GPU \d add up to 4 GiB of 4 GiB, .*; you are 1st in line \(Resources\)")
        self.assertEqual(self.run_on("--memory", "1GiB", "--no-wait", "--", "true").returncode, 124)
        holder.kill()

    def test_turn_comes(self):
        holder = self.job(self.server, "--memory", "4GiB", "--gpus", "2")
        waiting = self.job(self.server, "--memory", "1GiB", "--sm", "25", start=False)
        wait_until("it waits", lambda: len(self.server.tenants()) == 2)
        holder.kill()
        waiting.ask("hello")
        self.assertIn("in line", waiting.process.stderr.readline())
        self.assertRegex(waiting.process.stderr.readline(), r"^sluice: your turn; python\S* runs with 1 GiB and 25 % of GPU \d, guaranteed\n")

    def test_interrupt_leaves_the_line(self):
        self.job(self.server, "--memory", "4GiB", "--gpus", "2")
        waiting = self.job(self.server, "--memory", "1GiB", start=False)
        wait_until("it waits", lambda: len(self.server.tenants()) == 2)
        waiting.process.send_signal(signal.SIGINT)
        self.assertEqual(waiting.process.wait(PATIENCE_S), -signal.SIGINT)
        self.assertIn("sluice: left the line", waiting.process.stderr.read())
        wait_until("nobody waits", lambda: len(self.server.tenants()) == 1)

    def test_terminal_shows_the_line_in_place(self):
        self.job(self.server, "--memory", "4GiB", "--gpus", "2")
        main, other = pty.openpty()
        waiting = subprocess.Popen([program("sluice"), "run", "--socket", self.server.socket, "--timeout", "300ms",
                                    "--memory", "1GiB", "--", "true"], env=environment(), stderr=other)
        os.close(other)
        self.assertEqual(waiting.wait(PATIENCE_S), 124)
        text = os.read(main, 4096).decode()
        os.close(main)
        self.assertTrue(text.startswith("\r\x1b[Ksluice: no room yet"), text)

    def test_dry_run(self):
        result = self.run_on("--dry-run", "--memory", "1GiB", "--sm", "25", "--", "false")
        self.assertEqual((result.returncode, result.stdout),
                         (0, "would run now with 1 GiB and 25 % of GPU 0, guaranteed (class batch, profile default)\n"))
        self.assertEqual(self.server.tenants(), [])
        self.job(self.server, "--memory", "4GiB", "--gpus", "2")
        result = self.run_on("--dry-run", "--memory", "1GiB", "--", "false")
        self.assertEqual(result.returncode, 124)
        self.assertTrue(result.stderr.startswith("sluice: "), result.stderr)

    def test_static_program_is_warned_of(self):
        result = self.run_on("--", "/sbin/ldconfig", "--version")
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stderr, r"^sluice: /sbin/ldconfig is statically linked, so the shim cannot")

    def test_mistyped_command_lines(self):
        for arguments, text in (
            ((), "run takes a command"),
            (("--memory", "lots", "--", "true"), "takes a size with its unit, such as 8G or 512M"),
            (("--class", "fast", "--", "true"), "is one of batch, debug, exclusive, inference, not 'fast'"),
            (("--sm", "0", "--", "true"), "takes a whole percentage from 1 to 100, such as 25 or 25%, not '0'"),
            (("--sm", "101", "--", "true"), "takes a whole percentage from 1 to 100"),
            (("--gpus", "9", "--", "true"), "takes a number from 1 to 8"),
            (("--timeout", "soon", "--", "true"), "takes a time such as 30s"),
            (("--memroy", "1GiB"), "did you mean --memory?"),
            (("--no-wait", "--timeout", "1s", "--", "true"), "exclude each other"),
            (("--memory", "1GiB", "--memory-min", "2GiB", "--", "true"), "--memory-min is above --memory"),
            (("--class", "exclusive", "--memory", "1GiB", "--", "true"), "so --memory means nothing to it"),
            (("--class", "exclusive", "--memory-min", "1GiB", "--", "true"), "so --memory-min means nothing to it"),
            (("--class", "exclusive", "--sm", "20", "--", "true"), "so --sm means nothing to it"),
            (("--memory", "1GiB", "--memory-min", "512MiB", "--", "true"), "add --swap or leave --memory-min out"),
            (("--gpus", "2", "--gpu", "0", "--", "true"), "leave --gpus out"),
        ):
            with self.subTest(arguments):
                result = self.run_on(*arguments)
                self.assertEqual(result.returncode, 125)
                self.assertTrue(result.stderr.startswith("sluice: "), result.stderr)
                self.assertIn(text, result.stderr)


class Others(BrokerTest):
    def test_no_broker_at_a_named_socket(self):
        for arguments in (("run", "--socket", "/nonexistent/s", "--", "true"), ("status", "--socket", "/nonexistent/s")):
            result = self.sluice(*arguments)
            self.assertEqual(result.returncode, 125 if arguments[0] == "run" else 1)
            self.assertRegex(result.stderr, r"^sluice: no broker answers at /nonexistent/s \(No such file or directory\); ")

    def test_status_table(self):
        server = self.broker()
        job = self.job(server, "--memory", "256MiB", "--sm", "25", "--name", "train", "--gpu", "1")
        job.ask("register")
        job.ask(f"claim 0 held {100 * MIB}")
        self.client(server).ask(admit(4 * GIB, name=b"later", gpus=2))
        result = self.sluice("status", "--socket", server.socket)
        lines = [line.split() for line in result.stdout.splitlines()]
        self.assertEqual(lines[0], "GPU NAME HELD / CAPACITY PROMISED GUARANTEED JOBS GPU TIME NOW UUID".split())
        self.assertEqual(lines[2][:3], ["[1]", "Tesla", "Double"])
        self.assertIn("100 MiB / 256 MiB", result.stdout)
        self.assertRegex(result.stdout, r"1\s+train\s+\S+\s+batch\s+1\s+100 MiB / 256 MiB\s+25 % guaranteed\s+0\.0 s\s+1\s+running")
        self.assertRegex(result.stdout, r"1st\s+later\s+\S+\s+batch\s+\d+\.\d s\s+Gang")

    def test_status_json_is_complete(self):
        server = self.broker()
        job = self.job(server)
        job.ask("register")
        status = server.status()
        self.assertEqual(set(status), {"broker", "policy", "gpus", "tenants", "ended"})
        self.assertEqual(status["broker"]["config_path"], str(server.config))
        self.assertEqual(status["broker"]["registrations"], 1)
        self.assertEqual(status["gpus"][0]["context_bytes"], 32 * MIB)
        self.assertEqual([gpu["software"] for gpu in status["gpus"]], [True, False])
        self.assertEqual(status["tenants"][0]["processes"][0]["command"], "program")

    def test_limits_of_a_profile(self):
        server = self.broker('[profile.default]\nuser_memory_max = "1GiB"\nall_running_max = 3\n')
        reply = self.client(server).ask(admit(memory=2 * GIB))
        self.assert_refused(reply, USER_LIMIT)
        self.assertIn("profile default allows each user 1 GiB of GPU memory, asked were 2 GiB", reply.text)
        self.job(server, "--memory", "768MiB")
        dry = self.sluice("run", "--socket", server.socket, "--dry-run", "--memory", "512MiB", "--", "true")
        self.assertEqual(dry.returncode, 124)
        self.assertIn(f"the jobs of user {pwd.getpwuid(os.getuid()).pw_name} have 768 MiB of the 1 GiB of GPU memory that profile default allows "
                      "each user", dry.stderr)
        self.assert_refused(self.client(server).ask(admit(memory=512 * MIB, flags=NO_WAIT)), NO_ROOM)
        waits = self.client(server)
        reply = waits.ask(admit(memory=512 * MIB))
        self.assertEqual((reply.kind, reply.reason, reply.limit, reply.promised, reply.capacity),
                         (QUEUED, 3, 3, 768 * MIB, GIB))
        server.config_write('[profile.default]\nuser_memory_max = "2GiB"\nall_running_max = 2\n')
        server.process.send_signal(signal.SIGHUP)
        self.assertEqual(waits.receive().kind, ADMITTED, "a new limit holds at once")
        reply = self.client(server).ask(admit(memory=64 * MIB))
        self.assertEqual((reply.kind, reply.reason, reply.limit, reply.promised, reply.capacity), (QUEUED, 3, 4, 2, 2))

    def test_profiles_by_cgroup(self):
        own = next((line.split(":", 2)[2] for line in open("/proc/self/cgroup").read().split("\n")
                    if line.startswith("0::")), "/")
        if own == "/":
            self.skipTest("this process is in no cgroup of its own")
        server = self.broker(f'[profile.here]\ncgroups = ["{own}"]\nsm_percent_max = 7\n')
        self.assertEqual(self.client(server).ask(admit(flags=DRY_RUN)).profile, b"here")

    def test_reload(self):
        server = self.broker('[class.batch]\nmemory_max = "300MiB"\n')
        server.config_write('[class.batch]\nmemory_max = "400MiB"\n')
        server.process.send_signal(signal.SIGHUP)
        wait_until("it is read", lambda: server.status()["broker"]["reloads_ok"] == 1)
        self.assertEqual(self.client(server).ask(admit(memory=0)).memory_max, 400 * MIB)
        self.assertEqual(server.status()["policy"]["order"], "fair")
        server.config_write('[class.batch]\nmemory_max = "400MiB"\n[scheduler]\npolicy = "fifo"\nexclusive = "suspend"\n'
                            '[memory]\nswap = "on"\nswap_quantum = "3s"\noversell = 2.5\n')
        server.process.send_signal(signal.SIGHUP)
        wait_until("it is read", lambda: server.status()["broker"]["reloads_ok"] == 2)
        policy = server.status()["policy"]
        self.assertEqual([policy[key] for key in ("order", "exclusive", "swap", "swap_quantum_ns", "oversell")],
                         ["fifo", "suspend", "on", 3_000_000_000, 2.5])
        self.assertIn("policy fifo, quantum 10 ms; exclusive suspend; oversell 2.5; swap on, quantum 3 s, ",
                      self.sluice("status", "--socket", server.socket).stdout)
        server.config_write('[class.batch]\nmemory_max = "1GiB"\nmemroy_min = "1GiB"\n')
        server.process.send_signal(signal.SIGHUP)
        wait_until("it is refused", lambda: server.status()["broker"]["reloads_failed"] == 1)
        self.assertEqual(self.client(server).ask(admit(memory=0)).memory_max, 400 * MIB, "nothing of it was taken")
        self.assertRegex(server.log(), r'event=reload_failed msg="sluice: .*sluice.toml:5:1: .*memroy_min')

    def test_doctor(self):
        server = self.broker()
        result = self.sluice("doctor", "--socket", server.socket, "/bin/sh")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertRegex(result.stdout, r"ok +driver library +libcuda.so.1, CUDA 13.0\n")
        self.assertRegex(result.stdout, r"ok +broker +\S+, 2 GPUs, configuration \S+\n")
        self.assertIn("can be shared", result.stdout)
        result = self.sluice("doctor", "--socket", server.socket, "/sbin/ldconfig")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"FAIL +program +/sbin/ldconfig is statically linked")
        self.assertIn("fix: link it dynamically", result.stdout)

    def test_doctor_without_a_gpu(self):
        result = self.sluice("doctor", env=environment(FAKE_FAULT="empty"))
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"FAIL +NVML and GPUs +the driver is loaded but there is no GPU")
        result = self.sluice("doctor", "--socket", "/nonexistent/s")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"FAIL +broker +no broker answers at /nonexistent/s.*\n +fix: ")

    def test_why_software_gpus_do_not_start(self):
        env = environment(FAKE_FAULT="software")
        del env["LD_LIBRARY_PATH"]
        doctor = self.sluice("doctor", "--soft", env=env)
        self.assertEqual(doctor.returncode, 1)
        self.assertIn('softgpu: no device: SOFTGPU_COUNT: "99" is no value\n', doctor.stdout)
        self.assertIn("fix: correct what it names, or run softgpu-ctl reset\n", doctor.stdout)
        run = self.sluice("run", "--soft", "1", "--", "true", env=env)
        self.assertEqual(run.returncode, 125)
        self.assertIn('sluice: softgpu: no device: SOFTGPU_COUNT: "99" is no value; correct what it names', run.stderr)
        self.assertNotIn("modprobe", doctor.stdout + run.stderr)

    def test_doctor_on_software_gpus(self):
        env = environment()
        del env["LD_LIBRARY_PATH"]
        self.assertEqual(self.sluice("doctor", "--soft", env=env).returncode, 0)

    def test_a_broker_that_hangs_is_not_waited_for(self):
        server = self.broker()
        os.kill(server.process.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, server.process.pid, signal.SIGCONT)
        commands = (("status",), ("doctor",), ("run", "--", "true"), ("suspend", "1"), ("drain", "--gpu", "0"))
        running = [subprocess.Popen([program("sluice"), command[0], "--socket", server.socket, *command[1:]], env=environment(),
                                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                   for command in commands]
        for command, process in zip(commands, running):
            said = process.communicate(timeout=PATIENCE_S)[0]
            self.assertEqual(process.returncode, 125 if command[0] == "run" else 1, said)
            self.assertIn("the broker does not answer within 10 s", said)
        self.assertIn("exit codes: 0, 1 no broker answers (waited for 10 s)", self.sluice("status", "--help").stdout)

    def test_examples_of_the_help_pages_work_as_printed(self):
        server = self.broker()
        place = pathlib.Path(tempfile.mkdtemp(prefix="sluice-e2e-"))
        self.addCleanup(shutil.rmtree, place, True)
        (place / "train.py").write_text("import time\ntime.sleep(3)\n")
        for name, text in (("serve", "exit 0"), ("vector_add", "exit 0"), ("quick_look", "exit 0"), ("sluice-train", "exit 0"),
                           ("jq", "cat")):
            (place / name).write_text(f"#!/bin/sh\n{text}\n")
            (place / name).chmod(0o755)
        shutil.copy("/bin/true", place / "train")
        env = environment(SLUICE_SOCKET=str(server.socket),
                          PATH=f"{e2e_support.INSTALLATION}/bin:{place}:{os.environ['PATH']}")
        for page in ("", "run", "status", "suspend", "resume", "move", "drain", "undrain", "config", "reload", "doctor"):
            with self.subTest(page=page):
                text = self.sluice("help", *([page] if page else [])).stdout
                lines = re.search(r"^examples?:\n((?:  .*\n)+)", text, re.M)[1]
                # People type the next line when the job is there.
                lines = lines.replace("&\n", "&\nuntil sluice status | grep -q train; do sleep 0.05; done\n")
                named = self.job(server, "--name", "train", "--memory", "64M") if page in ("resume", "move") else None
                result = subprocess.run(["timeout", "60", "sh", "-e", "-c", lines + "wait\n"], env=env, cwd=place, text=True,
                                        stdin=subprocess.DEVNULL, capture_output=True, check=False)
                self.assertEqual(result.returncode, 0, f"{lines}{result.stdout}{result.stderr}")
                if named is not None:
                    named.kill()
                wait_until("its jobs have ended", lambda: server.tenants() == [])

    def test_help_and_suggestions(self):
        self.assertIn("sluice run --memory 2GiB", self.sluice("help").stdout)
        self.assertIn("exit codes:", self.sluice("help", "run").stdout)
        self.assertEqual(self.sluice("run", "--help").stdout, self.sluice("help", "run").stdout)
        result = self.sluice("stauts")
        self.assertEqual((result.returncode, result.stderr),
                         (2, "sluice: there is no command 'stauts'; did you mean 'status'? sluice help lists them\n"))
        self.assertNotIn("mean", self.sluice("quux-and-more").stderr)
        self.assertEqual(self.sluice().returncode, 2)
        self.assertRegex(self.sluice("--version").stdout, r"^sluice \d+\.\d+")

    def test_lab_is_a_program_beside(self):
        result = self.sluice("lab", "--quick")
        self.assertEqual(result.returncode, 125)
        self.assertIn("bin/sluice-lab: No such file or directory", result.stderr)


if __name__ == "__main__":
    e2e_support.main()
