#!/usr/bin/env python3
"""The lab's experiments: intervals, verdicts, the models that predict, the records of a run, the page, and a small run.

    experiments_test.py BUILD [unittest's words]
"""
import contextlib
import io
import json
import math
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "trainer/lab"), str(ROOT / "tests/exporter")]
from browser import Browser
from sluice_lab import cli, consolidation, experiment, intervals, jitter, lab, plots, processes, report, straggler, tail
from sluice_lab.experiment import Claim, Verdict
from sluice_lab.intervals import Interval
from sluice_lab.results import Results, ResultsError, measured_of

BUILD = pathlib.Path(sys.argv[1]).resolve()
SETTINGS = {"started": "2026-01-01T00:00:00+00:00", "host": "h", "processor": "p", "cores": 2, "gpu": False, "quick": True, "repeats": 2,
            "seed": 1, "dilation": 0, "wake_us": 50, "rival": None}


def sluice_lab(*words, **more):
    return subprocess.run([BUILD / "bin/sluice", "lab", *map(str, words)], capture_output=True, text=True, timeout=120, check=False, **more)


class Intervals(unittest.TestCase):
    def test_percentile_is_by_nearest_rank(self):
        self.assertEqual(intervals.percentile([4, 1, 3, 2], 50), 2)
        self.assertEqual(intervals.percentile(range(1, 101), 99), 99)
        self.assertTrue(math.isnan(intervals.percentile([], 99)))

    def test_nineteen_of_twenty_intervals_hold_the_mean(self):
        held = 0
        for seed in range(200):
            draw = random.Random(seed)
            blocks = [[draw.gauss(10, 3) for _ in range(5)] for _ in range(20)]
            one = intervals.estimate(intervals.mean, blocks)
            held += one.low <= 10 <= one.high
        self.assertGreaterEqual(held, 176, "four deviations below 95 % of 200, less what 20 blocks make it short")
        self.assertLess(held, 200)

    def test_a_single_block_has_no_interval(self):
        one = intervals.estimate(intervals.mean, [[1, 2, 3]])
        self.assertEqual(one.value, 2)
        self.assertTrue(math.isnan(one.low))
        self.assertEqual(one.text(), "2.00")

    def test_a_ratio_draws_both_apart(self):
        one = intervals.estimate(intervals.ratio_of(intervals.mean), [[2], [4]], [[1], [1]])
        self.assertEqual((one.value, one.low, one.high), (3, 2, 4))


class Verdicts(unittest.TestCase):
    def test_of_a_claim(self):
        for low, high, verdict in ((1.0, 1.1, Verdict.SUPPORTED), (1.1, 1.2, Verdict.INCONCLUSIVE), (1.2, 1.3, Verdict.REFUTED),
                                   (math.nan, math.nan, Verdict.INCONCLUSIVE)):
            self.assertEqual(Claim("x", Interval(1.1, low, high), most=1.15).verdict(), verdict)
        self.assertEqual(Claim("x", Interval(0.5, 0.4, 0.6), least=0.7).verdict(), Verdict.REFUTED)

    def test_of_all_claims(self):
        good, open_, bad = (Claim("x", Interval(1, low, high), 0, 2) for low, high in ((1, 1), (1, 3), (3, 4)))
        self.assertEqual(experiment.verdict_of([good, good]), Verdict.SUPPORTED)
        self.assertEqual(experiment.verdict_of([good, open_]), Verdict.INCONCLUSIVE)
        self.assertEqual(experiment.verdict_of([good, open_, bad]), Verdict.REFUTED)
        self.assertEqual(experiment.verdict_of([]), Verdict.INCONCLUSIVE)


