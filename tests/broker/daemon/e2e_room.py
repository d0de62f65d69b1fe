"""Making room as a shim sees it: holds, orders, moves, memory wanted; and the commands of people. The programs act as the
shim does (e2e_program.py); what really moves is tested in tests/oversubscription."""

import os
import re
import signal

import e2e_support
from e2e_restart import Remembering
from e2e_support import *

SET, OUT, IN = 1, 2, 4
OTHER_UID = 65534


class Movers(Remembering):
    """Jobs that can be moved, and the steps of a move."""

    def uuid(self, server, gpu):
        return bytes.fromhex(server.status()["gpus"][gpu]["uuid"][4:].replace("-", ""))

    def mover(self, server, name, held=600, movable=500, memory="2GiB", swap=True):
        job = self.job(server, "--name", name, *(["--swap"] if swap else []), "--memory", memory, "--gpu", "0")
        job.ask("register")
        self.claim(job, held=held, movable=movable)
        return job

    def claim(self, job, gpu=0, **figures):
        for field, mib in figures.items():
            job.ask(f"claim {gpu} {field} {mib * MIB}")

    def wait_hold(self, job, flags, gpu=0):
        wait_until(f"the hold has the flags {flags}", lambda: job.hold(gpu) & 7 == flags)

    def hold(self, job, gpu=0):
        """The program stops."""
        wait_until("the hold is set", lambda: job.hold(gpu) & SET)
        if job.word(gpu) & OPEN == 0:
            job.ask(f"drain {gpu}")
        job.ask(f"held {gpu}")

    def put_out(self, job, mib=500):
        self.hold(job)
        self.wait_hold(job, SET | OUT)
        self.claim(job, swapped=mib)
        job.ask(f"moved 0 0 {mib * MIB}")

    def put_in(self, job, mib=500):
        self.wait_hold(job, SET | IN)
        self.claim(job, swapped=0)
        job.ask(f"moved 0 0 {mib * MIB}")

    def started(self, *arguments):
        """`sluice` in the background."""
        process = subprocess.Popen([program("sluice"), *map(str, arguments)], env=environment(), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stdout.close(), process.stderr.close()))
        return process

    def ended(self, process):
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err

    def row(self, server, name):
        [row] = [tenant for tenant in server.tenants() if tenant["name"] == name]
        return row

    def suspended(self, server, job, name):
        command = self.started("suspend", "--socket", server.socket, name)
        self.put_out(job)
        self.assertEqual(self.ended(command)[0], 0)

    def state_of(self, server, name):
        return self.row(server, name)["state"]


