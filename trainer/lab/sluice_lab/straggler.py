"""Experiment D: the straggler law. What a synchronous job keeps of its speed when bursts of others take its GPUs."""
import math
import random

from . import plots, processes
from .experiment import Cell, Claim, Experiment
from .intervals import Interval, estimate, mean, ratio_of
from .lab import shares_in

BUSY = 0.25  # the part of each GPU's time that bursts take
STEP_KERNELS, KERNEL_US = 40, 1000  # a step of 40 ms
BURST_PERCENT, RANK_PERCENT = 60, 40  # bursts go first as long as they take less than their guarantee
ERROR_MOST = 0.05


def step_times(ranks, burst, busy, steps=4000, seed=1):
    """Returns the lengths of a synchronous job's steps by the model: each of `ranks` GPUs is taken by bursts of `burst` steps' length,
    with exponential pauses, for the part `busy` of its time; a rank works in the pauses; a step ends when all ranks have done their
    part of it. One step alone is the unit of time."""
    draw = random.Random(seed)
    pause = burst * (1 - busy) / busy
    # Each GPU is in a burst until taken_until, and free from then until free_until.
    gpus = [[0.0, draw.expovariate(1 / pause)] for _ in range(ranks)]
    now, times = 0.0, []
    for _ in range(steps):
        ends = []
        for gpu in gpus:
            at, left = now, 1.0
            while True:
                while gpu[1] <= at:
                    gpu[0] = gpu[1] + burst
                    gpu[1] = gpu[0] + draw.expovariate(1 / pause)
                at = max(at, gpu[0])
                if gpu[1] - at >= left:
                    break
                left -= gpu[1] - at
                at = gpu[1]
            ends.append(at + left)
        times.append(max(ends) - now)
        now = max(ends)
    return times


def retained(ranks, burst, busy, steps=4000, seed=1):
    """Returns the speed of such a job, of that alone."""
    return 1 / mean(step_times(ranks, burst, busy, steps, seed))


def limits(ranks, busy):
    """Returns the speed with bursts much shorter than a step, and with bursts much longer."""
    return 1 - busy, (1 - busy) ** ranks


