"""What a waiter is told: the sum that is full, its numbers, and which job has most of it; and why a job does not run."""

import os
import pty
import signal
import time

import e2e_support
from e2e_support import *


class Waits(BrokerTest):
    def run_on(self, server, *arguments, **settings):
        return self.sluice("run", "--socket", server.socket, *arguments, **settings)

    def named(self, server):
        wait_until("its user's name is known", lambda: all(t["user"] == ME for t in server.tenants()))

    def full(self, config=""):
        """A broker whose GPUs a job has in full by its quota, and by little more than a context in promises."""
        server = self.broker("[memory]\n" + config)
        job = self.job(server, "--memory", "4GiB", "--memory-min", "32MiB", "--swap", "--gpus", "2", "--name", "notebook")
        self.named(server)
        return server, job

    def test_the_sum_of_quotas_and_who_has_it(self):
        server, job = self.full()
        says = f"the quotas on GPU 0 add up to 4 GiB of 4 GiB, and this job asks for 1 GiB; job 1 (notebook) of user {ME} has all of it: 4 GiB; " \
               "1 more GPU has no room for it"
        refused = self.run_on(server, "--memory", "1G", "--no-wait", "--", "true")
        self.assertEqual(refused.returncode, 124)
        self.assertIn(says, refused.stderr)
        waiting = self.client(server).ask(admit(memory=GIB, name=b"later"))
        self.assertEqual(waiting.text, says)
        status = self.sluice("status", "--socket", server.socket).stdout
        self.assertIn("1st later: the quotas on GPU 0 add up to 4 GiB of 4 GiB", status)
        self.assertNotIn("START", status)
        for line in status[status.index("1st later:"):].split("\n\n")[0].splitlines():
            self.assertLessEqual(len(line), 80)
        [queued] = [t for t in server.tenants() if t["state"] == "queued"]
        self.assertEqual(queued["why"], says)
        self.assertEqual(self.client(server).ask(admit(memory=GIB, name=b"last")).ahead, f"later of {ME}".encode())
        status = self.sluice("status", "--socket", server.socket).stdout
        self.assertRegex(status, rf"(?m)^2nd +last .* later of {ME}$")
        self.assertIn("1st to 2nd: the quotas on GPU 0", status)

    def test_idle_or_not(self):
        server, job = self.full()
        job.ask("register")
        client = self.client(server)
        client.ask(admit(memory=GIB, name=b"later"))
        why = lambda: [t for t in server.tenants() if t["state"] == "queued"][0]["why"]  # noqa: E731
        wait_until("it has been idle for a while", lambda: re.search(r": 4 GiB, idle for \d+ s; 1 more GPU has no room for it$", why()))
        job.ask("claim 0 busy 1000000000")
        wait_until("it works", lambda: why().endswith(": 4 GiB, in use; 1 more GPU has no room for it"))

    def test_promises(self):
        server = self.broker("[memory]\noversell = 2.0\n")
        self.job(server, "--memory", "3GiB", "--gpus", "2", "--name", "fixed")
        self.named(server)
        refused = self.run_on(server, "--memory", "2G", "--no-wait", "--", "true")
        self.assertIn("of 4 GiB on GPU 0, 3 GiB is promised, and this job asks for 2 GiB; job 1 (fixed)", refused.stderr)

    def test_a_terminal_of_80_columns(self):
        server, _ = self.full()
        main, other = pty.openpty()
        waiting = subprocess.Popen([program("sluice"), "run", "--socket", server.socket, "--timeout", "300ms", "--memory", "1GiB",
                                    "--", "true"], env=environment(), stderr=other)
        os.close(other)
        self.assertEqual(waiting.wait(PATIENCE_S), 124)
        text = os.read(main, 8192).decode().replace("\r\n", "\n")
        os.close(main)
        self.assertTrue(text.startswith("\r\x1b[Ksluice: no room yet: the quotas on GPU 0"), text)
        shown = text.split("\nsluice: it waited")[0].replace("\r\x1b[K", "\n")
        for line in shown.splitlines():
            self.assertLess(len(line), 80, text)

    def test_a_drain_by_whom_why_and_until_when(self):
        server = self.broker("[memory]\n")
        self.job(server, "--memory", "64M", "--gpu", "0", "--name", "old")
        gpu = ("--gpu", "0", "--socket", server.socket)
        result = self.sluice("drain", *gpu, "--reason", "new fans", "--until", "23h")
        self.assertRegex(result.stdout, r"^GPU 0 takes no new jobs until (\d\d\d\d-\d\d-\d\d )?\d\d:\d\d \(new fans\); 1 job stays until it ends\n$",
                         result.stderr)
        says = rf"drained by user {ME} \(new fans\), until (\d\d\d\d-\d\d-\d\d )?\d\d:\d\d"
        wait_until("its user's name is known", lambda: ME in server.status()["gpus"][0]["drain"])
        refused = self.run_on(server, "--memory", "64M", "--gpu", "0", "--no-wait", "--", "true")
        self.assertEqual(refused.returncode, 124)
        self.assertRegex(refused.stderr, "GPU 0 is " + says)
        status = self.sluice("status", "--socket", server.socket).stdout
        self.assertRegex(status, r"(?m)^\[0\] .* draining ")
        # A day that is not today's makes the line too long for 80 columns.
        self.assertRegex(" ".join(status.split()), "GPU 0: " + says + "; 1 job is still on it")
        self.assertEqual(server.status()["gpus"][0]["drained"], False)
        self.sluice("drain", "--gpu", "1", "--socket", server.socket)
        status = self.sluice("status", "--socket", server.socket).stdout
        self.assertRegex(status, r"(?m)^\[1\] .* drained ")
        self.assertIn("nothing is left on it", status)
        self.assertEqual(server.status()["gpus"][1]["drained"], True)

    def test_a_drain_is_over_by_itself(self):
        server = self.broker()
        self.sluice("drain", "--gpu", "0", "--socket", server.socket, "--until", "1s")
        client = self.client(server)
        uuid = server.status()["gpus"][0]["uuid"]
        reply = client.ask(admit(pinned=(bytes.fromhex(uuid[4:].replace("-", "")),)))
        if reply.kind == QUEUED:
            reply = client.receive()
        self.assertEqual(reply.kind, ADMITTED)
        self.assertIn("event=drain_over", server.log())

    def test_a_drain_is_remembered_with_its_reason(self):
        state = pathlib.Path(tempfile.mkdtemp(prefix="sluice-e2e-"))
        self.addCleanup(shutil.rmtree, state, True)
        server = self.broker(options=["--state", str(state / "state")])
        self.sluice("drain", "--gpu", "0", "--socket", server.socket, "--reason", "new fans", "--until", "23h")
        server.kill()
        server.start()
        self.assertRegex(server.status()["gpus"][0]["drain"], r"\(new fans\), until ")

    def test_ended_jobs_are_remembered(self):
        server = self.broker()
        for n in range(102):
            self.assertEqual(self.run_on(server, "--memory", "64M", "--name", f"short{n}", "--", "true").returncode, 0)
        wait_until("they are over", lambda: not server.tenants())
        ended = server.status()["ended"]
        self.assertEqual([one["name"] for one in ended], [f"short{n}" for n in range(101, 1, -1)], "the latest first")
        self.assertEqual({one["how"] for one in ended}, {"its processes ended"})

    def test_how_a_job_ended_as_far_as_it_can_be_known(self):
        server = self.broker()
        killed = self.job(server, "--name", "killed")
        killed.ask("register")
        pid = killed.process.pid
        killed.kill()
        wait_until("it is over", lambda: not server.tenants())
        [ended] = server.status()["ended"]
        self.assertRegex(ended["how"], rf"^its processes ended, process {pid} \(\S+\) without a goodbye: killed or crashed by a "
                                       r"signal, or by _exit\(\); the shell that started it knows which$")

    def test_an_idle_job_is_called_so_wherever_it_is_named(self):
        server, job = self.full()
        job.ask("register")
        wait_until("it is idle", lambda: server.tenants()[0]["idle_ns"] >= 5 * 10**9)
        refused = self.run_on(server, "--memory", "2GiB", "--no-wait", "--", "true")
        self.assertRegex(refused.stderr, r"idle\s+for\s+\d+\s+s")
        self.assertRegex(self.sluice("status", "--socket", server.socket).stdout, r"(?m) idle \d+ s$")

    @unittest.skipUnless(os.geteuid() == 0, "only root can act as another user")
    def test_who_suspended_a_job_is_said_if_it_was_not_its_user(self):
        state = pathlib.Path(tempfile.mkdtemp(prefix="sluice-e2e-"))
        self.addCleanup(shutil.rmtree, state, True)
        server = self.broker(options=["--state", str(state / "state")], open_to_all=True)
        job = subprocess.Popen([program("sluice"), "run", "--socket", server.socket, "--memory", "64M", "--swap", "--name", "train", "--",
                                "sleep", "600"], env=environment(), user=65534, cwd="/", stdin=subprocess.DEVNULL)
        self.addCleanup(lambda: (job.kill(), job.wait()))
        wait_until("it runs", server.tenants)
        self.assertEqual(self.sluice("suspend", "train", "--socket", server.socket).returncode, 0)
        says = "it is suspended by user root: its GPU memory is on the host"
        wait_until("it is said", lambda: says in server.tenants()[0]["why"])
        server.kill()
        server.start()
        wait_until("the next broker says so, too", lambda: says in server.tenants()[0]["why"])
        for verb in ("resume", "suspend"):
            self.assertEqual(self.sluice(verb, "train", "--socket", server.socket, user=65534, cwd="/").returncode, 0)
        self.assertIn("it is suspended: its GPU", server.tenants()[0]["why"])

    def test_the_example_of_suspend_works_as_printed(self):
        server = self.broker(env=environment(FAKE_GPUS="1"))
        run, example = re.search(r"(?m)^  sluice run (.*) -- .* &\n  (sluice suspend train && .*)$", self.sluice("suspend", "--help").stdout).groups()
        self.job(server, *run.split())
        env = environment(SLUICE_SOCKET=str(server.socket), PATH=os.environ["PATH"] + ":" + os.path.dirname(program("sluice")))
        script = example.replace("sluice run", "sluice run --no-wait").replace("./quick_look", "echo looked")
        result = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"^train \(job 1\) is suspended; .*\nlooked\ntrain \(job 1\) goes on; ")

    def test_a_suspended_job_says_so(self):
        server = self.broker()
        self.job(server, "--memory", "64M", "--swap", "--name", "train")
        self.assertEqual(self.sluice("suspend", "train", "--socket", server.socket).returncode, 0)
        [job] = server.tenants()
        self.assertIn("it is suspended: its GPU memory is on the host", job["why"])
        self.assertIn("job 1 train: it is suspended", self.sluice("status", "--socket", server.socket).stdout)


if __name__ == "__main__":
    e2e_support.main()
