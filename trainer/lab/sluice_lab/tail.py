"""Experiment C: what requests pay for the training beside them, and what training keeps, under every policy."""
import random

from . import plots, processes
from .experiment import Cell, Claim, Experiment
from .intervals import estimate, mean, median, p99, part_within, pooled, ratio_of
from .lab import shares_in

LOAD = 0.4  # the part of the GPU that requests ask for
REQUEST_KERNELS, REQUEST_KERNEL_US = 25, 200  # a request of 5 ms
TRAIN_KERNEL_US = 1000
SERVE_PERCENT = TRAIN_PERCENT = 50
OVERSOLD_TRAININGS = 3
OBJECTIVE = 2  # times the p99 alone

# The policies, with what they are called in tables.
POLICIES = {"none": "no control (time slices)", "equal": "equal turns", "fixed": "fixed halves", "best-effort": "best-effort halves",
            "priority": "inference first", "oversold": f"inference first, beside {OVERSOLD_TRAININGS} weights"}


def sliced_p99(load, service_ms, requests=20000, seed=1):
    """Returns the p99 in milliseconds of requests at random times on a GPU of which a neighbour that always wants takes every
    other time slice: each takes twice as long, and waits for those before it (an M/D/1 queue, simulated)."""
    draw = random.Random(seed)
    at = free = 0.0
    times = []
    for _ in range(requests):
        at += draw.expovariate(load / service_ms)
        free = max(at, free) + 2 * service_ms
        times.append(free - at)
    return p99(times)


