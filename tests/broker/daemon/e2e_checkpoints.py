"""What the driver's checkpoint can do to a job, through the whole broker: processes that it loses (state FAILED) and ones that
it takes and does not put back. The driver is a double that does as its script says (tests/broker/devices/fake_checkpoint.cpp).
"""

import e2e_support
from e2e_faults_moves import Driven
from e2e_support import *


class Lost(Driven):
    def script(self, *lines):
        (self.directory / "driver" / "script").write_text("".join(line + "\n" for line in lines))

    def served(self):
        server = self.broker('[memory]\nswap_quantum = "50ms"\n', env=self.env)
        server.said = server.log
        self.job_of_two = self.train(server)
        self.parent = int(self.job_of_two.ask("pid"))
        [self.child] = [pid for pid in self.pids if pid != self.parent]
        return server

    def lost(self, server):
        return [process["pid"] for process in self.row(server)["processes"] if process["lost"]]

    def test_on_the_way_back(self):
        server = self.served()
        self.assertEqual(self.commanded(server, command(SUSPEND, 1)), "done")
        self.script(f"restore {self.child} lost")
        said = self.commanded(server, command(RESUME, 1))
        self.assertRegex(said, rf"^refused: .*the driver has lost a part of it: .*process {self.child}\b")
        wait_until("the others are back", lambda: self.job_of_two.hold() & 1 == 0)
        row = self.row(server)
        self.assertEqual((row["state"], row["stays"], row["lost_processes"], self.lost(server)),
                         ("running", "checkpoint failed", 1, [self.child]))
        table = self.sluice("status", "--socket", server.socket).stdout
        self.assertIn("1 LOST", table)
        self.assertIn(f"job 1 train: the driver's checkpoint has lost process {self.child} (program); it can only be ended: "
                      f"kill {self.child}\n", table)
        self.assertRegex(server.log(), rf"event=process_lost tenant=1 name=train pid={self.child} ")
        self.job_of_two.ask("want 0")
        wait_until("who is left goes on", self.job_of_two.is_open)
        self.assertIn("has lost a process of", self.commanded(server, command(SUSPEND, 1)))
        self.assertTrue(self.job_of_two.is_open(), "nobody was stopped for that")
        os.kill(self.child, signal.SIGKILL)
        wait_until("it is gone", lambda: self.lost(server) == [] and self.row(server)["lost_processes"] == 0)
        self.assertEqual(self.row(server)["stays"], "not swappable")
        self.assertEqual(self.commanded(server, command(SUSPEND, 1)), "done", "its end has mended it")
        self.assertEqual(self.commanded(server, command(RESUME, 1)), "done")

    def test_on_the_way_out(self):
        server = self.served()
        self.script(f"checkpoint {self.child} lost")
        said = self.commanded(server, command(SUSPEND, 1))
        self.assertRegex(said, r"^refused: .*the driver's checkpoint failed: ")
        wait_until("the others are back", lambda: self.job_of_two.hold() & 1 == 0)
        self.assertEqual((self.row(server)["state"], self.lost(server)), ("running", [self.child]))
        self.assertEqual((self.directory / "driver" / str(self.parent)).read_text(), "0")

    def test_who_cannot_be_put_back_is_returned_later(self):
        server = self.served()
        first, second = self.pids if self.parent == self.pids[0] else reversed(self.pids)
        self.script(f"checkpoint {second} 801", f"restore {first} 304")
        said = self.commanded(server, command(SUSPEND, 1))
        self.assertRegex(said, r"^refused: .*the driver's checkpoint failed: ")
        if self.driver_states() == [0, 0]:  # the other one was taken first, and refused
            self.script(f"checkpoint {first} 801", f"restore {second} 304")
            self.commanded(server, command(SUSPEND, 1))
        self.assertEqual(sorted(self.driver_states()), [0, 2], "one of them is left in it")
        self.assertEqual(self.job_of_two.hold() & 1, 1, "the other one waits with it")
        self.script()
        wait_until("both are back", lambda: self.driver_states() == [0, 0] and self.job_of_two.hold() & 1 == 0)
        self.settled(server, "running", "afterwards")


if __name__ == "__main__":
    e2e_support.main()