class Models(unittest.TestCase):
    def test_the_straggler_law_has_both_limits(self):
        for ranks in (1, 2, 4, 8):
            short, long = straggler.limits(ranks, 0.25)
            # A burst is 1/300 of a step, and a step sees a hundred of them: their number differs by 6 % of a quarter.
            self.assertAlmostEqual(straggler.retained(ranks, 1 / 300, 0.25, steps=500), short, delta=0.04)
            self.assertAlmostEqual(straggler.retained(ranks, 300, 0.25, steps=200_000), long, delta=0.1 * long + 0.01)

    def test_one_rank_keeps_what_bursts_leave(self):
        for burst in (0.1, 1, 3):
            self.assertAlmostEqual(straggler.retained(1, burst, 0.4, steps=20_000), 0.6, delta=0.02)

    def test_a_gang_has_the_time_in_which_no_request_runs_on_any_of_its_gpus(self):
        for gpus in (1, 2, 4):
            times = jitter.gang_step_times(0.1, 0.25, gpus, steps=20_000)
            self.assertEqual(len(times), 20_000)
            self.assertAlmostEqual(1 / intervals.mean(times), 0.75 ** gpus, delta=0.02)
        self.assertLess(intervals.deviation(jitter.gang_step_times(0.0001, 0.25, 2, steps=200)), 0.02, "many short requests are even")

    def test_services_in_turns_are_a_queue_of_fixed_service(self):
        for services in (2, 4, 6):
            load = services * 0.1
            times = consolidation.shared_times(services, 0.1, False, requests=30_000)
            self.assertAlmostEqual(intervals.mean(times), 1 + load / (2 * (1 - load)), delta=0.05)
            dearer = consolidation.shared_times(services, 0.1, False, change=0.1, requests=30_000)
            self.assertGreater(intervals.mean(dearer), intervals.mean(times), "an idle service keeps its turn for a moment")

    def test_many_services_in_slices_take_as_long_as_a_processor_that_is_shared_evenly(self):
        # The mean of processor sharing is service / (1 - load), whatever the service; a hundred services hardly wait for themselves.
        times = consolidation.shared_times(100, 0.005, True, requests=30_000)
        self.assertEqual(len(times), 30_000)
        self.assertAlmostEqual(intervals.mean(times), 2, delta=0.15)

    def test_sliced_requests_take_twice_as_long_at_no_load(self):
        self.assertAlmostEqual(tail.sliced_p99(0.001, 5), 10, delta=0.1)

    def test_the_mean_wait_is_a_queue_of_fixed_service(self):
        # Pollaczek and Khinchine: the mean wait is load x service / (2 (1 - load)), here of 10 ms at a load of 0.8.
        draw, at, free, waits = random.Random(2), 0.0, 0.0, []
        for _ in range(200_000):
            at += draw.expovariate(0.08)
            waits.append(max(0, free - at))
            free = max(at, free) + 10
        self.assertAlmostEqual(intervals.mean(waits), 0.8 * 10 / 0.4, delta=1.5)


