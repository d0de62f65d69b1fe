"""Every system call fails once, or ends its program, where a job's memory is on its way: of the broker while it moves a job to
another GPU, of the helper that makes the driver's checkpoint calls, and of a broker that starts with the journal of one before
it. Whatever fails, the command is answered or hung up on, and the job is where it is to be, all of it, and goes on.

    e2e_faults_moves.py INSTALLATION TRACER [unittest arguments]

The driver is a double, which keeps the state of each process in a file (tests/broker/devices/fake_checkpoint.cpp). What is not
made to fail: see e2e_faults.py.
"""

import e2e_support
from e2e_faults import BEGUN, KILLS, PID, SHORT_S, Control, TracedBroker
from e2e_support import *

RUNNING, CHECKPOINTED = 0, 2
QUANTUM = '[memory]\nswap_quantum = "50ms"\n'  # what has failed is tried again soon


class Driven(BrokerTest):
    """A job of two processes, and the states that the driver's double has them in."""

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="sluice-e2e-faults-"))
        self.addCleanup(shutil.rmtree, self.directory, True)
        (self.directory / "driver").mkdir()
        self.env = environment(FAKE_CHECKPOINT=str(self.directory / "driver"))

    def traced(self, armed=0):
        server = TracedBroker(self.directory, armed, QUANTUM, self.env)
        self.addCleanup(server.stop)
        return server

    def train(self, server):
        """A job of two processes that do what they are told."""
        job = self.job(server, "--name", "train", "--memory", "256MiB")
        job.ask("register")
        job.ask(f"claim 0 held {64 * MIB}")
        child = int(job.ask("fork-obey").split()[0])
        job.ask("obey")
        self.pids = sorted((int(job.ask("pid")), child))
        return job

    def driver_states(self):
        files = [self.directory / "driver" / str(pid) for pid in self.pids]
        return [int(file.read_text() or 0) if file.exists() else RUNNING for file in files]

    def row(self, server):
        rows = [tenant for tenant in server.tenants() if tenant["name"] == "train"]
        return rows[0] if len(rows) == 1 else None

    def commanded(self, server, data):
        """What became of a command: "done", its refusal, or "hung up"."""
        try:
            client = server.client()
            client.socket.settimeout(SHORT_S)
            try:
                reply = client.ask(data)
            finally:
                client.close()
        except socket.timeout:
            return "hangs"
        except OSError:
            return "hung up"
        if reply is None:
            return "hung up"
        return "done" if reply.kind == COMMAND_DONE else f"refused: {reply.text}"

    def settled(self, server, state, context):
        """The job is all there, or all away, and both its processes are known."""
        def is_so():
            row = self.row(server)
            wanted = RUNNING if state == "running" else CHECKPOINTED
            return (row is not None and row["state"] == state and row["unregistered"] == 0 and
                    sorted(p["pid"] for p in row["processes"]) == self.pids and self.driver_states() == [wanted] * 2)
        try:
            wait_until(f"{context}: the job is {state}", is_so)
        except AssertionError as fault:
            raise AssertionError(f"{fault}: {self.row(server)}, {self.driver_states()}, {server.said()[-1500:]}") from None

    def children(self, pid):
        return len(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


class Moving(Driven):
    def test_while_it_moves_a_job(self):
        server = self.traced()
        self.assertEqual(server.word, "ready\n", server.said())
        job = self.train(server)
        uuids = [gpu["uuid"] for gpu in server.status()["gpus"]]
        self.assertEqual(self.commanded(server, command(SUSPEND, 1)), "done")
        self.assertEqual(self.commanded(server, command(RESUME, 1)), "done")
        self.settled(server, "running", "at first")  # and what it keeps for helpers is there
        before = min(server.descriptors() for _ in range(20))
        outcomes = {"done": 0, "refused": 0, "hung up": 0}
        k = beyond = 0
        while beyond < 3:  # how many calls a move makes differs by some from one to the next
            k += 1
            there = uuids.index(self.row(server)["gpus"][0]["uuid"])
            to = bytes.fromhex(uuids[1 - there][4:].replace("-", ""))
            server.control.arm(k)
            word = self.commanded(server, command(MOVE, 1, to))
            number = server.control.failed()
            context = f"call {number}, the {k}th ({word})"
            self.assertIsNone(server.process.poll(), f"{context} ended it: {server.said()[-1500:]}")
            outcomes[word.split(":")[0]] += 1  # a KeyError is a hang
            self.settled(server, "running", context)
            now = uuids.index(self.row(server)["gpus"][0]["uuid"])
            if word == "done":
                self.assertEqual(now, 1 - there, context)
            if number is None:
                self.assertEqual(word, "done", context)
                beyond += 1
                continue
            wait_until(f"everything is given back after {context}", lambda: server.descriptors() <= before)
            wait_until(f"no helper is left after {context}", lambda: self.children(server.control[PID]) <= 1)
        print(f"{k - beyond} calls failed once each: {outcomes}", flush=True)
        self.assertGreater(k - beyond, 60, "there were calls to fail")
        self.assertGreater(outcomes["refused"], 3, "of what cannot be done that is said")
        job.ask("want 0")
        wait_until("it goes on", job.is_open)
        self.assertEqual(server.stop(), 0)

    # ---- the helper

    def with_traced_helper(self):
        """A broker that is not traced; its helper is."""
        installation = self.directory / "installation"
        shutil.copytree(e2e_support.INSTALLATION, installation)
        helper = installation / "bin" / "sluice-checkpoint"
        real = helper.with_name("helper")
        helper.rename(real)
        control = Control(self.directory)
        control[BEGUN] = 1
        helper.write_text(f'#!/bin/sh\nexec "{TracedBroker.TRACER}" "{control.path}" - "{real}" "$@" 2>/dev/null\n')
        helper.chmod(0o755)
        usual, e2e_support.INSTALLATION = e2e_support.INSTALLATION, installation
        self.addCleanup(lambda: setattr(e2e_support, "INSTALLATION", usual))
        server = self.broker(QUANTUM, env={**self.env, "LD_LIBRARY_PATH": str(installation / "lib/softgpu")})
        server.said = server.log
        return server, control

    def helper_life(self, kills, verb):
        server, control = self.with_traced_helper()
        control[KILLS] = kills
        job = self.train(server)
        outcomes = {"done": 0, "refused": 0}
        k = 0
        while True:
            k += 1
            if verb == RESUME:
                self.assertEqual(self.commanded(server, command(SUSPEND, 1)), "done")
            control.arm(k)
            word = self.commanded(server, command(verb, 1))
            number = control.failed()
            context = f"call {number}, the {k}th ({word})"
            outcomes[word.split(":")[0]] += 1
            if verb == SUSPEND:
                self.settled(server, "suspended" if word == "done" else "running", context)
                if word == "done":
                    self.assertEqual(self.commanded(server, command(RESUME, 1)), "done", context)
            self.settled(server, "running", context)  # what is not resumed at once is soon
            if number is None:
                self.assertEqual(word, "done", context)
                break
        print(f"{k - 1} calls, one each time: {outcomes}", flush=True)
        self.assertGreater(k, 50, "there were calls")
        self.assertGreater(outcomes["refused"], 3)
        self.assertLessEqual(self.children(server.process.pid), 1, "no helper is left")
        job.ask("want 0")
        wait_until("it goes on", job.is_open)

    def test_calls_of_a_helper_that_takes_fail(self):
        self.helper_life(0, SUSPEND)

    def test_calls_of_a_helper_that_returns_fail(self):
        self.helper_life(0, RESUME)

    def test_a_helper_that_takes_is_killed_at_every_call(self):
        self.helper_life(1, SUSPEND)

    def test_a_helper_that_returns_is_killed_at_every_call(self):
        self.helper_life(1, RESUME)

    # ---- the journal

    def test_while_it_takes_over_a_job(self):
        """A broker that starts with a journal ends with a sentence or goes on; no job of it is forgotten."""
        server = self.traced()
        self.assertEqual(server.word, "ready\n", server.said())
        self.train(server)
        self.settled(server, "running", "at first")
        key = self.row(server)["tenant"]
        k = ended = went_on = 0
        while True:
            k += 1
            os.kill(server.control[PID], signal.SIGKILL)
            server.process.wait()
            server.errors.close()
            server.control.arm(k)
            server.start()
            number = server.control.failed()
            context = f"call {number}, the {k}th of the start"
            if server.word == "ready\n" or server.process.poll() is None and number == 1:
                went_on += 1
            else:
                ended += 1
                self.assertIn(server.process.wait(PATIENCE_S), range(1, 128), f"{context}: {server.said()[-800:]}")
                self.assertIn("sluice: ", server.word + server.said(), context)
                server.errors.close()
                server.start()
                self.assertEqual(server.word, "ready\n", f"{context}: the next one starts")
            self.settled(server, "running", context)
            self.assertEqual(self.row(server)["tenant"], key, context)
            if number is None:
                break
        print(f"{ended} times it ended with a sentence, {went_on} times it went on", flush=True)
        self.assertGreater(k, 40, "there were calls to fail")


if __name__ == "__main__":
    TracedBroker.TRACER = sys.argv.pop(2)
    e2e_support.main()