class Suspending(Movers):
    def test_out_and_back(self):
        server = self.broker()
        job = self.mover(server, "train")
        self.assertEqual(job.ask("flags 0"), "1", "it is told that its memory is to be movable")
        command = self.started("suspend", "--socket", server.socket, "train")
        self.put_out(job)
        code, out, err = self.ended(command)
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"^train \(job 1\) is suspended; 500 MiB moved in \d+\.\d s\n$")
        row = self.row(server, "train")
        part = row["gpus"][0]
        self.assertEqual((row["state"], part["movable_bytes"], part["swapped_bytes"], part["moved_out_bytes"], part["moves"]),
                         ("suspended", 500 * MIB, 500 * MIB, 500 * MIB, 1))
        self.assertEqual((row["stays"], part["not_movable"]["bytes"]), ("", 100 * MIB))
        self.assertEqual(server.status()["gpus"][0]["held_bytes"], 100 * MIB)
        self.assertIn("suspended, 500 MiB out", self.sluice("status", "--socket", server.socket).stdout)
        job.ask("want 0")
        self.assertFalse(job.is_open(), "work waits for the command that ends it")
        self.assertEqual(self.sluice("suspend", "--socket", server.socket, "train").returncode, 0, "it is so already")
        command = self.started("resume", "--socket", server.socket, 1)
        self.put_in(job)
        self.assertRegex(self.ended(command)[1], r"^train \(job 1\) goes on; 500 MiB moved in ")
        wait_until("the hold is over", lambda: job.hold() & SET == 0)
        wait_until("it has its turn", job.is_open)
        self.assertEqual((self.state_of(server, "train"), self.row(server, "train")["gpus"][0]["swapped_bytes"]), ("running", 0))
        log = server.log()
        for line in (r"event=command request=\d+ verb=suspend tenant=1 uid=\d+ pid=\d+", r"event=hold .*name=train .*order=out",
                     r"event=moved tenant=1 name=train pid=\d+ gpu=\S+ epoch=\d+ order=out result=0 bytes=524288000 ms=",
                     r"event=stay tenant=1 name=train suspended=yes swapped=yes", r"event=command_done request=\d+ code=0 "
                     r"bytes=524288000", r"event=moved .*order=in", r"event=stay .*suspended=no swapped=no"):
            self.assertRegex(log, line)

    def test_a_program_that_cannot_move_goes_on(self):
        server = self.broker()
        job = self.mover(server, "train")
        command = self.started("suspend", "--socket", server.socket, "train")
        self.hold(job)
        self.wait_hold(job, SET | OUT)
        job.ask("moved 0 -1 0")
        self.put_in(job, 0)  # all of the job are asked back in, whether or not they had left
        code, out, err = self.ended(command)
        self.assertEqual((code, out), (1, ""))
        self.assertRegex(err, r"^sluice: .*train")
        wait_until("the hold is over", lambda: job.hold() & SET == 0)
        job.ask("want 0")
        wait_until("it has its turn", job.is_open)
        self.assertIn("event=move_failed", server.log())

    def test_a_process_without_a_connection_is_read_from_its_slot(self):
        server = self.broker()
        job = self.mover(server, "train")
        job.ask("detach")
        command = self.started("suspend", "--socket", server.socket, "train")
        self.put_out(job)
        self.assertEqual(self.ended(command)[0], 0)

    def test_the_death_of_its_process_ends_a_move(self):
        server = self.broker()
        job = self.mover(server, "train")
        command = self.started("suspend", "--socket", server.socket, "train")
        self.hold(job)
        self.wait_hold(job, SET | OUT)
        job.kill()
        self.ended(command)
        wait_until("nobody is left", lambda: server.tenants() == [])

    def test_one_that_comes_during_a_hold_is_waited_for(self):
        server = self.broker()
        job = self.mover(server, "train")
        child = self.job(server, "--name", "other")  # its slot in the other tenant is not looked at
        child.ask("register")
        self.suspended(server, job, "train")
        self.assertEqual(child.hold(), 0, "nobody else is held")


