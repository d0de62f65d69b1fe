#!/usr/bin/env python3
"""That the share and priority benchmarks work and calculate right: their arithmetic on numbers chosen here, one small run of
each on a software GPU recomputed from its raw figures, another library in the shim's place, and what wrong use says. No
figure of the small runs is asserted: how exact shares are is measured on a quiet machine.

    bench_test.py BUILD [CLASS ...]
"""
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import alone_bench
import gang_bench
import priority_bench
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "trainer/lab"))
from sluice_lab import processes
import shares_bench

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
HERE = pathlib.Path(__file__).resolve().parent
PATIENCE_S = 150


def bench(name, *words):
    return subprocess.run([sys.executable, HERE / name, "--build", BUILD, *words], capture_output=True, text=True,
                          timeout=PATIENCE_S)


class Alone(unittest.TestCase):
    def test_many_streams_run_bare_and_under_sluice(self):
        figures = BUILD / "alone_bench_test.json"
        done = bench("alone_bench.py", "--repeats", "1", "--classes", "batch", "--json", figures)
        self.assertEqual(done.returncode, 0, done.stderr)
        runs = json.loads(figures.read_text())
        figures.unlink()
        self.assertEqual(set(runs), {shape.name() for shape in alone_bench.SHAPES})
        for name, ways in runs.items():
            self.assertEqual({way: len(times) for way, times in ways.items()}, {"bare": 1, "batch": 1}, name)
            self.assertIn("ratio", done.stdout)


class Arithmetic(unittest.TestCase):
    def test_shares_are_of_the_devices_clock_window_by_window(self):
        looks = [{"at": 100, "busy": [0, 50], "lag": 0}, {"at": 200, "busy": [30, 120], "lag": 5},
                 {"at": 400, "busy": [130, 220], "lag": 6}]
        self.assertEqual(processes.shares_of(looks), [[0.3, 0.5], [0.7, 0.5]])
        self.assertEqual(processes.lag_of(looks), 0.02)

    def test_error_is_the_mean_distance_of_the_windows(self):
        mean, error = shares_bench.figures_of([0.2, 0.4, 0.3], 0.3)
        self.assertAlmostEqual(mean, 0.3)
        self.assertAlmostEqual(error, 0.2 / 3)

    def test_the_worst_two_seconds_begin_at_any_step(self):
        shares = [0.5] * 15 + [0.1] * 20 + [0.5] * 15
        self.assertAlmostEqual(gang_bench.sliding(shares, 20), 0.1)
        figures = gang_bench.figures_of([shares, [0.4] * 50, [0.2] * 50])
        self.assertAlmostEqual(figures["worst"][0], 0.1)
        self.assertAlmostEqual(figures["busy"][0], figures["mean"][0] + 0.3)

    def test_the_simulator_is_compared_over_windows_as_long(self):
        arguments = unittest.mock.Mock(build=BUILD, preload=None, bare=False, config="", kernel=2000, sm_mode="best-effort", windows=2)
        for window, rows in ((1, 2), (0.5, None)):
            arguments.window = window
            found = shares_bench.simulated(arguments, "30/70", "equal")
            self.assertEqual(found and len(found), rows)

    def test_parts_are_of_what_all_used(self):
        self.assertEqual(shares_bench.parts_of([[0.125, 0.375], [0.375, 0.125]]), [[0.25, 0.75], [0.75, 0.25]])

    def test_a_summary_is_median_least_and_most_per_tenant(self):
        runs = [{"mean": (0.1, 0.9)}, {"mean": (0.3, 0.7)}, {"mean": (0.2, 0.6)}]
        self.assertEqual(shares_bench.summary(runs, "mean"), [{"median": 0.2, "least": 0.1, "most": 0.3},
                                                              {"median": 0.7, "least": 0.6, "most": 0.9}])

    def test_percentiles_are_of_the_nearest_rank(self):
        self.assertEqual(priority_bench.percentile(range(1, 101), 99), 99)
        self.assertEqual(priority_bench.percentile([5, 1, 3], 50), 3)
        self.assertEqual(priority_bench.percentile([7], 99), 7)

    def test_priority_compares_the_same_requests_and_what_inference_left(self):
        alone = {"requests_ns": [10e6] * 4, "shares": [0.5], "lag": 0.001}
        beside = {"requests_ns": [11e6, 12e6, 11e6], "shares": [0.5, 0.45], "lag": 0.002}
        figures = priority_bench.figures_of(alone, beside)
        self.assertEqual((figures["requests"], figures["beside_p99"], figures["lag"]), (3, 12, 0.002))
        self.assertAlmostEqual(figures["p99_ratio"], 1.2)
        self.assertAlmostEqual(figures["kept"], 0.9)

    def test_placeholders(self):
        spec = processes.Spec("t1-30", 30, [])
        self.assertEqual(processes.expand("A={percent}-{index}of{count}@{directory}/{name}={x}", spec, 1, 2, "/d"),
                         ("A", "30-1of2@/d/t1-30={x}"))


