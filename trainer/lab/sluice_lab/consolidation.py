"""Experiment B: how many inference services one GPU holds, and how well it is used by then."""
import functools
import heapq
import random

from . import plots, processes
from .experiment import Cell, Claim, Experiment
from .intervals import Interval, estimate, mean, median, p99, part_within, pooled, ratio_of
from .lab import shares_in

LOAD = 0.1  # the part of the GPU that each service asks for
REQUEST_KERNELS, REQUEST_KERNEL_US = 25, 200  # a request of 5 ms
SERVICE_MS = REQUEST_KERNELS * REQUEST_KERNEL_US / 1000
PERCENT = 10  # promised to each
GRACE_MS = 0.5  # for which an idle service keeps its turn (idle_grace)
OBJECTIVE = 2  # times the p99 of one service alone
PART_IN_TIME = 0.99

ALONE = "1 service"
POLICIES = {"none": "no control", "turns": "turns"}


def shared_times(services, load, sliced, change=0.0, requests=10_000, seed=1):
    """Returns the times of requests, in units of one alone, on a GPU with so many services, by a model: each serves its requests one
    after the other. Sliced: those that are being served share the GPU evenly, and a change costs nothing. Else each runs to its end,
    first come first served, and another service's request begins `change` after that at the earliest."""
    draw = random.Random(seed)
    arrivals, at = [], 0.0
    for _ in range(requests):
        at += draw.expovariate(services * load)
        arrivals.append((at, draw.randrange(services)))
    return sliced_times(arrivals) if sliced else turn_times(arrivals, change)


@functools.cache
def predicted_p99(services, sliced):
    """Returns the p99 of the model's requests, of that of one service alone."""
    return p99(shared_times(services, LOAD, sliced, GRACE_MS / SERVICE_MS)) / p99(shared_times(1, LOAD, False))


def turn_times(arrivals, change):
    free, last, times = 0.0, None, []
    for at, service in arrivals:
        free = max(at, free if service == last or last is None else free + change) + 1
        last = service
        times.append(free - at)
    return times


def sliced_times(arrivals):
    """Served work is measured in what each request in service has got since the beginning; each ends at a value of that."""
    now = got = 0.0
    waiting, ends, times = {}, [], []

    def serve(service):
        heapq.heappush(ends, (got + 1, service))

    def go_on(until):
        nonlocal now, got
        while ends and now + (ends[0][0] - got) * len(ends) <= until:
            end, service = heapq.heappop(ends)
            now += (end - got) * (len(ends) + 1)
            got = end
            times.append(now - waiting[service].pop(0))
            if waiting[service]:
                serve(service)
        if ends:
            got += (until - now) / len(ends)
        now = until

    for at, service in arrivals:
        go_on(at)
        line = waiting.setdefault(service, [])
        line.append(at)
        if len(line) == 1:
            serve(service)
    go_on(now + 2 * len(arrivals))
    return times