class Commands(Movers):
    def test_who_and_what_is_refused(self):
        server = self.broker()
        self.mover(server, "train")
        for arguments, code, text in (
                (("suspend", "trian"), 1, "there is no job 'trian'; did you mean 'train'?"),
                (("suspend",), 2, "suspend takes a job"),
                (("drain", "--gpu", "9"), 1, "there is no GPU 9"),
                (("move", "train"), 2, "move takes --gpu"),
                (("move", "train", "--gpu", "9"), 1, "there is no GPU 9")):
            with self.subTest(arguments):
                result = self.sluice(arguments[0], "--socket", server.socket, *arguments[1:])
                self.assertEqual((result.returncode, result.stdout), (code, ""))
                self.assertIn(text, result.stderr)
        self.assert_refused(self.client(server).ask(command(SUSPEND, 99)), UNKNOWN_TENANT)
        self.assert_refused(self.client(server).ask(command(DRAIN, gpu=b"\x77" * 16)), NO_SUCH_GPU)
        job = self.job(server, "--class", "exclusive", "--gpu", "1", "--name", "whole")
        self.assertEqual(self.sluice("suspend", "--socket", server.socket, "whole").returncode, 1)
        job.kill()

    def test_no_more_host_memory_than_the_user_may_have(self):
        server = self.broker('[memory]\nswap_host_max = "600MiB"\n')
        job, other = self.mover(server, "train"), self.mover(server, "other")
        self.suspended(server, job, "train")
        result = self.sluice("suspend", "--socket", server.socket, "other")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertRegex(result.stderr, r"^sluice: moving 500 MiB to the host would take user \S+ beyond the 600 MiB")
        self.assertEqual((other.hold(), self.state_of(server, "other")), (0, "running"))
        self.assertEqual(self.row(server, "other")["stays"], "host memory limit")
        self.assertRegex(self.sluice("status", "--socket", server.socket).stdout,
                         r"job 2 other on GPU \d: all of its 600 MiB stays \(host memory limit\)\n")

    def test_help_teaches(self):
        for word in ("suspend", "resume", "move", "drain", "undrain"):
            result = self.sluice(word, "--help")
            self.assertEqual(result.returncode, 0)
            self.assertRegex(result.stdout, r"^usage: sluice ")
            self.assertIn(f"sluice {word} ", result.stdout)
            self.assertIn("exit codes: 0 done, 1 refused", result.stdout)

    def test_an_asker_that_leaves_changes_nothing(self):
        server = self.broker()
        job = self.mover(server, "train")
        command = self.started("suspend", "--socket", server.socket, "train")
        self.hold(job)
        command.send_signal(signal.SIGINT)
        code, _, err = self.ended(command)
        self.assertEqual(code, 130)
        self.assertIn("the broker goes on with it", err)
        self.wait_hold(job, SET | OUT)
        self.claim(job, swapped=500)
        job.ask(f"moved 0 0 {500 * MIB}")
        wait_until("it is suspended", lambda: self.row(server, "train")["gpus"][0]["moved_out_bytes"] == 500 * MIB)
        self.assertEqual(self.state_of(server, "train"), "suspended")

    def test_one_at_a_time(self):
        server = self.broker()
        job = self.mover(server, "train")
        client = self.client(server)
        client.send(command(SUSPEND, 1))
        wait_until("it is under way", lambda: job.hold() & SET)
        self.assert_refused(self.client(server).ask(command(RESUME, 1)), CANNOT_MOVE)
        self.assert_refused(client.ask(command(RESUME, 1)), MALFORMED)
        self.assertIsNone(client.receive())

    @unittest.skipUnless(os.getuid() == 0, "only root can become another user")
    def test_other_peoples_jobs(self):
        server = self.broker(open_to_all=True)
        os.chmod(server.socket, 0o666)
        self.mover(server, "train")
        for data, code in ((command(SUSPEND, 1), NOT_ALLOWED), (command(DRAIN, gpu=self.uuid(server, 0)), NOT_ALLOWED)):
            self.assertEqual(self.as_other(server, data), code)
        self.assertEqual(self.state_of(server, "train"), "running")

    def as_other(self, server, data):
        """The code of the refusal that another user gets; 255 = it was not refused."""
        child = os.fork()
        if child == 0:
            os.setuid(OTHER_UID)
            client = server.client()
            reply = client.ask(data)
            client.close()
            os._exit(reply.code if reply is not None and reply.kind == REFUSED else 255)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def test_progress_on_a_terminal(self):
        server = self.broker()
        job = self.mover(server, "train")
        main, other = os.openpty()
        command = subprocess.Popen([program("sluice"), "suspend", "--socket", str(server.socket), "train"], env=environment(),
                                   stdout=subprocess.PIPE, stderr=other, text=True)
        self.addCleanup(lambda: (command.kill(), command.wait(), command.stdout.close()))
        os.close(other)
        self.hold(job)
        self.wait_hold(job, SET | OUT)
        self.claim(job, swapped=200)
        text = ""
        while "200 MiB of 500 MiB out" not in text:
            self.assertTrue(select.select([main], [], [], PATIENCE_S)[0], text)
            text += os.read(main, 4096).decode()
        self.assertIn("\r\x1b[Ksluice: suspending train: ", text)
        job.ask(f"moved 0 0 {500 * MIB}")
        self.assertEqual(command.wait(PATIENCE_S), 0)
        os.close(main)


