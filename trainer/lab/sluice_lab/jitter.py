"""Experiment E: how even the steps of a synchronous job are, with whole GPUs and with shared ones."""
import heapq
import random

from . import plots, processes
from .experiment import Cell, Claim, Experiment
from .intervals import Interval, deviation, estimate, mean, median, p99, percentile, pooled, ratio_of

GPUS = 2
STEP_KERNELS, KERNEL_US = 25, 2000  # a step of 50 ms
REQUEST_KERNELS, REQUEST_KERNEL_US = 25, 200  # a request of 5 ms
LOAD = 0.25  # the part of each GPU that requests ask for
PERCENT = 40  # of the job and of the requests on each GPU
RATE = 1e12  # the collective's instructions take the time that this host takes for them
EVEN, UNEVEN = 0.02, 3

ALONE = "exclusive"
WAYS = {"none": "no control (time slices)", "guarantee": f"guaranteed {PERCENT} %", "weight": f"weight of {PERCENT}"}


def requests_of(service, load, random_):
    """Yields when requests of this service time run on one GPU: from, to. They arrive at random times and wait for each other."""
    at = free = 0.0
    while True:
        at += random_.expovariate(load / service)
        free = max(at, free) + service
        yield free - service, free


def gang_step_times(service, load, gpus, steps=4000, seed=1):
    """Returns the lengths of a gang's steps by the model: it runs while no request runs on any of its GPUs, and a change of turns
    costs nothing. One step alone is the unit of time."""
    busy = heapq.merge(*(requests_of(service, load, random.Random(seed * 100 + gpu)) for gpu in range(gpus)))
    times, begun, at, left = [], 0.0, 0.0, 1.0
    for begin, end in busy:
        while begin - at >= left:
            at += left
            times.append(at - begun)
            begun, left = at, 1.0
            if len(times) == steps:
                return times
        left -= max(begin - at, 0)
        at = max(at, end)
    return times