class Straggler(Experiment):
    name = "straggler"
    title = "The straggler law"
    question = "How much of its speed does a synchronous job keep when other jobs take its GPUs in bursts?"
    setup = (f"N ranks, each a job of its own on its own GPU, do steps of {STEP_KERNELS} kernels of {KERNEL_US} us and wait for each "
             f"other after each. On each GPU another job of class inference takes {BUSY:.0%} of the time, in bursts of a part of a "
             "step up to several steps, at random times. Alone the same ranks run without those jobs.")
    refuted_if = f"a measured speed is more than {ERROR_MOST:.0%} from what the model of the bursts says"
    noise_of = ("steps_per_s", mean)

    def ranks(self, lab):
        return (2, 4) if lab.quick else (1, 2, 4, 8)

    def bursts(self, lab):
        return (0.1, 1, 4) if lab.quick else (0.05, 0.1, 0.3, 1, 3, 10)

    def model_s(self, lab, cell):
        burst = cell.settings.get("burst", 0)
        # As many bursts on each GPU in the longest case as make a mean of them: a burst and its pause are burst / BUSY steps.
        cycles = 20 if lab.quick else 100
        least = 8 if lab.quick else 20
        return max(least, math.ceil(cycles * burst / BUSY * STEP_KERNELS * KERNEL_US / 1e6))

    def cells(self, lab):
        cells = [Cell(f"{ranks} alone", {"ranks": ranks}) for ranks in self.ranks(lab)]
        return cells + [Cell(f"{ranks} ranks, bursts of {burst:g}", {"ranks": ranks, "burst": burst})
                        for burst in self.bursts(lab) for ranks in self.ranks(lab)]

    def stretched(self, lab, cell):
        return lab.stretched(min(1, cell.settings.get("burst", 1)) * STEP_KERNELS * KERNEL_US / 1000)

    def seconds(self, lab, cell):
        return self.stretched(lab, cell).wall_s(self.model_s(lab, cell), 2 * cell.settings["ranks"])

    def specs(self, lab, cell, seed, directory):
        ranks, burst = cell.settings["ranks"], cell.settings.get("burst")
        specs = []
        for rank in range(ranks):
            words = processes.load("rank", kernel="work", kernel_us=lab.us(KERNEL_US), kernels=STEP_KERNELS, ranks=ranks, rank=rank,
                                   meeting=directory / "meeting")
            specs.append(processes.Spec(f"rank-{rank}", RANK_PERCENT, words, gpu=rank))
        if burst is None:
            return specs
        length_us = burst * STEP_KERNELS * KERNEL_US
        for gpu in range(ranks):
            words = processes.load("bursts", kernel="burst", kernel_us=lab.us(length_us), pause_us=lab.us(length_us * (1 - BUSY) / BUSY),
                                   seed=seed * 100 + gpu)
            specs.append(processes.Spec(f"burst-{gpu}", BURST_PERCENT, words, "inference", gpu=gpu))
        return specs

    def measure(self, lab, cell, seed):
        lab, ranks, burst = self.stretched(lab, cell), cell.settings["ranks"], cell.settings.get("burst")
        kernels = {"work": KERNEL_US}
        if burst is not None:
            kernels["burst"] = burst * STEP_KERNELS * KERNEL_US
        with lab.machine(kernels, gpus=ranks) as machine:
            machine.start(self.specs(lab, cell, seed, machine.directory))
            looks = lab.watch(machine, self.model_s(lab, cell))
            steps = machine.tenants[0].steps
        figures = {"steps_per_s": lab.rates_in(looks, steps), "lag": [[processes.lag_of(looks)]]}
        if burst is not None:
            figures["busy"] = [[sample / ranks for sample in block] for block in shares_in(looks, range(ranks, 2 * ranks))]
        return figures

    def retained(self, measured, ranks, burst):
        return estimate(ratio_of(mean), measured[f"{ranks} ranks, bursts of {burst:g}"]["steps_per_s"],
                        measured[f"{ranks} alone"]["steps_per_s"])

    def there(self, lab, measured):
        """Returns the pairs (ranks, burst) that were measured."""
        return [(ranks, burst) for burst in self.bursts(lab) for ranks in self.ranks(lab)
                if f"{ranks} ranks, bursts of {burst:g}" in measured and f"{ranks} alone" in measured]

    def busy(self, measured, ranks, burst):
        return mean([sample for block in measured[f"{ranks} ranks, bursts of {burst:g}"]["busy"] for sample in block])

    def error(self, measured, ranks, burst):
        """Returns measured over predicted, with the bursts' part of the time as it was."""
        law = retained(ranks, burst, self.busy(measured, ranks, burst))
        got = self.retained(measured, ranks, burst)
        return Interval(got.value / law, got.low / law, got.high / law)

    def rows(self, lab, measured):
        return [{"ranks": ranks, "burst, steps": burst, "bursts took": self.busy(measured, ranks, burst),
                 "speed, of alone": self.retained(measured, ranks, burst), "predicted": retained(ranks, burst, BUSY),
                 "predicted for what bursts took": retained(ranks, burst, self.busy(measured, ranks, burst)),
                 "short bursts, long bursts": "{:.2f}, {:.2f}".format(*limits(ranks, BUSY))}
                for ranks, burst in self.there(lab, measured)]

    def claims(self, lab, measured):
        return [Claim(f"{ranks} ranks, bursts of {burst:g} steps: the speed is within {ERROR_MOST:.0%} of the model's",
                      self.error(measured, ranks, burst), 1 - ERROR_MOST, 1 + ERROR_MOST)
                for ranks, burst in self.there(lab, measured)]

    def lesson(self, lab, measured):
        ranks = self.ranks(lab)[-1]
        short, long = (self.retained(measured, ranks, burst).value for burst in (self.bursts(lab)[0], self.bursts(lab)[-1]))
        return (f"Jobs that take a quarter of each GPU cost {ranks} ranks that wait for each other {1 - short:.0%} of their speed with "
                f"bursts of {self.bursts(lab)[0]:g} steps and {1 - long:.0%} with bursts of {self.bursts(lab)[-1]:g} steps.")

    def plots(self, lab, measured):
        series = [plots.Series(f"{burst:g} steps", [(ranks, self.retained(measured, ranks, burst)) for ranks, other in
                                                    self.there(lab, measured) if other == burst]) for burst in self.bursts(lab)]
        every = range(1, self.ranks(lab)[-1] + 1)
        series += [plots.Series("limit of short bursts", [(n, Interval(limits(n, BUSY)[0])) for n in every], line=True),
                   plots.Series("limit of long bursts", [(n, Interval(limits(n, BUSY)[1])) for n in every], line=True)]
        return [plots.Plot("Speed kept, by ranks and length of bursts", "ranks", "speed, of that alone", series, y_least=0, y_most=1, x_most=self.ranks(lab)[-1] + 0.5)]