class Records(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.results = Results(pathlib.Path(place.name) / "run")
        self.results.settings_keep(SETTINGS)

    def test_what_was_measured_is_there(self):
        self.results.append("tail", "a, b", 0, {"x": [[1, 2], [], [3]], "lag": [[0.5]]})
        self.results.append("tail", "a, b", 1, {"x": [[4]]})
        runs = self.results.load("tail")
        self.assertEqual(runs[("a, b", 0)], {"x": [[1, 2], [], [3]], "lag": [[0.5]]})
        self.assertEqual(measured_of(runs)["a, b"]["x"], [[1, 2], [], [3], [4]])

    def test_a_run_that_was_cut_off_is_measured_again_and_nothing_else(self):
        self.results.append("tail", "a", 0, {"x": [[1]]})
        whole = self.results.path("tail").read_bytes()
        self.results.append("tail", "b", 0, {"x": [[2], [3]]})
        both = self.results.path("tail").read_bytes()
        for end in range(len(whole), len(both)):
            self.results.path("tail").write_bytes(both[:end])
            self.assertEqual(list(self.results.load("tail")), [("a", 0)], both[len(whole):end])
            self.assertEqual(self.results.path("tail").read_bytes(), whole)

    def test_a_run_goes_on_with_the_same_settings_only(self):
        self.results.settings_keep({**SETTINGS, "started": "later", "wake_us": 70})
        with self.assertRaisesRegex(ResultsError, "other settings \\(seed\\)"):
            self.results.settings_keep({**SETTINGS, "seed": 2})

    def test_what_is_no_directory_of_results_is_said(self):
        with self.assertRaisesRegex(ResultsError, "is no directory of results: settings.json: No such file"):
            Results(self.results.directory / "none").settings()
        (self.results.directory / "settings.json").write_text("{")
        with self.assertRaisesRegex(ResultsError, "is not JSON"):
            self.results.settings()
        self.results.path("tail").write_text("x,y\n")
        with self.assertRaisesRegex(ResultsError, "the first line is not cell,repeat"):
            self.results.load("tail")


def made_up(one, quick):
    """Figures for each cell as if they had been measured."""
    draw = random.Random(3)
    measured = {}
    for cell in [*one.cells(quick), one.cells(quick)[0]]:
        name = cell.name + (experiment.AGAIN if cell.name in measured else "")
        serves = cell.settings.get("serve", True)
        measured[name] = {"lag": [[0.001]], **{figure: [[low + draw.random() * (high - low) for _ in range(20)] for _ in range(6)]
                          for figure, low, high in (("latency_ms", 5, 15), ("train", 0.5, 0.6), ("serve", 0.3, 0.4), ("kept", 0.9, 1),
                                                    ("steps_per_s", 10, 12), ("step_ms", 50, 90), ("busy", 0.2, 0.3)) if serves or figure != "latency_ms"}}
    return measured


class Page(unittest.TestCase):
    def setUp(self):
        self.lab = lab.Lab(BUILD, quick=True)
        self.outcomes = [report.Outcome(self.lab, one, made_up(one, self.lab)) for one in cli.EXPERIMENTS.values()]
        self.page = report.page(SETTINGS, self.outcomes)

    def test_every_experiment_has_its_texts_claims_and_verdict(self):
        for outcome in self.outcomes:
            for text in (outcome.experiment.question, outcome.lesson, *(claim.text for claim in outcome.claims)):
                self.assertIn(report.html.escape(text), self.page)
            self.assertIn(outcome.verdict.value.upper(), outcome.text())

    def test_plots_are_whole_and_have_texts_for_readers_that_do_not_see_them(self):
        for outcome in self.outcomes:
            for plot in outcome.plots:
                picture = xml.etree.ElementTree.fromstring(plots.svg(plot))
                points = sum(len(series.points) for series in plot.series if not series.line)
                self.assertEqual(sum(element.tag == "circle" for element in picture.iter()), points)
                self.assertEqual(picture.get("aria-label"), plot.title)
                self.assertIn(plot.series[0].label, picture.find("desc").text)

    def test_too_much_lag_leaves_the_verdict_open(self):
        one = cli.EXPERIMENTS["straggler"]
        measured = made_up(one, self.lab)
        measured[one.cells(self.lab)[0].name]["lag"] = [[0.05]]
        outcome = report.Outcome(self.lab, one, measured)
        self.assertEqual(outcome.verdict, Verdict.INCONCLUSIVE)
        self.assertIn("above 2%", outcome.conditions())

    def test_the_noise_floor_is_how_far_the_first_cell_was_from_itself(self):
        one = cli.EXPERIMENTS["straggler"]
        measured = made_up(one, self.lab)
        first = one.cells(self.lab)[0].name
        measured[first]["steps_per_s"], measured[first + experiment.AGAIN]["steps_per_s"] = [[10], [10]], [[10], [11]]
        self.assertAlmostEqual(one.noise(measured), 0.05)
        del measured[first + experiment.AGAIN]
        self.assertIsNone(one.noise(measured))

    def test_results_are_json(self):
        known = json.loads(report.json_of(SETTINGS, self.outcomes))
        self.assertEqual([one["experiment"] for one in known["experiments"]], list(cli.EXPERIMENTS))

    def test_whole_runs_are_reported_and_compared(self):
        one = cli.EXPERIMENTS["straggler"]
        with tempfile.TemporaryDirectory() as place:
            for name in ("a", "b"):
                results = Results(f"{place}/{name}")
                results.settings_keep(SETTINGS)
                for cell, figures in made_up(one, self.lab).items():
                    results.append(one.name, cell, 0, figures)
            done = sluice_lab("report", f"{place}/a")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn(one.title, pathlib.Path(place, "a/report.html").read_text())
            self.assertEqual(json.loads(pathlib.Path(place, "a/results.json").read_text())["experiments"][0]["experiment"], one.name)
            done = sluice_lab("compare", f"{place}/a", f"{place}/b")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count("\n  A  "), done.stdout.count("\n  B  "))
            self.assertGreater(done.stdout.count("\n  A  "), 4)

    @unittest.skipIf(Browser.installed() is None, "no Chromium is installed (Debian package chromium)")
    def test_a_browser_shows_it_without_a_complaint_and_asks_for_nothing_else(self):
        with tempfile.TemporaryDirectory() as place, Browser() as browser:
            path = pathlib.Path(place) / "report.html"
            path.write_text(self.page)
            browser.call("Page.navigate", url=path.as_uri())
            deadline = time.monotonic() + 30
            while not browser.evaluate("document.readyState === 'complete' && document.title.length > 0"):
                self.assertLess(time.monotonic(), deadline)
            for outcome in self.outcomes:
                shown = browser.evaluate(f"document.querySelectorAll('#{outcome.experiment.name} svg circle').length")
                self.assertEqual(shown, sum(len(s.points) for plot in outcome.plots for s in plot.series if not s.line))
            self.assertFalse(browser.complaints())
            self.assertEqual(browser.asked_for(), [path.as_uri()])