class Draining(Movers):
    def test_a_drained_gpu_takes_nobody_new(self):
        server = self.broker()
        stays = self.job(server, "--gpu", "0")
        stays.ask("register")
        self.assertEqual(self.sluice("drain", "--socket", server.socket, "--gpu", "0").stdout,
                         "GPU 0 takes no new jobs; 1 job stays until it ends\n")
        self.assertTrue(server.status()["gpus"][0]["draining"])
        stays.ask("want 0")
        wait_until("who is there goes on", stays.is_open)
        waiting = self.job(server, "--gpu", "0", start=False)
        wait_until("it waits", lambda: [t["reason"] for t in server.tenants() if t["state"] == "queued"] == ["Drain"])
        self.job(server).ask("register")  # the other GPU is open
        self.assertEqual(self.sluice("undrain", "--socket", server.socket, "--gpu", "0").stdout,
                         "GPU 0 takes new jobs again\n")
        self.assertEqual(waiting.ask("hello"), "hello")

    def test_a_list_of_gpus_is_drained_whole_or_not_at_all(self):
        server = self.broker()
        drained = lambda: [gpu["draining"] for gpu in server.status()["gpus"]]
        for wrong in ("0,9", "0,"):
            result = self.sluice("drain", "--socket", server.socket, "--gpu", wrong)
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertIn("there is no GPU", result.stderr)
        self.assertEqual(drained(), [False, False])
        self.assertEqual(self.sluice("drain", "--socket", server.socket, "--gpu", "0,1").stdout.count(" takes no new jobs"), 2)
        self.assertEqual(drained(), [True, True])
        self.assertEqual(self.sluice("undrain", "--socket", server.socket, "--gpu", "1,0").stdout,
                         "GPU 1 takes new jobs again\nGPU 0 takes new jobs again\n")
        self.assertEqual(drained(), [False, False])


class Losses(BrokerTest):
    def test_a_gpu_that_is_lost_ends_its_jobs_and_takes_no_more(self):
        place = pathlib.Path(tempfile.mkdtemp(prefix="sluice-e2e-"))
        self.addCleanup(shutil.rmtree, place)
        word = place / "lost"
        server = self.broker(env=environment(FAKE_LOST_FILE=str(word)))
        here, there = self.job(server, "--gpu", "0"), self.job(server, "--gpu", "1")
        here.ask("register")
        there.ask("register")
        uuid = server.status()["gpus"][0]["uuid"]
        word.write_text("0")
        wait_until("it is seen", lambda: server.status()["gpus"][0]["lost"])
        wait_until("its job has ended", lambda: [t["gpus"][0]["uuid"] != uuid for t in server.tenants()] == [True])
        self.assertEqual(here.process.wait(PATIENCE_S), -signal.SIGKILL)
        self.assertRegex(server.log(), rf"event=gpu_lost gpu={uuid}")
        self.assertRegex(server.log(), rf"event=job_lost tenant=1 \S+ gpu={uuid}")
        reply = self.client(server).ask(admit(pinned=(bytes.fromhex(uuid[4:].replace("-", "")),)))
        self.assert_refused(reply, NO_SUCH_GPU)
        self.assertIn(f"GPU 0 ({uuid}) no longer answers", reply.text)
        self.assertIn("LOST, takes no jobs", self.sluice("status", "--socket", server.socket).stdout)
        doctor = self.sluice("doctor", "--socket", server.socket)
        self.assertRegex(doctor.stdout, rf"FAIL +broker .*lost: GPU 0 \({uuid}\)")
        there.ask("want 0")
        wait_until("the other GPU goes on", there.is_open)
        self.job(server).ask("register")
        self.assertFalse(server.status()["gpus"][1]["lost"])


