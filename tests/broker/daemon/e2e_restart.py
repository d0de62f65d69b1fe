"""kill -9 of the broker, and the next one with the same state directory; and a new configuration while jobs run."""

import contextlib
import mmap
import os
import random
import select
import signal

import e2e_support
from e2e_support import *


class Remembering(BrokerTest):
    def setUp(self):
        self.state = pathlib.Path(tempfile.mkdtemp(prefix="sluice-e2e-state-"))
        self.addCleanup(shutil.rmtree, self.state, True)
        self.state.chmod(0o700)

    def remembering(self, config="", **settings):
        return self.broker(config, options=["--state", str(self.state)], **settings)

    def restart(self, broker):
        broker.kill()
        broker.start()
        self.assertEqual(broker.word, "ready\n")


class Restart(Remembering):
    def shown(self, broker):
        """What must be the same before and after, by tenant."""
        return {t["tenant"]: (t["name"], t["uid"], t["profile"], t["class"], t["sm_mode"], t["admitted_ns"], t["asked_ns"],
                              sorted(p["pid"] for p in t["processes"]),
                              [(g["uuid"], g["memory_max_bytes"], g["memory_min_bytes"], g["sm_percent"], g["held_bytes"], g["sm"])
                               for g in t["gpus"]]) for t in broker.tenants()}

    def test_tenants_come_back_as_they_were(self):
        server = self.remembering()
        jobs = [self.job(server, "--name", "plain"), self.job(server, "--memory", "300MiB", "--memory-min", "200MiB",
                "--swap", "--sm", "40", "--sm-mode", "fixed", "--class", "debug"), self.job(server, "--gpus", "2", "--memory", "64MiB")]
        for number, job in enumerate(jobs):
            job.ask("register")
            job.ask(f"claim 0 held {(number + 33) * MIB}")
        before = self.shown(server)
        self.assertEqual([row[8][0][4] for row in before.values()], [33 * MIB, 34 * MIB, 35 * MIB])
        self.assertEqual([row[8][0][5] for row in before.values()], ["weight", "guaranteed", "weight"])
        promised = [(g["promised_bytes"], g["promised_max_bytes"]) for g in server.status()["gpus"]]
        self.restart(server)
        self.assertEqual([t["unregistered"] for t in server.tenants()], [1, 1, 1])
        self.assertEqual([(g["promised_bytes"], g["promised_max_bytes"]) for g in server.status()["gpus"]], promised)
        for number, job in enumerate(jobs):
            self.assertRegex(job.ask("register"), "slot")
            job.ask(f"claim 0 held {(number + 33) * MIB}")
        self.assertEqual(self.shown(server), before)
        self.assertEqual([t["unregistered"] for t in server.tenants()], [0, 0, 0])
        jobs[0].ask("want 0")
        wait_until("it has its turn", jobs[0].is_open)
        self.restart(server)
        self.assertEqual([row[:8] for row in self.shown(server).values()], [row[:8] for row in before.values()],
                         "a second time")
        for job in jobs:
            job.send("exit 0")
            self.assertEqual(job.end(), 0)
        wait_until("nobody is left", lambda: server.tenants() == [])
        self.assertEqual([g["promised_bytes"] for g in server.status()["gpus"]], [0, 0])

    def test_their_memory_is_promised_from_the_first_moment(self):
        server = self.remembering()
        capacity = server.status()["gpus"][0]["capacity_bytes"]
        jobs = [self.job(server, "--memory", f"{capacity // MIB - 64}MiB") for _ in range(2)]  # one for each GPU
        self.restart(server)
        client = self.client(server)
        self.assert_refused(client.ask(admit(memory=128 * MIB, flags=NO_WAIT)), NO_ROOM)
        jobs[0].kill()
        wait_until("its memory is free", lambda: len(server.tenants()) == 1)
        self.assertEqual(self.client(server).ask(admit(memory=128 * MIB, flags=NO_WAIT)).kind, ADMITTED)

    def test_numbers_go_on(self):
        server = self.remembering()
        client = self.client(server)
        first = client.ask(admit())
        self.restart(server)
        self.assertGreater(self.client(server).ask(admit()).tenant, first.tenant)

    def test_who_ended_meanwhile_is_gone_and_who_lives_stays(self):
        server = self.remembering()
        silent, orphan, ended = (self.job(server, "--name", name) for name in ("silent", "orphan", "ended"))
        silent.ask("register")
        orphan.ask("hand-over")  # its founder has ended; the child lives
        child = int(orphan.ask("pid"))
        ended.ask("register")
        server.kill()
        ended.kill()
        server.start()
        self.assertEqual(len(server.tenants()), 3, "who is known to be nobody's any more has a grace time")
        wait_until("the ended one is gone", lambda: len(server.tenants()) == 2)
        rows = {t["name"]: t for t in server.tenants()}
        self.assertEqual(set(rows), {"silent", "orphan"}, "the living are members though they never came back")
        self.assertEqual([p["pid"] for p in rows["orphan"]["processes"]], [child])
        self.assertEqual(rows["orphan"]["unregistered"], 1)
        self.assertRegex(orphan.ask("register"), "slot")
        os.kill(child, signal.SIGKILL)
        wait_until("it ends by its last process", lambda: len(server.tenants()) == 1)

    def test_a_process_is_answered_when_the_rest_of_its_job_is_back(self):
        server = self.remembering()
        job = self.job(server)
        job.ask("register")
        children = [int(job.ask("fork-register").split()[0]) for _ in range(2)]
        self.restart(server)
        job.send("register")
        wait_until("it has asked", lambda: self.sockets(job.process.pid) > 0)
        os.kill(children[0], signal.SIGUSR1)
        self.assertFalse(select.select([job.process.stdout], [], [], 0.3)[0], "one of them is still missing")
        self.assertEqual(server.tenants()[0]["unregistered"], 3)
        os.kill(children[1], signal.SIGKILL)
        self.assertRegex(job.answer(), "slot", "the dead are not waited for")
        wait_until("both are back", lambda: server.tenants()[0]["unregistered"] == 0)
        self.assertEqual(len(server.tenants()[0]["processes"]), 2)
        os.kill(children[0], signal.SIGKILL)

    @staticmethod
    def end(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def sockets(self, pid):
        return sum(os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:") for fd in os.listdir(f"/proc/{pid}/fd"))

    def test_who_does_not_come_back_is_not_waited_for_long(self):
        server = self.remembering()
        job = self.job(server)
        job.ask("register")
        child = int(job.ask("fork-register").split()[0])
        self.addCleanup(self.end, child)  # or it keeps the job's pipes open
        os.kill(child, signal.SIGSTOP)
        self.restart(server)
        self.assertRegex(job.ask("register"), "slot")
        self.assertEqual(server.tenants()[0]["unregistered"], 1, "it lives and may hold memory")
        job.ask("want 0")
        wait_until("the other has its turn", job.is_open)
        second = self.job(server)
        second.ask("register")
        # On the same GPU, or the first one keeps the lease for itself.
        if server.tenants()[1]["gpus"][0]["uuid"] == server.tenants()[0]["gpus"][0]["uuid"]:
            second.ask("want 0")
            wait_until("the turn is over", lambda: not job.is_open())
            job.ask("drain 0")
            wait_until("who is away holds nobody up", second.is_open)
        self.assertFalse(any(t["runaway"] for t in server.tenants()))
        os.kill(child, signal.SIGKILL)

    def test_exec_is_noticed_by_the_page_of_the_old_broker(self):
        server = self.remembering()
        job = self.job(server)
        job.ask("register")
        job.ask("claim 0 held 1000")
        server.kill()
        job.send("exec")
        self.assertEqual(job.ask("hello"), "hello")
        server.start()
        wait_until("its account is closed", lambda: server.tenants()[0]["processes"] == [])
        self.assertRegex(job.ask("register"), "slot")
        self.assertEqual(len(server.tenants()[0]["processes"]), 1)

    def test_default_tenant(self):
        server = self.remembering()
        first = self.client(server).ask(register(0, 0))
        self.assertEqual(first.kind, REGISTERED)
        self.restart(server)
        again = self.client(server).ask(register(0, 0))
        self.assertEqual((again.kind, again.tenant), (REGISTERED, first.tenant))
        self.assertEqual(len(server.tenants()), 1)

    def test_exclusive_gpus_stay_taken(self):
        server = self.remembering()
        job = self.job(server, "--class", "exclusive", "--gpus", "2")
        self.restart(server)
        self.assertTrue(all(gpu["exclusive"] for gpu in server.status()["gpus"]))
        self.assert_refused(self.client(server).ask(admit(flags=NO_WAIT)), NO_ROOM)
        job.ask("register")
        self.assertTrue(job.is_open(0) and job.is_open(1))

    def test_orderly_end_is_no_different(self):
        server = self.remembering()
        job = self.job(server)
        server.process.terminate()
        self.assertEqual(server.process.wait(PATIENCE_S), 0)
        server.start()
        self.assertRegex(job.ask("register"), "slot")

    def test_other_limits_are_in_force_after_it(self):
        server = self.remembering('[class.batch]\nmemory_max = "300MiB"\n')
        job = self.job(server)
        server.kill()
        server.config_write('[class.batch]\nmemory_max = "200MiB"\n')
        server.start()
        job.ask("register")
        self.assertEqual(job.ask("limits 0"), f"{200 * MIB} {200 * MIB} 100")

    def test_a_garbled_journal_costs_the_job_whose_record_it_hits(self):
        server = self.remembering()
        one = self.job(server, "--name", "one")
        length = (self.state / "journal").stat().st_size
        self.job(server, "--name", "two")
        three = self.job(server, "--name", "three")
        server.kill()
        with open(self.state / "journal", "r+b") as journal:
            journal.seek(length + 5)
            journal.write(b"?")
        server.start()
        self.assertEqual([t["name"] for t in server.tenants()], ["one", "three"])
        self.assertEqual(server.log().count("event=journal_damaged"), 1)
        self.assertEqual(server.status()["broker"]["journal_lost"], 1)
        self.assertRegex(one.ask("register"), "slot")
        self.assertRegex(three.ask("register"), "slot")

    def test_files_are_roots_alone(self):
        server = self.remembering()
        self.job(server)
        self.assertEqual({path.name: path.stat().st_mode & 0o777 for path in self.state.iterdir()},
                         {"journal": 0o600})

    def test_jobs_are_kept_where_the_journal_cannot_be_written(self):
        server = self.remembering()
        job = self.job(server, "--memory", "300MiB", "--memory-min", "300MiB")
        job.ask("register")
        server.kill()
        blocked = self.state / "journal.new"
        blocked.mkdir()  # the name under which the next state is written
        server.start()
        self.assertEqual(server.word, "ready\n")
        self.assertEqual(len(server.tenants()), 1)
        self.assertGreater(server.status()["broker"]["journal_faults"], 0)
        self.assertEqual(server.log().count("event=journal_failed"), 1)
        self.assertRegex(job.ask("register"), "slot")

    def test_a_journal_that_cannot_be_trusted_ends_the_start(self):
        server = self.remembering()
        self.job(server)
        server.kill()
        self.state.chmod(0o755)
        server.start()
        self.assertRegex(server.word, "^sluice: there is a journal in .* that cannot be used .*mode 0700")
        server.process.wait(PATIENCE_S)
        self.state.chmod(0o700)
        server.start()
        self.assertEqual(len(server.tenants()), 1)

    def test_a_journal_that_others_can_write_ends_the_start(self):
        server = self.remembering()
        self.job(server)
        journal = self.state / "journal"
        for mode in (0o620, 0o602, 0o666):
            with self.subTest(mode=oct(mode)):
                server.kill()
                journal.chmod(mode)
                server.start()
                self.assertRegex(server.word, "^sluice: there is a journal in .* that cannot be used .*others can write it")
                server.process.wait(PATIENCE_S)
                journal.chmod(0o600)
                server.start()
                self.assertEqual(len(server.tenants()), 1)

    def test_a_journal_that_others_can_read_is_written_anew_and_that_is_said(self):
        server = self.remembering()
        self.job(server)
        server.kill()
        journal = self.state / "journal"
        journal.chmod(0o644)
        (self.state / "journal.new").touch(0o644)  # left by a broker that died, or by a careless hand
        server.start()
        self.assertEqual(len(server.tenants()), 1)
        self.assertEqual(server.log().count("event=journal_readable"), 1)
        self.assertEqual(journal.stat().st_mode & 0o777, 0o600)

    def test_a_journal_that_is_no_file_is_named(self):
        server = self.remembering()
        journal = self.state / "journal"
        for text, make in (("it is a symbolic link", lambda: journal.symlink_to(self.state / "kept")),
                           ("it is not a regular file", journal.mkdir),
                           ("it is not a regular file", lambda: os.mkfifo(journal, 0o600))):
            server.kill()
            journal.rename(self.state / "kept")
            make()
            server.start()
            self.assertIn(text, server.word)
            server.process.wait(PATIENCE_S)
            (journal.rmdir if journal.is_dir() and not journal.is_symlink() else journal.unlink)()
            (self.state / "kept").rename(journal)
            server.start()
            self.assertEqual(server.word, "ready\n")

    def test_goes_on_where_it_cannot_write(self):
        server = self.broker(options=["--state", "/proc/sluice"])
        for _ in range(3):
            self.job(server).ask("register")
        self.assertEqual(server.log().count("event=journal_failed"), 1)
        self.assertGreater(server.status()["broker"]["journal_faults"], 0)

    def test_two_brokers_do_not_share_a_state(self):
        self.assertEqual(self.remembering().status()["broker"]["journal_faults"], 0)
        other = Broker(options=["--state", str(self.state)])
        self.addCleanup(other.stop)
        self.assertRegex(other.word, "^sluice: another broker keeps its journal in ")

    def test_private_brokers_have_none(self):
        result = subprocess.run([program("sluiced"), "--private", "--state", "/x"], env=environment(), capture_output=True,
                                text=True, timeout=PATIENCE_S)
        self.assertEqual(result.returncode, 2)
        self.assertIn("a private broker remembers nothing", result.stderr)


class Founder:
    """A process that asks for a tenant, registers with it and lives until it is killed; in a fork of the test."""

    def __init__(self, path):
        self.reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.reader)
            try:
                self.live(path, writer)
            finally:
                os._exit(0)
        os.close(writer)
        self.tenant = None

    def live(self, path, writer):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        tenant = key = 0
        pages = []

        def join():
            client = Client(path)
            reply = client.ask(register(tenant, key))
            if reply is None:
                client.close()
                return
            os.write(writer, b"registered\n" if reply.kind == REGISTERED else b"refused\n")
            if pages:
                pages[0].close()
            pages[:] = [client] + [mmap.mmap(fd, 0, prot=mmap.PROT_READ) for fd in reply.fds]
            for fd in reply.fds:
                os.close(fd)

        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        try:
            client = Client(path)
            reply = client.ask(admit(memory=MIB * 40, flags=NO_WAIT))
            client.close()
        except OSError:
            return  # no broker: like sluice run, it gives up
        if reply is None or reply.kind != ADMITTED:
            return
        tenant, key = reply.tenant, reply.key
        os.write(writer, b"%d\n" % tenant)
        try:
            join()
        except OSError:
            pass
        while True:
            signal.sigwait([signal.SIGUSR1])
            join()

    def words(self):
        """Whatever it has said by now."""
        said = b""
        while select.select([self.reader], [], [], 0)[0]:
            part = os.read(self.reader, 4096)
            if not part:
                break
            said += part
        return said.decode().split()

    def alive(self):
        return os.waitpid(self.pid, os.WNOHANG) == (0, 0) if self.pid else False

    def kill(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
        if self.reader >= 0:
            os.close(self.reader)
            self.reader = -1


class Storm(Remembering):
    ROUNDS = 36

    def test_killed_at_random_instants(self):
        seed = int(os.environ.get("SLUICE_STORM_SEED", random.SystemRandom().randrange(1 << 32)))
        print(f"seed {seed} (SLUICE_STORM_SEED replays the choices)", flush=True)
        choose = random.Random(seed)
        server = self.remembering()
        descriptors = server.descriptors()
        people = []
        self.addCleanup(lambda: [person.kill() for person in people])
        numbers = set()
        # How long an admission takes here: a founder gives up when the broker is killed before.
        began, words = time.monotonic(), []
        first = Founder(server.socket)
        wait_until("the first is admitted", lambda: words.extend(first.words()) or words)
        spread_s = max(0.03, 2 * (time.monotonic() - began))
        first.tenant = int(words[0])
        numbers.add(first.tenant)
        people.append(first)
        for _ in range(self.ROUNDS):
            people += [Founder(server.socket) for _ in range(choose.randrange(1, 4))]
            for person in choose.sample(people, min(len(people), choose.randrange(0, 2))):
                person.kill()
                people.remove(person)
            # Any instant of all this will do; the delay only spreads them.
            time.sleep(choose.random() * spread_s)
            server.kill()
            if choose.random() < 0.25 and people:
                people.pop(choose.randrange(len(people))).kill()
            server.start()
            self.assertEqual(server.word, "ready\n", server.log()[-2000:])
            known = {t["tenant"] for t in server.tenants()}
            for person in list(people):
                for word in person.words():
                    if word.isdigit():
                        self.assertNotIn(int(word), numbers, "a number is given once")
                        numbers.add(int(word))
                        person.tenant = int(word)
                    else:
                        self.assertEqual(word, "registered")
                if not self.lives(person):
                    people.remove(person)
                elif person.tenant is not None:
                    self.assertIn(person.tenant, known, "who was told that it is admitted is known ever after")
        print(f"{len(numbers)} admitted, {len(people)} live", flush=True)
        self.assertGreater(len(numbers), 5, "the broker was not always killed before it could admit anybody")
        self.assertGreater(len(people), 0)

        def settled():
            for person in list(people):
                for word in person.words():
                    person.tenant = int(word) if word.isdigit() else person.tenant
                if not self.lives(person):
                    people.remove(person)
            return all(person.tenant is not None for person in people)
        wait_until("everybody is admitted or has given up", settled)
        for person in people:
            os.kill(person.pid, signal.SIGUSR1)
        back = set()

        def registered():
            for person in people:
                for word in person.words():
                    self.assertEqual(word, "registered")
                    back.add(person.pid)
            return len(back) == len(people)
        wait_until("everybody is taken back with his key", registered)
        wait_until("nobody else is there", lambda: sorted(t["tenant"] for t in server.tenants()) ==
                   sorted(person.tenant for person in people))
        self.assertEqual(sum(gpu["promised_bytes"] for gpu in server.status()["gpus"]), len(people) * 40 * MIB)
        while people:
            people.pop().kill()
        wait_until("all is given back", lambda: server.tenants() == [])
        self.assertEqual([gpu["promised_bytes"] for gpu in server.status()["gpus"]], [0, 0])
        wait_until("no descriptor is left over", lambda: server.descriptors() == descriptors)
        self.assertEqual(server.status()["broker"]["journal_faults"], 0)

    def lives(self, person):
        if person.alive():
            return True
        person.pid = 0
        person.kill()
        return False


class Reload(Remembering):
    def reload(self, server, text):
        count = server.status()["broker"]["reloads_ok"]
        server.config_write(text)
        server.process.send_signal(signal.SIGHUP)
        wait_until("it is read", lambda: server.status()["broker"]["reloads_ok"] == count + 1)

    def test_running_jobs_get_their_new_limits(self):
        before = '[class.batch]\nmemory_max = "300MiB"\nsm_percent = 50\n'
        server = self.remembering(before)
        plain = self.job(server)
        asking = self.job(server, "--memory", "1GiB", "--sm", "80")
        small = self.job(server, "--memory", "100MiB", "--sm", "10")
        for job in (plain, asking, small):
            job.ask("register")

        def limits(job):
            memory_max, memory_min, percent = map(int, job.ask("limits 0").split())
            self.assertEqual(memory_min, memory_max)
            return memory_max // MIB, percent
        self.assertEqual([limits(job) for job in (plain, asking, small)], [(300, 50), (1024, 80), (100, 10)])
        self.reload(server, '[class.batch]\nmemory_max = "200MiB"\nsm_percent = 30\n')
        self.assertEqual([limits(job) for job in (plain, asking, small)], [(200, 30), (1024, 80), (100, 10)],
                         "defaults follow, what was asked for stays")
        self.reload(server, '[class.batch]\nmemory_max = "800MiB"\nsm_percent = 70\n'
                            '[profile.default]\nmemory_max = "512MiB"\nsm_percent_max = 60\n')
        self.assertEqual([limits(job) for job in (plain, asking, small)], [(512, 60), (512, 60), (100, 10)],
                         "both are cut to the profile")
        rows = {t["gpus"][0]["memory_max_bytes"] // MIB for t in server.tenants()}
        self.assertEqual(rows, {512, 100}, "status shows it")
        self.restart(server)
        for job in (plain, asking, small):
            job.ask("register")
        self.assertEqual([limits(job) for job in (plain, asking, small)], [(512, 60), (512, 60), (100, 10)])
        self.reload(server, before)
        self.assertEqual([limits(job) for job in (plain, asking, small)], [(300, 50), (1024, 80), (100, 10)],
                         "and back again, after a restart, too")

    def test_a_file_with_a_mistake_changes_no_limit(self):
        server = self.remembering('[class.batch]\nmemory_max = "300MiB"\n')
        job = self.job(server)
        job.ask("register")
        server.config_write('[class.batch]\nmemory_max = "200MiB"\nwindwo = "1s"\n')
        server.process.send_signal(signal.SIGHUP)
        wait_until("it is refused", lambda: server.status()["broker"]["reloads_failed"] == 1)
        self.assertEqual(job.ask("limits 0").split()[0], str(300 * MIB))

    def test_room_that_a_reload_makes_is_given_to_who_waits(self):
        server = self.remembering()
        capacity = server.status()["gpus"][0]["capacity_bytes"]
        text = '[class.debug]\nmemory_max = "%dMiB"\n'
        self.reload(server, text % (capacity // MIB))
        holders = [self.job(server, "--class", "debug") for _ in range(2)]
        for job in holders:
            job.ask("register")
        waiting = self.client(server)
        self.assertEqual(waiting.ask(admit(memory=256 * MIB)).kind, QUEUED)
        self.reload(server, text % 512)
        self.assertEqual(waiting.receive().kind, ADMITTED)

    def test_windows_follow_at_once(self):
        server = self.remembering('[class.batch]\nwindow = "20ms"\n')
        job = self.job(server, "--gpu", "0")
        job.ask("register")
        self.assertEqual(job.ask("window 0"), str(500_000_000))  # alone: half of drain_timeout
        self.job(server, "--gpu", "0").ask("register")
        self.assertEqual(job.ask("window 0"), str(20_000_000))
        self.reload(server, '[class.batch]\nwindow = "5ms"\n')
        self.assertEqual(job.ask("window 0"), str(5_000_000))


if __name__ == "__main__":
    e2e_support.main()
