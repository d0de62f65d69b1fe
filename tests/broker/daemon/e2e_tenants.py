"""Tenants from the outside: admission, the line, leases that never overlap, and every kind of end."""

import os
import pathlib
import re
import resource
import signal
import struct

import e2e_support
from e2e_support import *


class Admission(BrokerTest):
    def test_grant_carries_what_was_asked(self):
        server = self.broker()
        client = self.client(server)
        granted = client.ask(admit(memory=512 * MIB, memory_min=128 * MIB, flags=SWAP, tenant_class=INFERENCE, sm=40, name=b"serve"))
        self.assertEqual(granted.kind, ADMITTED)
        self.assertEqual((granted.memory_max, granted.memory_min, granted.sm_percent, granted.tenant_class),
                         (512 * MIB, 128 * MIB, 40, INFERENCE))
        if os.getuid() == 0:
            wait_until("its user's name is known", lambda: server.tenants()[0]["user"] == "root")
        [tenant] = server.tenants()
        self.assertEqual((tenant["name"], tenant["class"], tenant["state"], tenant["user"]),
                         ("serve", "inference", "running", "root" if os.getuid() == 0 else tenant["user"]))
        self.assertEqual(tenant["gpus"][0]["memory_max_bytes"], 512 * MIB)

    def test_quota_below_a_context_names_the_minimum(self):
        server = self.broker()
        reply = self.client(server).ask(admit(memory=MIB))
        self.assert_refused(reply, BELOW_CONTEXT)
        self.assertEqual(reply.minimum, 32 * MIB)
        self.assertIn("32 MiB", reply.text)

    def test_default_memory_is_a_quarter_of_the_gpu(self):
        server = self.broker()
        self.assertEqual(self.client(server).ask(admit(memory=0)).memory_max, GIB)

    def test_default_memory_of_the_class(self):
        server = self.broker('[class.batch]\nmemory_max = "700MiB"\n')
        self.assertEqual(self.client(server).ask(admit(memory=0)).memory_max, 700 * MIB)

    def test_exclusive_owns_the_whole_gpu(self):
        server = self.broker()
        granted = self.client(server).ask(admit(memory=0, tenant_class=EXCLUSIVE, gpus=2))
        self.assertEqual((granted.kind, granted.gpu_count, granted.memory_max), (ADMITTED, 2, 4 * GIB))
        self.assertEqual([gpu["exclusive"] for gpu in server.status()["gpus"]], [True, True])

    def test_impossible_wishes(self):
        server = self.broker()
        self.assert_refused(self.client(server).ask(admit(memory=5 * GIB)), TOO_LARGE)
        self.assert_refused(self.client(server).ask(admit(gpus=3)), TOO_MANY_GPUS)
        self.assert_refused(self.client(server).ask(admit(pinned=(b"\x77" * 16,))), NO_SUCH_GPU)
        self.assert_refused(self.client(server).ask(admit(memory=64 * MIB, memory_min=65 * MIB)), MALFORMED)
        without = self.client(server).ask(admit(memory=64 * MIB, memory_min=63 * MIB))
        self.assert_refused(without, MALFORMED)
        self.assertEqual(without.text, "a guarantee of 63 MiB needs a job whose memory may be moved; without that all of its 64 MiB "
                                       "is guaranteed; add --swap or leave --memory-min out")
        self.assertEqual(self.client(server).ask(admit(memory=64 * MIB, memory_min=64 * MIB)).kind, ADMITTED)
        self.assertEqual(server.status()["broker"]["refusals"], 5)

    def test_dry_run_changes_nothing(self):
        server = self.broker()
        granted = self.client(server).ask(admit(flags=DRY_RUN))
        self.assertEqual((granted.kind, granted.tenant, granted.key), (ADMITTED, 0, 0))
        self.assertEqual(server.tenants(), [])

    def test_profiles_limit_their_users(self):
        server = self.broker('[profile.default]\nmemory_max = "512MiB"\nsm_percent_max = 25\ntenants_max = 2\n'
                             'classes = ["debug", "batch"]\n')
        self.assert_refused(self.client(server).ask(admit(memory=GIB)), USER_LIMIT)
        self.assert_refused(self.client(server).ask(admit(sm=50)), USER_LIMIT)
        self.assert_refused(self.client(server).ask(admit(tenant_class=EXCLUSIVE)), CLASS_NOT_ALLOWED)
        granted = self.client(server).ask(admit(memory=0))
        self.assertEqual((granted.memory_max, granted.sm_percent, granted.profile), (512 * MIB, 25, b"default"))
        self.assertEqual(self.client(server).ask(admit()).kind, ADMITTED)
        reply = self.client(server).ask(admit())
        self.assert_refused(reply, USER_LIMIT)
        self.assertIn("2 jobs", reply.text)
        self.assert_refused(self.client(server).ask(admit(profile=b"nobody")), CLASS_NOT_ALLOWED)


