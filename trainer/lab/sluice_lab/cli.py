"""sluice lab list, run, report, compare."""
import argparse
import datetime
import os
import pathlib
import platform
import subprocess
import sys
import time

from . import processes, report
from .consolidation import Consolidation
from .experiment import AGAIN
from .jitter import Jitter
from .lab import Lab, Rival
from .results import Results, ResultsError, file_write, measured_of
from .straggler import Straggler
from .tail import Tail

EXPERIMENTS = {experiment.name: experiment for experiment in (Consolidation(), Tail(), Straggler(), Jitter())}
QUICK_REPEATS, REPEATS = 2, 5
FAILED, WRONG_USE, STOPPED = 1, 2, 130


def say(text):
    print(text, file=sys.stderr, flush=True)


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def rival_of(text):
    """name:preload=PATH,env=K=V"""
    name, _, rest = text.partition(":")
    preload, env = None, []
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key == "preload":
            preload = value
        elif key == "env" and "=" in value:
            env.append(value)
        else:
            raise argparse.ArgumentTypeError(f"'{part}' is neither preload=PATH nor env=K=V")
    if not name or not preload:
        raise argparse.ArgumentTypeError("takes NAME:preload=PATH[,env=K=V ...]")
    if not os.path.exists(preload):
        raise argparse.ArgumentTypeError(f"there is no {preload}")
    return Rival(name, preload, env)


class Parser(argparse.ArgumentParser):
    """Python's own keeps it to itself that its help could not be written."""

    def _print_message(self, message, file=None):
        print(message, end="", file=file or sys.stderr)


def parser_of(build):
    parser = Parser(prog="sluice lab", description="Experiments that show what sharing a GPU gives and what it "
                                     "costs, each with a prediction, intervals and a verdict.",
                                     epilog="exit codes: 0; 1 something failed; 2 wrong use; 130 stopped: the same command goes on")
    commands = parser.add_subparsers(dest="command", required=True, metavar="list | run | report | compare")
    commands.add_parser("list", help="the experiments, and how long they take")
    run = commands.add_parser("run", help="measures experiments", description="Measures experiments; with an --out that holds a run "
                              "of the same settings, goes on with it.")
    run.add_argument("names", nargs="+", metavar="NAME", help="experiments, or all")
    run.add_argument("--quick", action="store_true", help=f"fewer cells, shorter, {QUICK_REPEATS} repeats")
    run.add_argument("--repeats", type=int, metavar="N", help=f"runs of each cell, each with seeds of its own ({REPEATS})")
    run.add_argument("--seed", type=int, default=1, help="of the first repeat (1)")
    run.add_argument("--dilation", default="auto", metavar="N", help="modelled time is stretched so many times, so that this host's "
                     "wake-ups matter less; auto: by what is measured and what a wake-up takes here (auto)")
    run.add_argument("--rival", type=rival_of, metavar="NAME:preload=PATH,env=K=V",
                     help="another library in Sluice's place, beside the policies")
    run.add_argument("--out", metavar="DIR", help="results (lab-results/<time>)")
    run.add_argument("--gpu", action="store_true", help="this machine's GPUs instead of software ones")
    made = commands.add_parser("report", help="makes report.html and results.json of a run anew")
    made.add_argument("directory", metavar="DIR")
    compare = commands.add_parser("compare", help="the tables of two runs beside each other")
    compare.add_argument("directories", nargs=2, metavar="DIR")
    parser.set_defaults(build=build)
    return parser


def lab_of(build, settings):
    rival = settings.get("rival")
    return Lab(build, settings["dilation"], settings["wake_us"] / 1000, settings["quick"], settings["gpu"],
               Rival(**rival) if rival else None)


def seconds_of(lab, experiment, repeats):
    cells = experiment.cells(lab)
    return repeats * sum(experiment.seconds(lab, cell) for cell in [*cells, cells[0]])


def duration(seconds):
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def list_all(build):
    wake_ms = processes.wake_ms()
    full, quick = Lab(build, wake_ms=wake_ms), Lab(build, wake_ms=wake_ms, quick=True)
    for experiment in EXPERIMENTS.values():
        print(f"{experiment.name:12} {experiment.title}: {experiment.question}\n{'':12} about "
              f"{duration(seconds_of(quick, experiment, QUICK_REPEATS))} with --quick, "
              f"{duration(seconds_of(full, experiment, REPEATS))} without")


def chosen(parser, names):
    if names == ["all"]:
        return list(EXPERIMENTS.values())
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        parser.error(f"there is no experiment '{unknown[0]}'; there are: {', '.join(EXPERIMENTS)}, or all")
    return [EXPERIMENTS[name] for name in dict.fromkeys(names)]


def settings_of(parser, arguments):
    try:
        dilation = 0 if arguments.dilation == "auto" else processes.dilation_of(arguments.dilation)
    except (ValueError, argparse.ArgumentTypeError) as error:
        parser.error(f"--dilation: {error}")
    if arguments.gpu and dilation > 1:
        parser.error("--dilation is for software GPUs")
    repeats = arguments.repeats if arguments.repeats is not None else QUICK_REPEATS if arguments.quick else REPEATS
    if repeats < 1:
        parser.error("--repeats is at least 1")
    return {"started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"), "host": platform.node(),
            "processor": processor(), "cores": os.cpu_count(), "gpu": arguments.gpu, "quick": arguments.quick,
            "repeats": repeats, "seed": arguments.seed, "dilation": dilation, "wake_us": round(1000 * processes.wake_ms()),
            "rival": vars(arguments.rival) if arguments.rival else None}