class Jitter(Experiment):
    name = "jitter"
    title = "How even the steps are"
    question = "How even are the steps of a synchronous training job that has its GPUs to itself, and of one that shares them?"
    setup = (f"Training does steps of {STEP_KERNELS} kernels of {KERNEL_US} us on each of {GPUS} GPUs, with a collective after each. "
             f"Exclusive, it is alone; else requests of 5 ms ask for {LOAD:.0%} of each GPU. CV is the standard deviation of the step "
             "times over their mean.")
    refuted_if = (f"the exclusive job's CV is above {EVEN}, or a shared one's is less than {UNEVEN} times as large, or the guaranteed job "
                  "has less than nine tenths of the time in which no request runs on either GPU")
    noise_of = ("steps_per_s", mean)

    def model_s(self, lab):
        return 10 if lab.quick else 60

    def stretched(self, lab):
        return lab.stretched(REQUEST_KERNELS * REQUEST_KERNEL_US / 1000)

    def cells(self, lab):
        return [Cell(ALONE, {"way": "exclusive"}), *(Cell(label, {"way": way}) for way, label in WAYS.items())]

    def seconds(self, lab, cell):
        return self.stretched(lab).wall_s(self.model_s(lab), 1 + GPUS)

    def specs(self, lab, way, seed):
        words = processes.load("gang", kernel="step", kernel_us=lab.us(KERNEL_US), kernels=STEP_KERNELS, ranks=GPUS)
        whole = way == "exclusive"
        specs = [processes.Spec("training", PERCENT, words, "exclusive" if whole else "batch", weight=way == "weight",
                                gpus=GPUS)]
        for gpu in range(0 if whole else GPUS):
            words = processes.load("requests", kernel="serve", kernel_us=lab.us(REQUEST_KERNEL_US), kernels=REQUEST_KERNELS,
                                   gap_us=lab.us(REQUEST_KERNELS * REQUEST_KERNEL_US / LOAD), seed=seed * 100 + gpu)
            specs.append(processes.Spec(f"serve-{gpu}", PERCENT, words, "inference", gpu=gpu))
        return specs

    def measure(self, lab, cell, seed):
        lab, way = self.stretched(lab), cell.settings["way"]
        with lab.machine({"step": KERNEL_US, "serve": REQUEST_KERNEL_US}, gpus=GPUS, bare=way == "none", RATE=RATE) as machine:
            machine.start(self.specs(lab, way, seed))
            looks = lab.watch(machine, self.model_s(lab))
            steps, served = machine.tenants[0].steps, machine.tenants[1:]
            requests = [sample for tenant in served for sample in tenant.requests]
        # The collective spins for as long as the ranks are apart, which the model's instructions do not: lag says nothing here.
        figures = {"step_ms": lab.samples_in(looks, steps), "steps_per_s": lab.rates_in(looks, steps)}
        if served:
            figures["latency_ms"] = lab.samples_in(looks, requests)
        return figures

    def cv(self, measured, label):
        return estimate(deviation, measured[label]["step_ms"])

    def rows(self, lab, measured):
        shared = gang_step_times(REQUEST_KERNELS * REQUEST_KERNEL_US / (STEP_KERNELS * KERNEL_US), LOAD, GPUS)
        model = {ALONE: [1.0, 1.0], WAYS["weight"]: shared, WAYS["guarantee"]: shared}  # time slices have no model
        rows = []
        for label in (ALONE, *WAYS.values()):
            expected = model.get(label, [])
            rows.append({"training": label, "speed, of exclusive": estimate(ratio_of(mean), measured[label]["steps_per_s"],
                                                                            measured[ALONE]["steps_per_s"]),
                         "predicted speed": 1 / mean(expected) if expected else float("nan"),
                         "step CV": self.cv(measured, label), "predicted CV": deviation(expected),
                         "step p50, ms": estimate(median, measured[label]["step_ms"]),
                         "step p99, ms": estimate(p99, measured[label]["step_ms"]),
                         "requests p99, ms": estimate(p99, measured[label].get("latency_ms", []))})
        return rows

    def claims(self, lab, measured):
        law = 1 / mean(gang_step_times(REQUEST_KERNELS * REQUEST_KERNEL_US / (STEP_KERNELS * KERNEL_US), LOAD, GPUS))
        speed = estimate(ratio_of(mean), measured[WAYS["guarantee"]]["steps_per_s"], measured[ALONE]["steps_per_s"])
        claims = [Claim(f"exclusive: the CV of the steps is at most {EVEN}", self.cv(measured, ALONE), most=EVEN),
                  Claim(f"{WAYS['guarantee']}: changes of turns cost at most a tenth of the time in which both GPUs are free",
                        Interval(speed.value / law, speed.low / law, speed.high / law), least=0.9)]
        return claims + [Claim(f"{label}: the CV of the steps is at least {UNEVEN} times that of the exclusive job",
                               estimate(ratio_of(deviation), measured[label]["step_ms"], measured[ALONE]["step_ms"]), least=UNEVEN)
                         for label in WAYS.values()]

    def lesson(self, lab, measured):
        shared = WAYS["guarantee"]
        return (f"Steps of {STEP_KERNELS * KERNEL_US / 1000:.0f} ms vary by {self.cv(measured, ALONE).value:.1%} with whole GPUs, by "
                f"{self.cv(measured, WAYS['none']).value:.0%} beside requests with no control, and by {self.cv(measured, shared).value:.0%} "
                "with a guaranteed share, where a step runs only while both GPUs are free. The slowest requests (p99) take "
                f"{p99(pooled(measured[WAYS['none']]['latency_ms'])):.0f} ms with no control and "
                f"{p99(pooled(measured[shared]['latency_ms'])):.0f} ms beside the guaranteed job.")

    def plots(self, lab, measured):
        series = []
        for label in (ALONE, *WAYS.values()):
            times = sorted(pooled(measured[label]["step_ms"]))
            points = [(percentile(times, part), Interval(part / 100)) for part in range(1, 100)] if times else []
            series.append(plots.Series(label, points, line=True))
        return [plots.Plot("Step times", "step, ms", "part of the steps that take at most so long", series, x_log=True, y_least=0, y_most=1)]