class Line(BrokerTest):
    def test_positions_move_up_and_the_next_is_admitted(self):
        server = self.broker()
        holder = self.job(server, "--memory", "4GiB", "--gpus", "2")
        first, second = self.client(server), self.client(server)
        queued = first.ask(admit(GIB, name=b"first"))
        self.assertEqual((queued.kind, queued.position, queued.capacity), (QUEUED, 1, 4 * GIB))
        queued = second.ask(admit(GIB, name=b"second"))
        self.assertEqual((queued.kind, queued.position, queued.ahead), (QUEUED, 2, f"first of {ME}".encode()))
        self.assertEqual([(t["name"], t["state"], t["queue_position"]) for t in server.tenants() if t["state"] == "queued"],
                         [("first", "queued", 1), ("second", "queued", 2)])
        first.close()
        self.assertEqual(second.receive().position, 1)
        holder.kill()
        self.assertEqual(second.receive().kind, ADMITTED)

    def test_leaving_the_line(self):
        server = self.broker()
        holder = self.client(server)
        holder.ask(admit(4 * GIB, gpus=2))
        waiting = self.client(server)
        self.assertEqual(waiting.ask(admit()).kind, QUEUED)
        waiting.close()
        wait_until("nobody waits", lambda: len(server.tenants()) == 1)
        self.assertIn("event=request_cancelled", server.log())

    def test_time_is_up(self):
        server = self.broker()
        self.client(server).ask(admit(4 * GIB, gpus=2))
        waiting = self.client(server)
        self.assertEqual(waiting.ask(admit(wait_ns=50_000_000)).kind, QUEUED)
        self.assert_refused(waiting.receive(), TIMEOUT)

    def test_who_will_not_wait(self):
        server = self.broker()
        self.client(server).ask(admit(4 * GIB, gpus=2))
        self.assert_refused(self.client(server).ask(admit(flags=NO_WAIT)), NO_ROOM)


class DefaultTenant(BrokerTest):
    """Programs that nobody announced."""

    def test_they_share_one(self):
        server = self.broker()
        one, two = self.loner(server), self.loner(server)
        self.assertEqual((one.ask("register"), two.ask("register")), ("slot 0", "slot 1"))
        self.assertEqual([(t["name"], t["class"]) for t in server.tenants()], [("program", "debug")], "the program's name")

    def test_without_room_they_wait_in_line_together(self):
        server = self.broker()
        holder = self.job(server, "--memory", "4GiB", "--gpus", "2", "--name", "holder")
        one, two = self.loner(server), self.loner(server)
        self.assertEqual(one.ask("register"), "queued 1 1", "the first, for want of resources")
        self.assertEqual(two.ask("register"), "queued 1 1", "it is the same request")
        self.assertEqual([(t["name"], t["reason"]) for t in server.tenants() if t["state"] == "queued"],
                         [("program", "Resources")])
        holder.kill()
        self.assertEqual(sorted([one.ask("await"), two.ask("await")]), ["slot 0", "slot 1"])
        self.assertEqual(server.status()["broker"]["admissions"], 2)

    def test_who_leaves_hands_his_place_on(self):
        server = self.broker()
        holder = self.job(server, "--memory", "4GiB", "--gpus", "2", "--name", "holder")
        one, two, three = self.loner(server), self.loner(server), self.loner(server)
        one.ask("register")
        behind = self.client(server)
        self.assertEqual(behind.ask(admit(name=b"behind")).ahead, f"program of {ME}".encode())
        for loner in (two, three):
            self.assertEqual(loner.ask("register"), "queued 1 1")
        two.kill()
        one.kill()
        wait_until("both have left", lambda: server.log().count("event=asker_left") == 2)
        self.assertTrue(behind.silent(), "nothing has moved for who is behind")
        holder.kill()
        self.assertEqual(three.ask("await"), "slot 0")
        self.assertEqual(behind.receive().kind, ADMITTED)
        three.kill()
        wait_until("its founder was the last that asked", lambda: len(server.tenants()) == 1)

    def test_the_last_that_leaves_takes_the_request_along(self):
        server = self.broker()
        self.job(server, "--memory", "4GiB", "--gpus", "2")
        loners = [self.loner(server) for _ in range(2)]
        for loner in loners:
            loner.ask("register")
        for loner in loners:
            loner.kill()
        wait_until("nobody waits", lambda: len(server.tenants()) == 1)
        self.assertIn("event=request_cancelled", server.log())

    def test_places_in_the_line_are_told_to_all_of_them(self):
        server = self.broker()
        holder = self.job(server, "--memory", "4GiB", "--gpus", "2")
        ahead = self.client(server)
        ahead.ask(admit(4 * GIB, name=b"ahead", gpus=2))
        one, two = self.loner(server), self.loner(server)
        for loner in (one, two):
            self.assertEqual(loner.ask("register"), f"queued 2 1 ahead of {ME}")
        [row] = [t for t in server.tenants() if t["name"] == "program"]
        self.assertEqual((row["queue_position"], row["ahead"]), (2, f"ahead of {ME}"))
        ahead.close()
        for loner in (one, two):
            self.assertEqual(loner.ask("await"), "queued 1 1")
        holder.kill()