class Tail(Experiment):
    name = "tail"
    title = "Tail latency against throughput"
    question = "What do requests pay for a training job on their GPU, and what does the training keep, under each policy?"
    setup = (f"Requests of {REQUEST_KERNELS} kernels of {REQUEST_KERNEL_US} us arrive at random times and ask for {LOAD:.0%} of one "
             f"GPU. Training launches kernels of {TRAIN_KERNEL_US} us without a pause. Both alone, then together under each policy; the last "
             f"one has {OVERSOLD_TRAININGS} trainings with weights. "
             "A request's time is from when it was meant to start to the device's time of its last kernel's end.")
    refuted_if = ("under 'inference first' the p99 is above 1.15 times that alone, or training has less than 0.90 of what requests "
                  "leave, or no control does not double the p99")
    noise_of = ("latency_ms", median)

    def model_s(self, lab):
        return 6 if lab.quick else 30

    def stretched(self, lab):
        return lab.stretched(REQUEST_KERNELS * REQUEST_KERNEL_US / 1000)

    def cells(self, lab):
        cells = [Cell("requests alone", {"serve": True, "trainings": 0, "policy": "none"}),
                 Cell("training alone", {"serve": False, "trainings": 1, "policy": "none"})]
        for policy, label in POLICIES.items():
            trainings = OVERSOLD_TRAININGS if policy == "oversold" else 1
            cells.append(Cell(label, {"serve": True, "trainings": trainings, "policy": policy}))
        if lab.rival:
            cells.append(Cell(lab.rival.name, {"serve": True, "trainings": 1, "policy": "rival"}))
        return cells

    def seconds(self, lab, cell):
        return self.stretched(lab).wall_s(self.model_s(lab), cell.settings["trainings"] + 1)

    def specs(self, lab, cell, seed):
        policy = cell.settings["policy"]
        first = policy in ("priority", "oversold")
        mode = policy if policy in ("equal", "fixed") else "best-effort"
        specs = []
        if cell.settings["serve"]:
            gap_us = lab.us(REQUEST_KERNELS * REQUEST_KERNEL_US / LOAD)
            words = processes.load("requests", kernel="serve", kernel_us=lab.us(REQUEST_KERNEL_US), kernels=REQUEST_KERNELS,
                                   gap_us=gap_us, seed=seed)
            specs.append(processes.Spec("serve", SERVE_PERCENT, words, "inference" if first else "batch", mode))
        for number in range(cell.settings["trainings"]):
            words = processes.load("loop", kernel="train", kernel_us=lab.us(TRAIN_KERNEL_US), depth=4)
            specs.append(processes.Spec(f"train-{number}", TRAIN_PERCENT, words, "batch", mode, weight=policy == "oversold"))
        return specs

    def measure(self, lab, cell, seed):
        lab, policy = self.stretched(lab), cell.settings["policy"]
        kernels = {"serve": REQUEST_KERNEL_US, "train": TRAIN_KERNEL_US}
        with lab.machine(kernels, bare=policy == "none", rival=policy == "rival") as machine:
            machine.start(self.specs(lab, cell, seed))
            looks = lab.watch(machine, self.model_s(lab))
            requests = machine.tenants[0].requests if cell.settings["serve"] else []
        first = 1 if cell.settings["serve"] else 0
        figures = {"train": shares_in(looks, range(first, first + cell.settings["trainings"])), "lag": [[processes.lag_of(looks)]]}
        if cell.settings["serve"]:
            figures.update(serve=shares_in(looks, [0]), latency_ms=lab.samples_in(looks, requests))
            figures["kept"] = [[train[0] / (1 - serve[0])] for train, serve in zip(figures["train"], figures["serve"]) if serve[0] < 1]
        return figures

    def predict(self, lab, policy):
        """Returns (p99 over alone, training's part of the GPU): the simulator's for Sluice's policies, a queue's for time
        slices."""
        service_ms = REQUEST_KERNELS * REQUEST_KERNEL_US / 1000
        if policy == "none":
            return sliced_p99(LOAD, service_ms) / self._simulated(lab, None)[0], 1 - LOAD
        beside, share = self._simulated(lab, policy)
        return beside / self._simulated(lab, None)[0], share

    def _simulated(self, lab, policy):
        mode = policy if policy in ("equal", "fixed") else "best-effort"
        serve = {"name": "serve", "percent": SERVE_PERCENT, "program": "requests", "kernel_us": REQUEST_KERNEL_US,
                 "kernels": REQUEST_KERNELS, "gap_us": round(REQUEST_KERNELS * REQUEST_KERNEL_US / LOAD), "mode": mode}
        if policy in (None, "priority", "oversold"):
            serve["class"] = "inference"
        train = {"percent": TRAIN_PERCENT, "program": "loop", "kernel_us": TRAIN_KERNEL_US, "mode": mode,
                 **({"weight": True} if policy == "oversold" else {})}
        count = {None: 0, "oversold": OVERSOLD_TRAININGS}.get(policy, 1)
        result = processes.simulated(lab.build, [serve, *({"name": f"train-{i}", **train} for i in range(count))], 60)
        share = sum(job["busy_ns"][0] for job in result["jobs"][1:]) / result["duration_ns"]
        return result["jobs"][0]["latency_p99_ns"] / 1e6, share

    def ratio(self, measured, label, statistic=p99):
        return estimate(ratio_of(statistic), measured[label]["latency_ms"], measured["requests alone"]["latency_ms"])

    def throughput(self, measured, label):
        return estimate(ratio_of(mean), measured[label]["train"], measured["training alone"]["train"])

    def kept(self, measured, label):
        """Returns training's part of what requests leave."""
        return estimate(mean, measured[label]["kept"])

    def in_time(self, measured, label):
        objective = OBJECTIVE * p99(pooled(measured["requests alone"]["latency_ms"]))
        return estimate(lambda times: part_within(times, objective), measured[label]["latency_ms"])

    def labels(self, lab, measured):
        names = [*POLICIES.values(), *([lab.rival.name] if lab.rival else [])]
        return [label for label in names if label in measured]

    def rows(self, lab, measured):
        rows = []
        for label in self.labels(lab, measured):
            policy = next((p for p, name in POLICIES.items() if name == label), None)
            expected = self.predict(lab, policy) if policy else (float("nan"), float("nan"))
            rows.append({"policy": label, "p99, of alone": self.ratio(measured, label), "predicted p99": expected[0],
                         "p50, of alone": self.ratio(measured, label, median),
                         "in time": self.in_time(measured, label), "training, of alone": self.throughput(measured, label),
                         "predicted training": expected[1], "kept of what requests leave": self.kept(measured, label)})
        return rows

    def claims(self, lab, measured):
        first, none = POLICIES["priority"], POLICIES["none"]
        return [Claim("inference first: the slowest requests (p99) take at most 1.15 times what they take alone",
                      self.ratio(measured, first), most=1.15),
                Claim("inference first: training has at least 0.90 of the time that requests leave", self.kept(measured, first),
                      least=0.90),
                Claim("no control: the slowest requests (p99) take at least twice what they take alone", self.ratio(measured, none),
                      least=2)]

    def lesson(self, lab, measured):
        first, none = POLICIES["priority"], POLICIES["none"]
        return (f"Beside training, the slowest requests take {self.ratio(measured, none).value:.1f} times as long as alone with no "
                f"control and {self.ratio(measured, first).value:.2f} times when inference goes first; training then keeps "
                f"{self.throughput(measured, first).value:.0%} of its speed alone.")

    def plots(self, lab, measured):
        series = []
        for label in self.labels(lab, measured):
            series.append(plots.Series(label, [(self.throughput(measured, label).value, self.ratio(measured, label))]))
        return [plots.Plot("Slow requests against training, by policy", "training, of its speed alone",
                           "p99 of requests, of that alone", series, y_log=True, x_most=1)]
