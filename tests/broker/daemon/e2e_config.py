"""The configuration as people meet it: checked, shown, read again, and told what is wrong with it."""

import os
import signal
import unittest

import e2e_support
from e2e_support import *

SHIPPED = pathlib.Path(__file__).resolve().parents[3] / "config/sluice.toml"


class Check(BrokerTest):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="sluice-e2e-"))
        self.addCleanup(shutil.rmtree, self.directory, True)
        self.file = self.directory / "sluice.toml"

    def check(self, text, *options):
        self.file.write_text(text)
        self.file.chmod(0o644)
        return self.sluice("config", "check", "--socket", "/nonexistent/s", *options, self.file)

    def test_a_good_file(self):
        result = self.check('[scheduler]\nquantum = "20ms"\n')
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, f"{self.file} is good\n", ""))

    def test_what_is_wrong_has_a_caret_under_its_column(self):
        result = self.check('[scheduler]\n\tquantun = "20ms"\nidle_grace = "5 parsecs"\n')
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr, (
            f"sluice: {self.file}:2:2: unknown key 'quantun'; did you mean 'quantum'?\n"
            '  \tquantun = "20ms"\n'
            '  \t^\n'
            f"sluice: {self.file}:3:14: idle_grace must be a duration such as \"500us\", \"10ms\" or \"1h30m\", not "
            '"5 parsecs"\n'
            '  idle_grace = "5 parsecs"\n'
            '               ^\n'
            f"sluice: {self.file} has 2 mistakes; sluiced would not start with it, and a reload would change nothing\n"))

    def test_a_syntax_error(self):
        for text, line, column in (('[broker\nlog_level = "info"\n', "[broker", 8),
                                   ('[broker]\nlog_level = "info\n', 'log_level = "info', 18),
                                   ('[broker]\nlog_level == "info"\n', 'log_level == "info"', 12)):
            result = self.check(text)
            self.assertEqual(result.returncode, 1, text)
            self.assertIn(f"\n  {line}\n  {' ' * (column - 1)}^\n", result.stderr, text)

    def test_accounts_that_do_not_exist_are_said(self):
        result = self.check('[profile.staff]\nusers = ["root", "nobody-of-here"]\ngroups = ["no-group-of-here"]\n'
                            '[exporter]\nuser = "no-exporter"\n')
        self.assertEqual((result.returncode, result.stdout), (0, f"{self.file} is good, but see what is said above\n"))
        self.assertIn(f"{self.file}:2:18: there is no user 'nobody-of-here' on this machine", result.stderr)
        self.assertIn(f"{self.file}:3:11: there is no group 'no-group-of-here' on this machine", result.stderr)
        self.assertIn(f"{self.file}:5:8: there is no user 'no-exporter' on this machine", result.stderr)

    def test_a_file_that_others_can_write(self):
        self.file.write_text("")
        self.file.chmod(0o666)
        result = self.sluice("config", "check", self.file)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"{self.file}: others than its owner can write to it (mode 0666), so they could change who gets which "
                      f"GPU; chmod go-w {self.file}", result.stderr)

    def test_mistyped_command_lines(self):
        for arguments, text in (((), "config takes check or show"), (("chekc",), "did you mean check?"),
                                (("check", "a", "b"), "config check takes one file"),
                                (("show", "--orign"), "did you mean --origin?")):
            result = self.sluice("config", *arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn(text, result.stderr)
        missing = self.sluice("config", "check", "/nonexistent/sluice.toml")
        self.assertEqual(missing.returncode, 1)
        self.assertIn("/nonexistent/sluice.toml: cannot be opened: No such file or directory", missing.stderr)

    def test_show_and_where_it_comes_from(self):
        self.check('[scheduler]\nquantum = "20ms"\n[profile.staff]\nusers = ["root"]\n')
        shown = self.sluice("config", "show", self.file)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn('[scheduler]\npolicy = "fair"\nquantum = "20ms"\n', shown.stdout)
        again = self.directory / "again.toml"
        again.write_text(shown.stdout)
        self.assertEqual(self.sluice("config", "show", again).stdout, shown.stdout, "what is shown is a configuration")
        origin = self.sluice("config", "show", "--origin", self.file).stdout
        self.assertRegex(origin, r'(?m)^quantum = "20ms" +# line 2$')
        self.assertRegex(origin, r'(?m)^policy = "fair" +# default$')
        self.assertRegex(origin, r'(?m)^users = \["root"\] +# line 4$')
        self.assertRegex(origin, r'(?m)^socket = .* +# default; read at start only$')

    def test_the_shipped_file(self):
        result = self.sluice("config", "check", SHIPPED)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn('user = "sluice-exporter"', self.sluice("config", "show", SHIPPED).stdout)


class Reload(BrokerTest):
    def reload(self, server):
        return self.sluice("reload", "--socket", server.socket)

    def test_it_answers_with_what_changed(self):
        server = self.broker('[scheduler]\nquantum = "10ms"\n[profile.a]\nusers = ["root"]\n')
        result = self.reload(server)
        self.assertEqual((result.returncode, result.stdout), (0, f"{server.config} was read again; nothing changed\n"))
        server.config_write('state = "/nonexistent/state"\n[scheduler]\nquantum = "20ms"\n[profile.b]\nusers = ["root"]\n'
                            'tenants_max = 3\n')
        look = self.sluice("config", "check", "--socket", server.socket, server.config)
        self.assertIn('a reload would change:\n  [scheduler] quantum: "10ms" -> "20ms"\n', look.stdout)
        self.assertEqual(server.status()["policy"]["quantum_ns"], 10_000_000, "looking changes nothing")
        result = self.reload(server)
        self.assertEqual((result.returncode, result.stdout), (0, (
            f"{server.config} was read again; changed:\n"
            '  [scheduler] quantum: "10ms" -> "20ms"\n'
            "  [profile.a] is gone; its jobs stay as they are\n"
            "  [profile.b] is new\n"
            "and, at the next start of sluiced (systemctl restart sluiced):\n"
            '  [broker] state: "" -> "/nonexistent/state"\n')))
        self.assertEqual(server.status()["policy"]["quantum_ns"], 20_000_000)
        self.assertIn('[broker] state: "" -> "/nonexistent/state"', self.reload(server).stdout, "until it is restarted")

    def test_or_with_what_is_wrong(self):
        server = self.broker()
        server.config_write('[scheduler]\nquantun = "20ms"\n')
        result = self.reload(server)
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertEqual(result.stderr, (
            f"sluice: {server.config}:4:1: unknown key 'quantun'; did you mean 'quantum'?\n"
            '  quantun = "20ms"\n  ^\n'
            f"sluice: nothing was changed; correct {server.config}, then reload again\n"))
        self.assertEqual(server.status()["broker"]["reloads_failed"], 1)

    def test_accounts_and_files_of_others(self):
        server = self.broker()
        server.config_write('[profile.staff]\nusers = ["nobody-of-here"]\n')
        self.assertIn("there is no user 'nobody-of-here'", self.reload(server).stdout)
        self.assertIn("event=config_account", server.log())
        server.config.chmod(0o622)
        result = self.reload(server)
        self.assertEqual(result.returncode, 1)
        self.assertIn("others than its owner can write to it (mode 0622)", result.stderr)
        self.assertIn("event=reload_failed", server.log())

    def test_a_broker_does_not_start_with_a_file_of_others(self):
        server = self.broker()
        server.kill()
        server.config.chmod(0o666)
        server.start()
        self.assertRegex(server.word, r"^sluice: .*sluice.toml: others than its owner can write to it \(mode 0666\)")

    def test_a_broker_does_not_start_where_nothing_is_left_for_jobs(self):
        server = self.broker()
        server.kill()
        server.config_write('[memory]\nreserve = "1TiB"\n')
        server.start()
        self.assertRegex(server.word, r"^sluice: \[memory\] reserve keeps back all 4096 MiB of GPU-[-0-9a-f]+, so no job gets any; lower it\n$")

    def test_nor_makes_the_directory_of_a_mistyped_socket(self):
        server = self.broker()
        server.kill()
        there, server.socket = server.socket, server.directory / "nosuch/broker.sock"
        server.start()
        self.assertEqual(server.word, f"sluice: there is no directory {server.directory}/nosuch for the socket; make it, or correct "
                                      "--socket\n")
        self.assertFalse(server.socket.parent.exists())
        server.socket = there

    @unittest.skipUnless(os.geteuid() == 0, "only root can give a file away")
    def test_nor_with_one_that_is_not_its_own(self):
        server = self.broker()
        server.kill()
        os.chown(server.config, 65534, -1)
        server.start()
        self.assertIn("belongs to user nobody, not to root, so that user could change who gets which GPU; chown root ",
                      server.word)

    @unittest.skipUnless(os.geteuid() == 0, "only root can act as another user")
    def test_only_root_may(self):
        server = self.broker(open_to_all=True)
        result = self.sluice("reload", "--socket", server.socket, user=65534, cwd="/")
        self.assertEqual(result.returncode, 1)
        self.assertIn("only root, or the user that the broker runs as, may have it read its configuration", result.stderr)

    @unittest.skipUnless(os.geteuid() == 0, "only root can act as another user")
    def test_a_check_by_another_user_is_no_refusal_in_the_log(self):
        server = self.broker(open_to_all=True)
        directory = server.config.parent
        before = directory.stat().st_mode
        directory.chmod(0o755)
        server.config.chmod(0o644)
        result = self.sluice("config", "check", "--socket", server.socket, server.config, user=65534, cwd="/")
        directory.chmod(before)
        self.assertIn("is good", result.stdout + result.stderr)
        self.assertNotIn("event=refused", server.log())

    def test_several_ask_at_once(self):
        server = self.broker()
        asked = [subprocess.Popen([program("sluice"), "reload", "--socket", server.socket], env=environment(),
                                  stdout=subprocess.PIPE, text=True) for _ in range(8)]
        for one in asked:
            self.assertIn("nothing changed", one.communicate(timeout=PATIENCE_S)[0])
            self.assertEqual(one.returncode, 0)


class OfTheMachine(BrokerTest):
    """A broker with /etc/sluice/sluice.toml, and clients that name no socket; /etc and /run are this test's own."""

    def machine(self, script):
        """Runs a script beside such a broker, which listens at /run/sluice/first.sock. Returns its lines."""
        whole = f"""set -e
            mount -t tmpfs none /etc; mount -t tmpfs -o mode=755 none /run; mkdir /etc/sluice
            write() {{ printf '[broker]\\nsocket = "/run/sluice/%s"\\n%b' "$1" "$2" >/etc/sluice/sluice.toml; }}
            up() {{ {program('sluiced')} --log /run/log & until grep -q event=ready /run/log; do sleep 0.02; done; broker=$!; }}
            sluice() {{ {program('sluice')} "$@" 2>&1; }}
            down() {{ kill $1 $broker; wait $broker || true; rm /run/log; }}
            trap 'kill $broker $other 2>/dev/null || true' EXIT
            write first.sock; up
            {script}"""
        probe = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/etc"], capture_output=True, check=False)
        if probe.returncode != 0:
            self.skipTest("no mount namespace here")
        result = subprocess.run(["unshare", "--mount", "timeout", "120", "sh", "-c", whole], env=environment(), text=True,
                                capture_output=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(result.returncode, 0, result)
        return result.stdout

    def test_a_new_socket_counts_from_the_next_start(self):
        said = self.machine("""
            sluice status >/run/before
            write second.sock '[scheduler]\\nquantum = "20ms"\\n'
            sluice config check
            sluice status | cmp - /run/before
            sluice run --memory 64MiB -- true
            sluice doctor | grep ' broker ' || true
            sluice reload
            sluice status >/dev/null
            down -TERM; up
            sluice status >/dev/null; test ! -e /run/sluice/first.sock; echo restarted""")
        at_start = ("and, at the next start of sluiced (systemctl restart sluiced):\n"
                    '  [broker] socket: "/run/sluice/first.sock" -> "/run/sluice/second.sock"\n')
        self.assertTrue(said.startswith("/etc/sluice/sluice.toml is good\na reload would change:\n"
                                        '  [scheduler] quantum: "10ms" -> "20ms"\n' + at_start), said)
        self.assertIn('was read again; changed:\n  [scheduler] quantum: "10ms" -> "20ms"\n' + at_start, said)
        self.assertTrue(said.endswith("restarted\n"), said)

    def test_a_broker_that_died_leaves_its_place_to_the_next(self):
        said = self.machine("""
            down -KILL
            sluice status || true
            write second.sock; up; sluice status >/dev/null; down -KILL
            write sluiced.sock; up; sluice status >/dev/null; test -S /run/sluice/sluiced.sock; test ! -L /run/sluice/sluiced.sock
            down -TERM; ls /run/sluice""")
        self.assertIn("no broker answers at /run/sluice/sluiced.sock (Connection refused)", said)
        self.assertNotIn("sluiced.sock\n", said.split("\n", 1)[1])

    def test_nobody_else_takes_it(self):
        """A broker that --socket places elsewhere is not the machine's."""
        self.machine(f"""
            {program('sluiced')} --socket /run/sluice/other.sock --log /run/other & other=$!
            until grep -q event=ready /run/other; do sleep 0.02; done
            test "$(readlink /run/sluice/sluiced.sock)" = /run/sluice/first.sock
            kill $other; wait $other || true
            test "$(readlink /run/sluice/sluiced.sock)" = /run/sluice/first.sock""")

    def test_a_check_says_that_there_is_nobody_to_compare_with(self):
        said = self.machine("down -TERM; sluice config check")
        self.assertEqual(said, "/etc/sluice/sluice.toml is good\nno broker answers at /run/sluice/sluiced.sock, so it was not "
                               "compared with what one uses; all of it counts from the next start of sluiced\n")


if __name__ == "__main__":
    e2e_support.main()