class Ends(BrokerTest):
    def test_exec_of_the_founder_keeps_the_tenant_and_its_death_ends_it(self):
        server = self.broker()
        job = self.job(server)
        [tenant] = server.tenants()
        self.assertEqual(tenant["processes"], [])
        self.assertEqual(job.ask("register"), "slot 0")
        job.ask(f"claim 0 held {300 * MIB}")
        job.ask("claim 0 busy 5000000")
        gpu = server.status()["gpus"][0]
        self.assertEqual((gpu["held_bytes"], gpu["busy_ns"], gpu["tenants"]), (300 * MIB, 5000000, 1))
        job.kill()
        wait_until("the tenant is gone", lambda: server.tenants() == [])
        gpu = server.status()["gpus"][0]
        self.assertEqual((gpu["held_bytes"], gpu["busy_ns"], gpu["promised_bytes"]), (0, 5000000, 0))

    def test_children_keep_the_tenant_alive(self):
        server = self.broker()
        job = self.job(server)
        child, slot = job.ask("fork-register").split(" ", 1)
        self.assertEqual(slot, "slot 0")
        job.kill()
        [tenant] = server.tenants()
        self.assertEqual([process["pid"] for process in tenant["processes"]], [int(child)])
        os.kill(int(child), signal.SIGKILL)
        wait_until("the tenant is gone", lambda: server.tenants() == [])

    def test_dead_process_leaves_its_time_and_returns_its_memory(self):
        server = self.broker()
        job = self.job(server)
        child = int(job.ask("fork-register").split()[0])
        self.assertEqual(job.ask("register"), "slot 1")
        job.ask("claim 0 busy 700")
        os.kill(child, signal.SIGKILL)
        wait_until("the child is gone", lambda: len(server.tenants()[0]["processes"]) == 1)
        self.assertEqual(server.tenants()[0]["gpus"][0]["busy_ns"], 700)

    def test_lost_connection_is_not_death(self):
        server = self.broker()
        job = self.job(server)
        job.ask("register")
        job.ask(f"claim 0 held {64 * MIB}")
        job.ask("detach")
        wait_until("it is unregistered", lambda: server.tenants()[0]["unregistered"] == 1)
        tenant = server.tenants()[0]
        self.assertEqual((tenant["unregistered_bytes"], tenant["gpus"][0]["held_bytes"]), (64 * MIB, 64 * MIB))
        self.assertEqual(job.ask("register"), "slot 0", "the same process goes on with its slot")
        tenant = server.tenants()[0]
        self.assertEqual(tenant["unregistered_bytes"], 0)
        self.assertEqual((tenant["unregistered"], tenant["gpus"][0]["held_bytes"]), (0, 64 * MIB))

    def test_exec_closes_the_account(self):
        server = self.broker()
        job = self.job(server)
        job.ask("register")
        job.ask(f"claim 0 held {64 * MIB}")
        job.ask("claim 0 busy 1000")
        job.send("exec")
        self.assertEqual(job.ask("register"), "slot 0")
        part = server.tenants()[0]["gpus"][0]
        self.assertEqual((part["held_bytes"], part["busy_ns"]), (0, 1000))
        job.ask("claim 0 busy 10")
        self.assertEqual(server.tenants()[0]["gpus"][0]["busy_ns"], 1010)
        job.send("exec")
        job.ask("hello")
        wait_until("the account is closed without a new registration", lambda: server.tenants()[0]["processes"] == [])

    def test_exec_of_the_last_process_keeps_the_tenant(self):
        server = self.broker()
        job = self.job(server)
        job.ask("hand-over")
        job.process.wait(PATIENCE_S)  # the founder
        wait_until("the broker knows", lambda: "founder_ended" in server.log())
        job.send("exec")
        self.assertEqual(job.ask("register"), "slot 0")
        job.send("exec")
        job.ask("hello")
        wait_until("the second exec is seen", lambda: server.tenants()[0]["processes"] == [])
        self.assertEqual(job.ask("register"), "slot 0", "it is the job still, however late it comes")
        job.send("exit 0")
        wait_until("its death ends the tenant", lambda: not server.tenants())

    def test_lies_in_the_claims_hurt_nobody_else(self):
        server = self.broker()
        honest, liar = (self.job(server, "--gpu", "0", "--memory", "256MiB") for _ in range(2))
        for job in (honest, liar):
            job.ask("register")
        honest.ask(f"claim 0 held {64 * MIB}")
        honest.ask("claim 0 busy 1000")
        liar.ask(f"claim 0 held {2 ** 64 - 1}")
        liar.ask(f"claim 0 busy {2 ** 64 - 1}")
        before = server.status()
        gpu = before["gpus"][0]
        self.assertLessEqual(gpu["held_bytes"], (64 + 256) * MIB)
        self.assertGreaterEqual(gpu["held_bytes"], 64 * MIB)
        self.assertLess(gpu["busy_ns"], 10 ** 12)
        liar.ask("claim 0 busy 0")
        liar.send("exit 0")
        wait_until("it is gone", lambda: len(server.tenants()) == 1)
        after = server.status()["gpus"][0]
        self.assertGreaterEqual(after["busy_ns"], gpu["busy_ns"], "a counter never runs back")
        self.assertLess(after["busy_ns"], 10 ** 12)
        self.assertEqual(after["held_bytes"], 64 * MIB)

    def test_processes_beyond_the_page(self):
        server = self.broker()
        job = self.job(server)
        children = [job.ask("fork-register").split(" ", 1) for _ in range(128)]
        self.addCleanup(lambda: [os.kill(int(pid), signal.SIGKILL) for pid, _ in children])
        self.assertEqual(sorted(int(slot.split()[1]) for _, slot in children), list(range(128)))
        self.assertIn("room for 128", job.ask("register"))

    def test_storm_of_jobs_leaves_nothing(self):
        server = self.broker()
        before = server.descriptors()
        jobs = [self.job(server, "--memory", "64MiB", start=False) for _ in range(20)]
        for job in jobs:
            job.ask("register")
        self.assertEqual(len(server.tenants()), 20)
        for job in jobs:
            job.process.kill()
        wait_until("all are gone", lambda: server.tenants() == [])
        wait_until("all descriptors are closed", lambda: server.descriptors() <= before)

    def test_released_exclusive_gpu_is_given_to_the_next(self):
        server = self.broker()
        client = self.client(server)
        granted = client.ask(admit(memory=0, tenant_class=EXCLUSIVE, gpus=2))
        waiting = self.client(server)
        self.assertEqual(waiting.ask(admit()).kind, QUEUED)
        self.assertEqual(client.ask(message(RELEASE, struct.pack("<QQ", granted.tenant, granted.key))).kind, DONE)
        self.assertEqual(waiting.receive().kind, ADMITTED)

    def test_reports_of_a_training_job(self):
        server = self.broker()
        client = self.client(server)
        granted = client.ask(admit())
        for rank in range(2):
            client.send(message(JOB_REPORT, struct.pack("<QQQQQQdII", granted.tenant, granted.key, 10 + rank, 320, 7, 5000,
                                                        1.25, rank, 2)))
        tenant = wait_until("the report is in", lambda: [t for t in server.tenants() if t["samples"] == 640])[0]
        self.assertEqual((tenant["steps"], tenant["tokens"], tenant["exposed_communication_ns"], tenant["straggler_score"]),
                         (11, 14, 5000, 1.25))

    def test_unannounced_program_gets_its_users_default_tenant(self):
        server = self.broker()
        shim = self.client(server)
        reply = shim.ask(register(0, 0))
        self.assertEqual(reply.kind, REGISTERED)
        [tenant] = server.tenants()
        self.assertEqual((tenant["tenant"], tenant["name"], tenant["class"]), (reply.tenant, "prog", "debug"))
        self.assertEqual(tenant["gpus"][0]["memory_max_bytes"], GIB)


