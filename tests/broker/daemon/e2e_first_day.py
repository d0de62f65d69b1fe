"""The first day: what a user who has read nothing types works, and what is refused says what would do."""

import os
import pwd

import e2e_support
from e2e_support import *

HALF = 3584 * MIB
TRUE = ("--", "true")


class FirstDay(BrokerTest):
    def run_on(self, server, *arguments, **settings):
        return self.sluice("run", "--socket", server.socket, *arguments, **settings)

    def dry(self, server, *arguments):
        return self.run_on(server, "--dry-run", *arguments, *TRUE)

    def test_a_default_larger_than_the_gpu_is_cut_and_that_is_said_once(self):
        server = self.broker('[class.batch]\nmemory_max = "4GiB"\n', env=environment(FAKE_MEMORY=str(HALF)))
        result = self.run_on(server, *TRUE)
        self.assertEqual((result.returncode, result.stderr), (0, (
            "sluice: this job has 3.5 GiB: class batch's default is more than the GPU has; --memory asks for another "
            "quota\n")))
        self.assertIn("would run now with 3.5 GiB", self.dry(server).stdout)
        self.assertEqual(self.run_on(server, "--memory", "1G", *TRUE).stderr, "", "what was asked for is not cut")
        asked = self.run_on(server, "--memory", "4G", *TRUE)
        self.assertEqual(asked.returncode, 125)
        self.assertIn("ask for at most 3.5 GiB", asked.stderr)

    def test_a_default_beyond_the_profile_is_cut_and_that_is_said(self):
        server = self.broker('[class.batch]\nmemory_max = "2GiB"\nsm_percent = 50\n'
                             '[profile.default]\nmemory_max = "512MiB"\nsm_percent_max = 20\n')
        result = self.dry(server)
        self.assertEqual((result.stdout, result.stderr), (
            "would run now with 512 MiB and weight 20 on GPU 0 (class batch, profile default)\n",
            "sluice: this job has 512 MiB: class batch's default is more than profile default allows, so this is the most "
            "there is\n"
            "sluice: this job has weight 20: class batch's default is more than profile default allows, so this is the most "
            "there is\n"))
        self.assertEqual(self.dry(server, "--memory", "64M", "--sm", "10").stderr, "", "what was asked for is not cut")

    def test_a_default_beyond_what_a_user_may_have_is_cut_too(self):
        server = self.broker('[class.batch]\nmemory_max = "2GiB"\n[profile.default]\nuser_memory_max = "1GiB"\nrunning_max = 2\n')
        result = self.dry(server)
        self.assertEqual((result.stdout, result.stderr), (
            "would run now with 1 GiB and weight 100 on GPU 0 (class batch, profile default)\n",
            "sluice: this job has 1 GiB: class batch's default is more than profile default allows, so this is the most "
            "there is\n"))
        self.assertIn("would run now with 512 MiB and", self.dry(server, "--gpus", "2").stdout)
        self.assertIn("; profile default allows: 1 GiB of GPU memory for each user; 2 running for each user; 64 jobs at a time",
                      self.dry(server, "--memory", "2G").stderr)
        self.job(server)
        quota = lambda: server.tenants()[0]["gpus"][0]["memory_max_bytes"]  # noqa: E731
        self.assertEqual(quota(), GIB)
        server.config_write('[class.batch]\nmemory_max = "3GiB"\n[profile.default]\nuser_memory_max = "768MiB"\n')
        server.process.send_signal(signal.SIGHUP)
        wait_until("the default follows the new limit", lambda: quota() == 768 * MIB)

    def test_a_share_that_means_nothing_or_is_fixed_is_said(self):
        server = self.broker()
        self.assertEqual(self.dry(server, "--sm", "30", "--sm-mode", "equal").stderr,
                         "sluice: this job gets an equal part of the GPU time (--sm-mode equal), so --sm 30 means nothing to it; "
                         "leave one of them out\n")
        self.assertIn("with 1 GiB and 25 % of GPU 0, guaranteed, fixed (", self.dry(server, "--sm", "25", "--sm-mode", "fixed").stdout)
        self.assertIn("with 1 GiB and weight 25 on GPU 0, fixed (", self.dry(server, "--weight", "25", "--sm-mode", "fixed").stdout)

    def test_a_default_for_several_gpus_is_cut_to_what_so_many_have(self):
        server = self.broker('[class.batch]\nmemory_max = "9GiB"\n')
        self.assertIn("would run now with 4 GiB", self.dry(server, "--gpus", "2").stdout)

    def test_the_class_is_the_profiles_where_none_is_named(self):
        server = self.broker('[profile.default]\nclasses = ["inference", "debug"]\n')
        self.assertIn("class inference, profile default", self.dry(server).stdout)
        self.assertIn("class debug, profile default", self.dry(server, "--class", "debug").stdout)
        refused = self.dry(server, "--class", "batch")
        self.assertEqual(refused.returncode, 125)
        self.assertIn("does not allow the class batch", refused.stderr)
        self.assertIn("class batch, ", self.dry(self.broker()).stdout)
        both = self.broker('[profile.default]\nclasses = ["debug", "batch"]\n')
        self.assertIn("class batch, ", self.dry(both).stdout)

    def test_a_refusal_lists_what_is_allowed_and_whom_to_ask(self):
        server = self.broker('contact = "gpu-help@example.edu"\n[profile.default]\nclasses = ["debug", "batch"]\n'
                             'memory_max = "256MiB"\nsm_percent_max = 10\ntenants_max = 1\n')
        allowed = "; profile default allows: class debug or batch; 256 MiB and 10 % of each GPU; 1 job at a time; " \
                  "questions: gpu-help@example.edu\n"
        for arguments in (("--memory", "512M"), ("--sm", "50"), ("--weight", "50"), ("--class", "inference"), ("--gpus", "5"),
                          ("--memory", "16M"), ("--profile", "staff"), ("--memory-min", "32M")):
            result = self.run_on(server, *arguments, *TRUE)
            self.assertEqual(result.returncode, 125)
            self.assertTrue(result.stderr.endswith(allowed), result.stderr)
        self.assertIn("allows a weight of 10, asked was 50; ask for less with --weight", self.run_on(server, "--weight", "50", *TRUE).stderr)
        self.job(server)
        self.assertTrue(self.run_on(server, *TRUE).stderr.endswith(allowed))

    def test_sizes_with_short_units_and_what_is_ambiguous(self):
        server = self.broker()
        for text, shown in (("256M", "256 MiB"), ("1G", "1 GiB"), ("1.5G", "1.5 GiB"), ("256MB", "244.14 MiB")):
            self.assertIn(f"with {shown} and", self.dry(server, "--memory", text).stdout, text)
        for text, hint in (("256", "256M or 256G"), ("1g", "1G"), ("512mb", "512M (or 512MiB), or 512MB"),
                           ("1Gi", "1G"), ("268435456", "268435456B")):
            result = self.dry(server, "--memory", text)
            self.assertEqual(result.returncode, 125, text)
            self.assertIn(f"write {hint}", result.stderr)
        self.assertIn("--sm 25%", self.sluice("run", "--help").stdout)
        self.assertIn("M, G: ", self.sluice("run", "--help").stdout)

    def test_an_unknown_variable_is_named_once(self):
        server = self.broker()
        inner = [program("sluice"), "run", "--socket", str(server.socket), "--memory", "64M", "--", "true"]
        result = self.run_on(server, "--memory", "64M", "--", *inner,
                             env=environment(SLUICE_MEMROY="1GiB", SLUICE_SM="50%"))
        self.assertEqual((result.returncode, result.stderr), (
            0, "sluice: the variable SLUICE_MEMROY means nothing to Sluice; did you mean SLUICE_MEMORY?\n"))

    def test_people_by_name_and_gpus_by_index(self):
        server = self.broker('[profile.default]\nuser_memory_max = "1GiB"\n')
        name = pwd.getpwuid(os.getuid()).pw_name
        self.job(server, "--memory", "768MiB")
        wait_until("its user's name is known", lambda: server.tenants()[0]["user"] == name)
        self.assertIn(f"the jobs of user {name} have 768 MiB", self.dry(server, "--memory", "512M").stderr)
        status = self.sluice("status", "--socket", server.socket).stdout
        self.assertRegex(status, r"(?m)^\[0\] .* GPU-00000000-0000-4000-8000-000000000000$")
        self.assertIn("GPU 1 (GPU-00000000-0000-4000-8000-000000000001) no longer answers" , self.unknown(server))

    def unknown(self, server):
        """What is said of a GPU that is lost names it both ways."""
        lost = self.directory_file()
        other = self.broker(env=environment(FAKE_LOST_FILE=str(lost)))
        lost.write_text("1")
        wait_until("it is lost", lambda: other.status()["gpus"][1]["lost"])
        return self.run_on(other, "--gpu", "1", *TRUE).stderr

    def directory_file(self):
        directory = pathlib.Path(tempfile.mkdtemp(prefix="sluice-e2e-"))
        self.addCleanup(shutil.rmtree, directory, True)
        return directory / "lost"


if __name__ == "__main__":
    e2e_support.main()