class Progress:
    """Where the run is and how long the rest will take, by what the cells took so far."""

    def __init__(self, expected_s):
        self.expected_s, self.done_s, self.began = expected_s, 0.0, time.monotonic()

    def show(self, text):
        factor = (time.monotonic() - self.began) / self.done_s if self.done_s > 0 else 1
        say(f"{text}; about {duration((self.expected_s - self.done_s) * factor)} left")


def plan(lab, experiments, results, repeats):
    """Returns what is still to be measured: (experiment, cell, name in the records, repeat)."""
    rest = []
    for experiment in experiments:
        there = results.load(experiment.name)
        cells = experiment.cells(lab)
        for repeat in range(repeats):
            for cell, name in [*((cell, cell.name) for cell in cells), (cells[0], cells[0].name + AGAIN)]:
                if (name, repeat) not in there:
                    rest.append((experiment, cell, name, repeat))
    return rest


def measure(lab, rest, results, settings):
    progress = Progress(sum(experiment.seconds(lab, cell) for experiment, cell, _, _ in rest))
    for experiment, cell, name, repeat in rest:
        progress.show(f"{experiment.name}, repeat {repeat + 1} of {settings['repeats']}: {name}")
        figures = experiment.measure(lab, cell, settings["seed"] + repeat)
        results.append(experiment.name, name, repeat, figures)
        progress.done_s += experiment.seconds(lab, cell)


def outcomes_of(lab, results):
    outcomes = []
    for name in results.experiments():
        measured = measured_of(results.load(name))
        experiment = EXPERIMENTS.get(name)
        if experiment is None:
            raise ResultsError(f"{results.path(name)}: there is no experiment '{name}'")
        if any(cell.name not in measured for cell in experiment.cells(lab)):
            say(f"{name} is not complete: no report of it yet")
            continue
        outcomes.append(report.Outcome(lab, experiment, measured))
    return sorted(outcomes, key=lambda outcome: list(EXPERIMENTS).index(outcome.experiment.name))


def report_make(build, directory):
    results = Results(directory)
    settings = results.settings()
    outcomes = outcomes_of(lab_of(build, settings), results)
    file_write(results.directory / "results.json", report.json_of(settings, outcomes))
    file_write(results.directory / "report.html", report.page(settings, outcomes))
    for outcome in outcomes:
        print(outcome.text() + "\n")
    print(f"{results.directory}/results.json\n{results.directory}/report.html")
    return 0


def run(parser, arguments):
    experiments = chosen(parser, arguments.names)
    settings = settings_of(parser, arguments)
    directory = pathlib.Path(arguments.out or "lab-results/" + time.strftime("%Y%m%d-%H%M%S")).absolute()
    results = Results(directory)
    results.settings_keep(settings)
    settings = results.settings()
    lab = lab_of(arguments.build, settings)
    rest = plan(lab, experiments, results, settings["repeats"])
    try:
        measure(lab, rest, results, settings)
    except KeyboardInterrupt:
        say(f"stopped; what was measured completely is kept: the same command with --out {directory} goes on")
        return STOPPED
    return report_make(arguments.build, directory)


def compare(build, directories):
    """Prints each row of both runs, one below the other."""
    sides = []
    for directory in directories:
        results = Results(directory)
        sides.append({outcome.experiment.name: outcome for outcome in outcomes_of(lab_of(build, results.settings()), results)})
    common = [name for name in sides[0] if name in sides[1]]
    if not common:
        raise ResultsError("the two runs have no complete experiment in common")
    for name in common:
        print(sides[0][name].experiment.title)
        rows = []
        for label, side in zip("AB", sides):
            rows += [{"run": label, **row} for row in side[name].rows]
        heads = list(rows[0])
        rows.sort(key=lambda row: str(row[heads[1]]))
        print(report.table(rows))
        for label, side in zip("AB", sides):
            print(f"  {label}: {side[name].verdict.value}")
    return 0


def main(build, words):
    parser = parser_of(build)
    arguments = parser.parse_args(words)
    try:
        if arguments.command == "list":
            list_all(build)
            return 0
        if arguments.command == "run":
            return run(parser, arguments)
        if arguments.command == "report":
            return report_make(build, arguments.directory)
        return compare(build, arguments.directories)
    except (ResultsError, RuntimeError) as error:
        say(f"sluice: {error}")
    except subprocess.CalledProcessError as error:
        said = (error.stderr or "").strip().splitlines()
        say(f"sluice: {pathlib.Path(error.cmd[0]).name} failed: {said[-1] if said else error}")
    except OSError as error:
        if error.filename is None:
            raise  # standard output is lost
        say(f"sluice: {error.filename}: {error.strerror}")
    return FAILED