class Dilation(unittest.TestCase):
    def test_once_as_long_is_the_brokers_default(self):
        with tempfile.TemporaryDirectory() as place:
            shown = []
            for text in ("", processes.dilated_config(1)):
                pathlib.Path(place, "sluice.toml").write_text(text)
                done = subprocess.run([BUILD / "bin/sluice", "config", "show", pathlib.Path(place, "sluice.toml")],
                                      capture_output=True, text=True, check=True)
                shown.append(done.stdout)
        self.assertEqual(*shown)

    def test_the_longest_is_one_that_a_broker_takes(self):
        with tempfile.TemporaryDirectory() as place:
            pathlib.Path(place, "sluice.toml").write_text(processes.dilated_config(processes.DILATION_MAX))
            subprocess.run([BUILD / "bin/sluice", "config", "check", pathlib.Path(place, "sluice.toml")], capture_output=True,
                           check=True)

    def test_auto_is_by_what_a_wake_up_takes(self):
        for wake_ms, dilation in ((0.01, 1), (0.1, 1), (0.35, 4), (100, processes.DILATION_MAX)):
            with unittest.mock.patch.object(processes, "wake_ms", lambda took=wake_ms: took):
                self.assertEqual(processes.dilation_of("auto"), dilation)


class SharesAndSimulator(unittest.TestCase):
    """Processes and the simulator agree. Of what is used, because a busy host leaves the GPU idle; stretched, because it also
    wakes programs late."""

    def test_shares_are_within_two_points(self):
        with tempfile.TemporaryDirectory() as place:
            done = bench("shares_bench.py", "--json", f"{place}/all.json", "--split", "30/70", "--kind", "unequal", "--dilation",
                         "8", "--windows", "2", "--repeats", "1")
            self.assertEqual(done.returncode, 0, done.stderr)
            line = json.loads(pathlib.Path(place, "all.json").read_text())["lines"][0]
        simulated = [mean for mean, _ in line["sim"]]
        for part, mean, percent in zip(line["part"], simulated, (30, 70)):
            self.assertAlmostEqual(part["median"], mean / sum(simulated), delta=0.02, msg=done.stdout)
            self.assertAlmostEqual(mean, percent / 100, delta=0.02)



class LatenciesAndSimulator(unittest.TestCase):
    def test_ratios_are_within_a_tenth(self):
        with tempfile.TemporaryDirectory() as place:
            done = bench("priority_bench.py", "--json", f"{place}/all.json", "--dilation", "8", "--seconds", "3", "--repeats", "1")
            self.assertEqual(done.returncode, 0, done.stderr)
            everything = json.loads(pathlib.Path(place, "all.json").read_text())
        for key in ("p50_ratio", "p99_ratio"):
            measured, simulated = everything["figures"][key]["median"], everything["sim"][key]
            self.assertAlmostEqual(measured / simulated, 1, delta=0.1, msg=done.stdout)


class Gang(unittest.TestCase):
    """A gang and its neighbours have what they are guaranteed in every two seconds. Their parts of what is used are the
    simulator's."""

    def test_every_two_seconds(self):
        with tempfile.TemporaryDirectory() as place:
            done = bench("gang_bench.py", "--json", f"{place}/all.json", "--kernel", "10000", "--dilation", "5", "--seconds", "4",
                         "--warmup", "1", "--repeats", "3")
            self.assertEqual(done.returncode, 0, done.stderr)
            line = json.loads(pathlib.Path(place, "all.json").read_text())["lines"][0]
        runs, sim = line["runs"], line["sim"]
        used = [[run["mean"][job] / run["busy"][0] for run in runs] for job in range(3)]
        for job in range(3):
            for run in runs:
                self.assertGreaterEqual(run["worst"][job], 0.9 * 0.40, done.stdout)
            self.assertGreaterEqual(sim["worst"][job], 0.95 * 0.40, done.stdout)
            simulated = sim["mean"][job] / sim["busy"][0]
            self.assertAlmostEqual(statistics.median(used[job]), simulated, delta=0.02, msg=done.stdout)
        for run in runs:
            self.assertGreaterEqual(run["busy"][0], 0.90, done.stdout)
        self.assertGreaterEqual(sim["busy"][0], 0.95, done.stdout)