class Shares(BrokerTest):
    """GPU time is promised like memory, or is a weight."""

    def gpus_of(self, server, count):
        """The GPUs of so many jobs of half a GPU each; None where one has to wait."""
        replies = [self.client(server).ask(admit(sm=50, flags=NO_WAIT)) for _ in range(count)]
        return [reply.gpus[0][-1] if reply.kind == ADMITTED else None for reply in replies]

    def test_halves_are_spread_and_the_fifth_waits(self):
        server = self.broker()
        gpus = self.gpus_of(server, 5)
        self.assertEqual((sorted(gpus[:4]), gpus[:2], gpus[4]), ([0, 0, 1, 1], [0, 1], None))
        self.assertEqual([gpu["sm_guaranteed"] for gpu in server.status()["gpus"]], [100, 100])
        waiting = self.client(server)
        queued = waiting.ask(admit(sm=30))
        self.assertEqual((queued.kind, queued.reason, queued.promised, queued.capacity), (QUEUED, SHARE, 100, 100))
        self.assertRegex(queued.text, r"^the guarantees on GPU 0 add up to 100 of 100 %, and this job asks for 30 %; "
                                      r"2 jobs have it, the largest part 50 %: job \d+ \(.*\) of user [^;]*; 1 more GPU has no room for it$")
        self.assertEqual([t["reason"] for t in server.tenants() if t["state"] == "queued"], ["Share"])
        weight = self.client(server).ask(admit(sm=30, flags=WEIGHT))
        self.assertEqual((weight.kind, weight.sm_kind), (ADMITTED, 0))

    def test_a_promise_that_ends_is_the_next_ones(self):
        server = self.broker()
        holders = [self.job(server, "--sm", "90"), self.job(server, "--sm", "90")]
        waiting = self.client(server)
        self.assertEqual(waiting.ask(admit(sm=20)).reason, SHARE)
        job = self.job(server, "--weight", "20")
        job.kill()
        wait_until("it has ended", lambda: len(server.tenants()) == 3)
        self.assertTrue(waiting.silent(), "a weight holds none of it")
        holders[0].kill()
        self.assertEqual(waiting.receive().kind, ADMITTED)

    def test_a_class_may_give_weights_and_says_so(self):
        server = self.broker('[class.debug]\nsm = "weight"\nsm_percent = 10\n[class.batch]\nsm = "guaranteed"\nsm_percent = 25\n')
        run = ("run", "--socket", server.socket)
        told = self.sluice(*run, "--class", "debug", "--sm", "30", "--", "true")
        self.assertEqual((told.returncode, told.stderr),
                         (0, "sluice: class debug guarantees no GPU time here, so --sm 30 is a weight; see sluice run --help\n"))
        self.assertEqual(self.sluice(*run, "--class", "debug", "--weight", "30", "--", "true").stderr, "", "as it asked")
        self.assertEqual(self.sluice(*run, "--dry-run", "--class", "debug", "--", "true").stdout,
                         "would run now with 1 GiB and weight 10 on GPU 0 (class debug, profile default)\n")
        self.assertEqual(self.sluice(*run, "--dry-run", "--", "true").stdout,
                         "would run now with 1 GiB and 25 % of GPU 0, guaranteed (class batch, profile default)\n")
        self.job(server, "--memory", "64MiB", "--name", "keeps")
        self.job(server, "--class", "debug", "--memory", "64MiB", "--name", "weighs")
        table = self.sluice("status", "--socket", server.socket).stdout
        self.assertRegex(table, r"keeps .* 25 % guaranteed .*\n.*weighs .* weight 10 ")
        self.assertEqual({t["name"]: t["gpus"][0]["sm"] for t in server.tenants()}, {"keeps": "guaranteed", "weighs": "weight"})

    def test_thirty_students_do_not_wait_for_percentages(self):
        shipped = (pathlib.Path(__file__).resolve().parents[3] / "config/sluice.toml").read_text()
        tables = shipped[shipped.index("[class.debug]"):shipped.index("# Who may have what")]
        server = self.broker(tables)
        replies = [self.client(server).ask(admit(32 * MIB, tenant_class=DEBUG, flags=NO_WAIT)) for _ in range(30)]
        self.assertEqual([(r.kind, r.sm_kind) for r in replies], [(ADMITTED, 0)] * 30)
        self.assertEqual([gpu["tenants"] for gpu in server.status()["gpus"]], [15, 15])
        batch = [self.client(server).ask(admit(32 * MIB, flags=NO_WAIT)) for _ in range(8)]
        self.assertEqual([(r.kind, r.sm_kind, r.sm_percent) for r in batch], [(ADMITTED, 1, 25)] * 8)

    def test_placement_is_a_setting_of_the_class(self):
        server = self.broker('[class.batch]\nplacement = "pack"\n')
        small = [self.client(server).ask(admit(64 * MIB)).gpus[0][-1] for _ in range(4)]
        self.assertEqual(small, [0] * 4)
        debug = [self.client(server).ask(admit(64 * MIB, tenant_class=DEBUG)).gpus[0][-1] for _ in range(2)]
        self.assertEqual(debug, [1, 1], "spread, and still fewer there")
        server.config_write('[class.batch]\nplacement = "spread"\n')
        server.process.send_signal(signal.SIGHUP)
        wait_until("it is read", lambda: server.status()["broker"]["reloads_ok"] == 1)
        self.assertEqual(self.client(server).ask(admit(64 * MIB)).gpus[0][-1], 1)

    def test_an_unannounced_program_goes_where_least_is_promised_if_it_has_no_gpu_yet(self):
        server = self.broker()
        first = server.status()["gpus"][0]["uuid"]
        self.client(server).ask(admit(sm=50, pinned=[bytes.fromhex(first[4:].replace("-", ""))]))
        self.client(server).ask(register(0, 0))
        self.assertEqual([gpu["tenants"] for gpu in server.status()["gpus"]], [1, 1])