class WrongUse(unittest.TestCase):
    def test_each_mistake_is_named(self):
        with tempfile.TemporaryDirectory() as place:
            pathlib.Path(place, "file").write_text("")
            for words, code, text in ((["run", "nothing"], 2, "there is no experiment 'nothing'; there are: consolidation, tail, straggler, jitter, or all"),
                                      (["run", "tail", "--repeats", "0"], 2, "--repeats is at least 1"),
                                      (["run", "tail", "--dilation", "x"], 2, "--dilation"),
                                      (["run", "tail", "--rival", "other:env=A=B"], 2, "takes NAME:preload=PATH"),
                                      (["run", "tail", "--rival", "other:preload=/nowhere.so"], 2, "there is no /nowhere.so"),
                                      (["run", "tail", "--out", f"{place}/file/x"], 1, "cannot create"),
                                      (["report", place], 1, "is no directory of results"),
                                      (["compare", place, place], 1, "is no directory of results")):
                done = sluice_lab(*words)
                self.assertEqual(done.returncode, code, done)
                self.assertIn(text, done.stderr)
                self.assertNotIn("Traceback", done.stderr)

    def test_mistakes_of_the_load_are_named(self):
        for words, text in ((["--pattern", "rank"], "--pattern rank needs --meeting FILE"), (["--kernel", "9"], "--kernel: a name of letters"),
                            (["--pattern", "rank", "--meeting", "/x", "--ranks", "2", "--rank", "2"], "--rank 2 is not below --ranks 2"),
                            (["--pattern", "none"], "--pattern")):
            done = subprocess.run([BUILD / "bin/sluice-load", *words], capture_output=True, text=True, check=False, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(text, done.stderr)

    def test_the_list_says_how_long_each_takes(self):
        said = sluice_lab("list").stdout
        for name in cli.EXPERIMENTS:
            self.assertIn(name, said)
        self.assertIn("with --quick", said)


class Small(unittest.TestCase):
    """Real runs at small scale: that they work; no figures."""

    def run_cell(self, one, name):
        here = lab.Lab(BUILD, quick=True)
        cell = next(cell for cell in one.cells(here) if cell.name == name)
        one.model_s = lambda *_: 2
        return one.measure(here, cell, 1)

    def test_a_tenant_is_on_its_gpu_with_no_control_too(self):
        words = [processes.load("loop", kernel="k", kernel_us=1000, depth=4)] * 2
        with lab.Lab(BUILD, dilation=1).machine({"k": 1000}, gpus=2, bare=True) as machine:
            machine.start([processes.Spec(f"t{gpu}", 50, words[gpu], gpu=gpu) for gpu in (0, 1)])
            shares = processes.shares_of(machine.watch(0.5, 1.5, 1))
        for (share,) in shares:
            self.assertGreater(share, 0.6, "on one GPU each would have half of it")

    def test_services_in_turns(self):
        figures = self.run_cell(consolidation.Consolidation(), "3 services, turns")
        self.assertGreater(len(intervals.pooled(figures["latency_ms"])), 20)
        self.assertGreater(min(intervals.pooled(figures["busy"])), 0)

    def test_requests_beside_training(self):
        figures = self.run_cell(tail.Tail(), tail.POLICIES["priority"])
        self.assertEqual(len(figures["train"]), 2)
        self.assertGreater(len(intervals.pooled(figures["latency_ms"])), 20)
        self.assertGreater(min(intervals.pooled(figures["train"])), 0)

    def test_ranks_beside_bursts(self):
        figures = self.run_cell(straggler.Straggler(), "2 ranks, bursts of 0.1")
        self.assertGreater(min(intervals.pooled(figures["steps_per_s"])), 0)
        self.assertGreater(min(intervals.pooled(figures["busy"])), 0)

    def test_a_gang_beside_requests(self):
        one = jitter.Jitter()
        figures = self.run_cell(one, jitter.WAYS["guarantee"])
        self.assertGreater(len(intervals.pooled(figures["step_ms"])), 5)
        self.assertGreater(len(intervals.pooled(figures["latency_ms"])), 20)
        self.assertGreater(len(intervals.pooled(self.run_cell(one, jitter.ALONE)["step_ms"])), 20)

    def test_a_run_that_is_stopped_keeps_what_it_has_and_goes_on(self):
        with tempfile.TemporaryDirectory() as place:
            words = ["run", "tail", "--quick", "--repeats", "1", "--dilation", "1", "--out", f"{place}/run"]
            process = subprocess.Popen([BUILD / "bin/sluice", "lab", *words], stderr=subprocess.PIPE, text=True)
            for line in process.stderr:
                if "training alone" in line:
                    break
            process.send_signal(signal.SIGINT)
            rest = process.stderr.read()
            self.assertEqual(process.wait(60), cli.STOPPED, rest)
            process.stderr.close()
            self.assertIn("the same command with --out", rest)
            runs = Results(f"{place}/run").load("tail")
            self.assertEqual(list(runs), [("requests alone", 0)])
            settings = Results(f"{place}/run").settings()
            here = cli.lab_of(BUILD, settings)
            left = cli.plan(here, [tail.Tail()], Results(f"{place}/run"), 1)
            self.assertEqual(left[0][2], "training alone")
            with contextlib.redirect_stderr(io.StringIO()) as said:
                self.assertEqual(cli.outcomes_of(here, Results(f"{place}/run")), [])
            self.assertIn("tail is not complete", said.getvalue())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