class Room(Movers):
    """One GPU of 4 GiB, sold twice over."""

    def crowded(self):
        return self.broker('[memory]\noversell = 4.0\nswap_quantum = "50ms"\n')

    def test_an_idle_job_makes_room(self):
        server = self.crowded()
        idle = self.mover(server, "idle", held=3000, movable=2900, memory="3GiB")
        wants = self.mover(server, "wants", held=100, movable=60, memory="3GiB")
        wants.ask(f"memory 0 {2000 * MIB}")
        self.put_out(idle, 2900)
        wait_until("the answer is yes", lambda: wants.ask("room 0") == "2")
        self.claim(wants, held=2100, movable=2060)
        self.assertEqual(self.state_of(server, "idle"), "swapped")
        idle.ask("want 0")  # it has work again: the other, idle by now, goes
        self.put_out(wants, 2060)
        self.put_in(idle, 2900)
        wait_until("it has its turn", idle.is_open)
        self.assertEqual(self.state_of(server, "wants"), "swapped")

    def test_no_room_can_be_made(self):
        server = self.crowded()
        self.mover(server, "stays", held=3000, movable=0, memory="3GiB", swap=False)
        wants = self.mover(server, "wants", held=100, movable=60, memory="1GiB")
        wants.ask(f"memory 0 {2000 * MIB}")
        wait_until("the answer is no", lambda: wants.ask("room 0") == "3")
        self.assertRegex(server.log(), r"event=room tenant=2 gpu=\S+ made=no")

    def test_lies_move_nobody(self):
        server = self.crowded()
        honest = self.mover(server, "honest", held=1000, movable=900)
        liar = self.mover(server, "liar", held=1 << 20, movable=1 << 20)
        self.claim(liar, swapped=1 << 20)
        part = self.row(server, "liar")["gpus"][0]
        self.assertEqual(part["swapped_bytes"], 0, "nobody has told it to go out")
        self.assertLessEqual(part["movable_bytes"], 4 * GIB)
        self.assertLessEqual(server.status()["gpus"][0]["held_bytes"], 4 * GIB)
        honest.ask(f"memory 0 {100 * MIB}")
        wait_until("it is answered, or the liar is asked to go", lambda: honest.ask("room 0") != "0" or liar.hold() & SET)
        self.assertEqual(honest.hold(), 0)

    def test_wants_without_allocations_move_a_neighbour_once(self):
        """The device shows room for what the liar wants again and again; it is believed once in ten swap quanta."""
        server = self.broker('[memory]\noversell = 4.0\nswap_quantum = "1s"\n')
        honest = self.mover(server, "honest", held=1000, movable=900)
        liar = self.mover(server, "liar", held=0, movable=0)
        wait_until("the device has given its figure", lambda: "event=device_used" in server.log())
        time.sleep(0.2)  # idle for a tenth of the quantum
        self.wants_for(liar, 0.1, gap_s=0.15)
        self.assertEqual((liar.ask("room 0"), honest.hold()), ("2", 0), "there is room: the device says so")
        moved = 0
        end = time.monotonic() + 4
        while time.monotonic() < end:
            self.wants_for(liar, 0.1)
            if honest.hold() & SET:
                moved += 1
                self.put_out(honest, 900)
                honest.ask("want 0")
                self.put_in(honest, 900)
                wait_until("the hold is over", lambda: honest.hold() & SET == 0)
        self.assertLessEqual(moved, 1)

    def wants_for(self, liar, seconds, gap_s=0.01):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            liar.ask(f"memory 0 {2000 * MIB}")
            time.sleep(gap_s)

    def test_a_move_that_nobody_ordered_is_no_message(self):
        server = self.crowded()
        job = self.mover(server, "job")
        job.ask(f"moved 0 0 {MIB}")
        wait_until("the broker has closed the connection", lambda: job.ask("closed") == "True")
        self.assertEqual((self.state_of(server, "job"), self.row(server, "job")["gpus"][0]["moves"]), ("running", 0))


class Policies(Movers):
    def test_whose_memory_may_be_moved(self):
        server = self.broker('[memory]\nswap = "on"\n')
        plain = self.mover(server, "plain", swap=False)
        self.assertEqual(plain.ask("flags 0"), "1")
        whole = self.job(server, "--class", "exclusive", "--gpu", "1")
        whole.ask("register")
        self.assertEqual(whole.ask("flags 0"), "0")
        server.config_write('[memory]\nswap = "off"\n[profile.default]\nswap = false\n')
        server.process.send_signal(signal.SIGHUP)
        wait_until("it is read", lambda: server.status()["broker"]["reloads_ok"] == 1)
        reply = self.client(server).ask(admit(flags=SWAP))
        self.assert_refused(reply, NOT_ALLOWED)
        self.assertIn("leave --swap out", reply.text)
        later = self.mover(server, "later", swap=False)
        self.assertEqual((later.ask("flags 0"), plain.ask("flags 0")), ("0", "1"), "who runs stays what it is")

    def test_a_whole_gpu_job_waits_or_puts_away(self):
        server = self.broker('[scheduler]\nexclusive = "suspend"\n')
        job = self.mover(server, "shared")
        whole = self.client(server)
        whole.send(admit(memory=0, tenant_class=EXCLUSIVE, pinned=(bytes.fromhex("0" * 12 + "4000" + "8" + "0" * 15),)))
        self.assertEqual(whole.receive().kind, QUEUED)
        self.put_out(job)
        self.assertEqual(whole.receive().kind, ADMITTED)
        self.assertEqual(self.state_of(server, "shared"), "suspended")