class Leases(BrokerTest):
    def two(self, config=""):
        server = self.broker(config)
        jobs = [self.job(server, "--gpu", "0", "--memory", "256MiB", "--name", name) for name in ("a", "b")]
        for job in jobs:
            job.ask("register")
        return server, *jobs

    def test_closed_at_first_and_opened_on_demand(self):
        _, a, _ = self.two()
        self.assertEqual(a.word(), 1 << 3)
        a.ask("want 0")
        wait_until("the lease is open", a.is_open)

    def test_the_next_is_opened_only_after_the_drain(self):
        server, a, b = self.two()
        a.ask("want 0")
        wait_until("a has the GPU", a.is_open)
        b.ask("want 0")
        wait_until("a's quantum is over", lambda: not a.is_open())
        self.assertFalse(b.is_open(), "a has not drained")
        a.ask("drain 0")
        wait_until("b has the GPU", b.is_open)
        self.assertFalse(a.is_open())
        opened = re.findall(r"event=(lease_opened|lease_closed|drained) tenant=(\d+)", server.log())
        ids = {t["name"]: str(t["tenant"]) for t in server.tenants()}
        self.assertEqual(opened, [("lease_opened", ids["a"]), ("lease_closed", ids["a"]), ("drained", ids["a"]),
                                  ("lease_opened", ids["b"])])

    def test_death_of_the_holder_frees_the_gpu(self):
        _, a, b = self.two()
        a.ask("want 0")
        wait_until("a has the GPU", a.is_open)
        a.kill()
        b.ask("want 0")
        wait_until("b has the GPU", b.is_open)

    def test_runaway_is_reported_and_others_go_on(self):
        server, a, b = self.two('[scheduler]\ndrain_timeout = "50ms"\nrunaway = "report"\n')
        a.ask("want 0")
        wait_until("a has the GPU", a.is_open)
        b.ask("want 0")
        wait_until("b has the GPU", b.is_open)
        self.assertRegex(server.log(), r'event=runaway .*msg="sluice: job a \(tenant \d+\) has not given its GPU back')
        marks = {t["name"]: t["runaway"] for t in server.tenants()}
        self.assertEqual(marks, {"a": True, "b": False})
        self.assertIsNone(a.process.poll())
        a.ask("drain 0")
        wait_until("the mark is gone", lambda: not any(t["runaway"] for t in server.tenants()))

    def test_runaway_is_ended_by_policy(self):
        server, a, b = self.two('[scheduler]\ndrain_timeout = "50ms"\nrunaway_after = "100ms"\n')
        child = int(a.ask("fork-register").split()[0])
        a.ask("want 0")
        wait_until("a has the GPU", a.is_open)
        b.ask("want 0")
        wait_until("b has the GPU", b.is_open)
        wait_until("it is dead", lambda: a.process.poll() is not None)
        self.assertEqual(a.end(), -signal.SIGKILL)
        wait_until("its child is dead too", lambda: not alive(child))
        self.assertRegex(server.log(), r'event=runaway .* end=yes msg="sluice: job a \(tenant \d+\) is ended: others')
        wait_until("only b is left", lambda: [t["name"] for t in server.tenants()] == ["b"])

    def test_a_closed_socket_revokes_the_lease(self):
        server, a, b = self.two('[scheduler]\ndrain_timeout = "300s"\n')
        a.ask("want 0")
        wait_until("a has the GPU", a.is_open)
        a.ask("detach")
        wait_until("it is revoked though nobody waits", lambda: not a.is_open())
        self.assertEqual(len(server.tenants()), 2)
        b.ask("want 0")
        self.assertFalse(b.is_open(), "a has not drained")
        a.ask("drain 0")
        wait_until("b has the GPU", b.is_open)
        self.assertEqual(a.ask("register"), "slot 0")
        a.ask("want 0")
        wait_until("b's quantum is over", lambda: not b.is_open())
        b.ask("drain 0")
        wait_until("a has its turn", a.is_open)

    def test_detached_process_drains_through_its_claims(self):
        _, a, b = self.two('[scheduler]\ndrain_timeout = "300s"\n')
        a.ask("want 0")
        wait_until("a has the GPU", a.is_open)
        a.ask("detach")
        b.ask("want 0")
        wait_until("a's quantum is over", lambda: not a.is_open())
        a.ask("drain 0")
        wait_until("b has the GPU", b.is_open)

    def test_all_of_a_gang_or_nothing(self):
        server = self.broker()
        gang = self.job(server, "--gpus", "2", "--memory", "256MiB")
        gang.ask("register")
        gang.ask("want 1")
        wait_until("both are open", lambda: gang.is_open(0) and gang.is_open(1))


class Descriptors(BrokerTest):
    def test_none_left_is_no_limit_of_the_job(self):
        """The text names what ran out: with "128 processes" it would send the user to look for processes that are not there."""
        server = self.broker()
        granted = self.client(server).ask(admit(memory=64 * MIB))
        shim = self.client(server)
        self.assert_refused(shim.ask(register(granted.tenant, granted.key + 1)), UNKNOWN_TENANT)
        pid = server.process.pid
        wait_until("no look-up of its user has a descriptor", lambda: not server.tenants()[0]["user"].isdigit())
        looks = [None, None, None]

        def settled():
            """The connection of the status is closed too."""
            looks.append({int(name) for name in os.listdir(f"/proc/{pid}/fd")})
            return looks[-1] == looks[-2] == looks[-3]

        wait_until("the descriptors stay as they are", settled)
        used = looks[-1]
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        lowest = next(number for number in range(len(used) + 1) if number not in used)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, before[1]))
        reply = shim.ask(register(granted.tenant, granted.key))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        self.assert_refused(reply, NO_ROOM)
        self.assertIn("no file descriptors left; end some programs, or raise", reply.text)


if __name__ == "__main__":
    e2e_support.main()