class SmallRuns(unittest.TestCase):
    def run_json(self, name, *words):
        with tempfile.TemporaryDirectory() as place:
            done = bench(name, "--json", f"{place}/all.json", *words)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(pathlib.Path(place, "all.json").read_text()), done.stdout

    def test_shares(self):
        kinds = shares_bench.KINDS
        everything, table = self.run_json("shares_bench.py", "--split", "30/70", "--windows", "2", "--window", "0.2",
                                          "--warmup", "0.1", "--repeats", "1", "--kernel", "5000")
        self.assertEqual((everything["under"], [line["kind"] for line in everything["lines"]]), ("sluiced", kinds))
        for line in everything["lines"]:
            for i, target in enumerate((0.3, 0.7)):
                windows = line["runs"][0]["windows"][i]
                self.assertEqual(len(windows), 2)
                for share in windows:
                    self.assertTrue(0 <= share <= 1.01, line)
                mean = statistics.fmean(windows)
                self.assertGreater(mean, 0, line)
                self.assertTrue(math.isclose(line["mean"][i]["median"], mean))
                error = (abs(windows[0] - target) + abs(windows[1] - target)) / 2
                self.assertTrue(math.isclose(line["error"][i]["median"], error))
                self.assertIn(f"{100 * mean:.2f}", table)

    def test_another_library_in_the_shims_place(self):
        everything, _ = self.run_json("shares_bench.py", "--preload", str(BUILD / "lib/libsluice.so"), "--env",
                                      "SLUICE_SM={percent}%", "--env", "SLUICE_MEMORY=256MiB", "--split", "40/40", "--kind",
                                      "equal", "--windows", "1", "--window", "0.3", "--repeats", "1")
        self.assertEqual(everything["under"], "libsluice.so")

    def test_what_a_tenant_says_is_seen_and_ends_the_run(self):
        done = bench("shares_bench.py", "--preload", str(BUILD / "lib/libsluice.so"), "--env", "SLUICE_SM=much{percent}",
                     "--split", "40/60", "--kind", "equal", "--windows", "1", "--window", "0.3", "--repeats", "1")
        self.assertNotEqual(done.returncode, 0)
        for percent in (40, 60):
            self.assertIn(f"SLUICE_SM is 'much{percent}'", done.stderr)

    def test_priority(self):
        everything, table = self.run_json("priority_bench.py", "--seconds", "1", "--repeats", "1", "--kernel", "500")
        run = everything["runs"][0]
        count = min(len(run["alone"]["requests_ns"]), len(run["beside"]["requests_ns"]))
        worst = sorted(run["beside"]["requests_ns"][:count])[math.ceil(0.99 * count) - 1]
        self.assertTrue(math.isclose(everything["figures"]["beside_p99"]["median"], worst / 1e6))
        self.assertIn(f"{worst / 1e6:.3f} ms", table)
        self.assertGreater(run["batch"], 0)


class WrongUse(unittest.TestCase):
    def test_is_said(self):
        for words, text in ((["--split", "30:70"], "--split takes percentages"), (["--env", "X"], "--env takes K=V"),
                            (["--preload", "/nowhere.so"], "there is no /nowhere.so"),
                            (["--bare", "--preload", sys.executable], "exclude each other"),
                            (["--repeats", "0"], "--repeats is at least 1"), (["--dilation", "0"], "1 to 50, or auto"),
                            (["--dilation", "2", "--gpu"], "--dilation is for software GPUs")):
            done = bench("shares_bench.py", *words)
            self.assertEqual(done.returncode, 2)
            self.assertIn(text, done.stderr)
        for words, text in ((["--seconds", "1"], "--seconds is at least 2"), (["--bare"], "for software GPUs and Sluice"),
                            (["--gpus", "0"], "--gpus is 1 to 16")):
            done = bench("gang_bench.py", *words)
            self.assertEqual(done.returncode, 2)
            self.assertIn(text, done.stderr)
        done = bench("priority_bench.py", "--load", "1")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--load is between 0 and 1", done.stderr)


unittest.main(verbosity=2)