class Restarting(Movers):
    def test_a_drain_is_known_to_the_next_broker(self):
        server = self.remembering()
        self.sluice("drain", "--socket", server.socket, "--gpu", "1")
        self.restart(server)
        self.assertEqual([gpu["draining"] for gpu in server.status()["gpus"]], [False, True])
        reply = self.client(server).ask(admit(pinned=(self.uuid(server, 1),), flags=NO_WAIT))
        self.assert_refused(reply, NO_ROOM)
        self.sluice("undrain", "--socket", server.socket, "--gpu", "1")
        self.restart(server)
        self.assertEqual([gpu["draining"] for gpu in server.status()["gpus"]], [False, False])

    def test_a_suspended_job_is_so_for_the_next_broker(self):
        server = self.remembering()
        job = self.mover(server, "train")
        self.suspended(server, job, "train")
        self.restart(server)
        self.assertEqual(self.state_of(server, "train"), "suspended")
        job.ask("register")
        self.assertEqual(job.hold() & 7, SET | OUT, "its new page says so before it can look")
        self.assertEqual(job.ask("flags 0"), "1")
        self.claim(job, held=600, movable=500, swapped=500)
        self.put_out(job)
        self.assertEqual(self.row(server, "train")["gpus"][0]["swapped_bytes"], 500 * MIB)
        command = self.started("resume", "--socket", server.socket, "train")
        self.put_in(job)
        self.assertEqual(self.ended(command)[0], 0)
        wait_until("the hold is over", lambda: job.hold() & SET == 0)

    def test_a_wait_for_a_drain_is_said_and_no_part_of_the_move(self):
        server = self.remembering()
        job = self.mover(server, "train")
        self.suspended(server, job, "train")
        self.restart(server)
        self.sluice("drain", "--socket", server.socket, "--gpu", "0", "--reason", "new fans")
        job.ask("register")
        command = self.started("resume", "--socket", server.socket, "train")
        self.claim(job, held=600, movable=500, swapped=500)
        self.put_out(job)  # the next broker is told once more what is out: it is no part of the way back
        asked = time.monotonic()
        said = command.stderr.readline() + command.stderr.readline()
        self.assertRegex(said, r"^sluice: train: it waits in the queue to get its GPU back: GPU 0 is drained by\s")
        self.assertIn("(new fans)", said)
        time.sleep(max(0, asked + 2.5 - time.monotonic()))
        self.sluice("undrain", "--socket", server.socket, "--gpu", "0")
        self.put_in(job)
        code, out, err = self.ended(command)
        self.assertEqual((code, err), (0, ""), "it is said once")
        match = re.fullmatch(r"train \(job 1\) goes on; 500 MiB moved in (\d+\.\d) s, after it had waited (\d+\.\d) s\n", out)
        self.assertIsNotNone(match, out)
        self.assertGreaterEqual(float(match[2]), 2.0)
        self.assertLess(float(match[1]), float(match[2]), "the wait is no part of it")

    def test_killed_in_the_middle_of_a_move(self):
        server = self.remembering()
        job = self.mover(server, "train")
        self.started("suspend", "--socket", server.socket, "train")
        self.hold(job)
        self.wait_hold(job, SET | OUT)
        self.restart(server)
        job.ask("register")
        self.claim(job, held=600, movable=500)
        self.put_out(job)
        wait_until("the command holds", lambda: self.state_of(server, "train") == "suspended")
        self.assertEqual(self.row(server, "train")["gpus"][0]["swapped_bytes"], 500 * MIB)

    def test_out_without_a_command_comes_back_by_itself(self):
        server = self.remembering('[memory]\noversell = 4.0\nswap_quantum = "50ms"\n')
        idle = self.mover(server, "idle", held=2000, movable=1900)
        wants = self.mover(server, "wants", held=100, movable=60, memory="3GiB")
        wants.ask(f"memory 0 {2500 * MIB}")
        self.put_out(idle, 1900)
        wait_until("the answer is yes", lambda: wants.ask("room 0") == "2")
        wants.kill()
        self.restart(server)
        idle.ask("register")
        self.claim(idle, held=2000, movable=1900, swapped=1900)
        self.put_out(idle, 1900)
        self.put_in(idle, 1900)
        wait_until("it runs", lambda: self.state_of(server, "idle") == "running")


if __name__ == "__main__":
    e2e_support.main()