class Consolidation(Experiment):
    name = "consolidation"
    title = "Services on one GPU"
    question = "How many services that are mostly idle does one GPU hold, and how well is it used by then?"
    setup = (f"Each service asks for {LOAD:.0%} of a GPU, with requests of {SERVICE_MS:g} ms at random times, and is promised {PERCENT} %. "
             f"A request is in time within {OBJECTIVE} times the p99 of one service alone. Under turns, services are of class inference; "
             "with no control the GPU cuts its time into slices.")
    refuted_if = "under turns one GPU does not hold three of them, in time, at three times the use that one service makes of it"
    noise_of = ("latency_ms", median)

    def counts(self, lab):
        return (2, 3, 4, 6) if lab.quick else (2, 3, 4, 5, 6, 8)

    def model_s(self, lab):
        return 8 if lab.quick else 40

    def stretched(self, lab):
        return lab.stretched(SERVICE_MS)

    def cells(self, lab):
        return [Cell(ALONE, {"services": 1, "policy": "none"}),
                *(Cell(f"{count} services, {label}", {"services": count, "policy": policy})
                  for policy, label in POLICIES.items() for count in self.counts(lab))]

    def seconds(self, lab, cell):
        return self.stretched(lab).wall_s(self.model_s(lab), cell.settings["services"])

    def measure(self, lab, cell, seed):
        lab, count = self.stretched(lab), cell.settings["services"]
        specs = []
        for number in range(count):
            words = processes.load("requests", kernel="serve", kernel_us=lab.us(REQUEST_KERNEL_US), kernels=REQUEST_KERNELS,
                                   gap_us=lab.us(SERVICE_MS * 1000 / LOAD), seed=seed * 100 + number)
            specs.append(processes.Spec(f"serve-{number}", PERCENT, words, "inference"))
        with lab.machine({"serve": REQUEST_KERNEL_US}, bare=cell.settings["policy"] == "none") as machine:
            machine.start(specs)
            looks = lab.watch(machine, self.model_s(lab))
            requests = [sample for tenant in machine.tenants for sample in tenant.requests]
        return {"latency_ms": lab.samples_in(looks, requests), "busy": shares_in(looks, range(count)), "lag": [[processes.lag_of(looks)]]}

    def ratio(self, measured, name):
        return estimate(ratio_of(p99), measured[name]["latency_ms"], measured[ALONE]["latency_ms"])

    def in_time(self, measured, name):
        objective = OBJECTIVE * p99(pooled(measured[ALONE]["latency_ms"]))
        return estimate(lambda times: part_within(times, objective), measured[name]["latency_ms"])

    def busy(self, measured, name):
        return estimate(mean, measured[name]["busy"])

    def names(self, lab):
        """Returns (count, policy, name of the cell) of all that are compared."""
        return [(1, None, ALONE), *((count, policy, f"{count} services, {label}") for policy, label in POLICIES.items()
                                    for count in self.counts(lab))]

    def largest(self, lab, measured, policy):
        """Returns the largest number of services of which the p99 is within the objective."""
        held = [count for count, of, name in self.names(lab) if of == policy and self.ratio(measured, name).value <= OBJECTIVE]
        return max(held, default=1)

    def rows(self, lab, measured):
        rows = []
        for count, policy, name in self.names(lab):
            expected = predicted_p99(count, policy == "none")
            rows.append({"services": name, "promised": f"{count * PERCENT} %", "GPU busy": self.busy(measured, name),
                         "p99, of alone": self.ratio(measured, name), "predicted p99": expected, "in time": self.in_time(measured, name)})
        return rows

    def claims(self, lab, measured):
        three = f"3 services, {POLICIES['turns']}"
        return [Claim(f"three services under turns: the p99 is within {OBJECTIVE} times that of one alone", self.ratio(measured, three),
                      most=OBJECTIVE),
                Claim("three services use at least 2.5 times the GPU time of one",
                      estimate(ratio_of(mean), measured[three]["busy"], measured[ALONE]["busy"]), least=2.5)]

    def lesson(self, lab, measured):
        held, sliced = self.largest(lab, measured, "turns"), self.largest(lab, measured, "none")
        name = f"{held} services, {POLICIES['turns']}" if held > 1 else ALONE
        return (f"One GPU holds {held} such services within the objective under turns, and {sliced} with no control; it is busy for "
                f"{self.busy(measured, name).value:.0%} of the time then, and for {self.busy(measured, ALONE).value:.0%} with one.")

    def plots(self, lab, measured):
        series = [plots.Series(label, [(count, self.ratio(measured, name)) for count, of, name in self.names(lab) if of == policy])
                  for policy, label in POLICIES.items()]
        every = range(1, self.counts(lab)[-1] + 1)
        series += [plots.Series(f"{label}, predicted", [(n, Interval(predicted_p99(n, policy == "none"))) for n in every], line=True)
                   for policy, label in POLICIES.items()]
        series.append(plots.Series("objective", [(n, Interval(OBJECTIVE)) for n in every], line=True))
        return [plots.Plot("Slow requests, by services on the GPU", "services on one GPU", "p99 of requests, of one service alone", series,
                           y_log=True, x_most=self.counts(lab)[-1] + 0.5)]
