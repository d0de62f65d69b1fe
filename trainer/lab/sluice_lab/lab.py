"""What all experiments of a run share: where the programs are, how far modelled time is stretched, for how long is measured, and
the policies under which tenants are compared."""
import argparse
import dataclasses
import math
import pathlib

from . import processes

# The software GPU's own times, in microseconds (its defaults), which are stretched like all others.
SLICE_US, SWITCH_US, LAUNCH_US = 2000, 5, 3
WARMUP_S = 1  # of model time: contexts, first turns, and what the broker learns from them
BLOCK_S = 1  # of model time: long beside a request, a turn (10 ms) and a step (50 ms)
# What is measured takes so many of the host's wake-ups for each unit of it (a request, a burst): the sleep before it, the broker, the
# program that gives way, the one that goes on, and the wait for the end. They are to be no more than this part of it.
WAKES, WAKES_PART = 5, 0.01
DILATION_QUICK, DILATION_MOST = 2, 8  # how far that may stretch a run


@dataclasses.dataclass
class Rival:
    """Another library in Sluice's place."""
    name: str
    preload: str
    env: list


@dataclasses.dataclass
class Lab:
    build: pathlib.Path  # holds bin/ and lib/
    dilation: int = 0  # 0: by wake_ms and what is measured
    wake_ms: float = 0.05  # what a thread of this host waits until it runs again
    quick: bool = False
    gpu: bool = False
    rival: Rival = None

    def stretched(self, unit_ms):
        """Returns this lab with time stretched so far that the host's wake-ups matter little to units of this length, as far as the
        length of the run allows."""
        if self.dilation:
            return self
        needed = math.ceil(WAKES * self.wake_ms / (WAKES_PART * unit_ms))
        most = DILATION_QUICK if self.quick else DILATION_MOST
        return dataclasses.replace(self, dilation=1 if self.gpu else min(max(needed, 1), most))

    def machine(self, kernels, gpus=1, bare=False, rival=False, **settings):
        """Returns a processes.Machine. `kernels` maps the name of each timed kernel to microseconds of model time."""
        arguments = argparse.Namespace(build=self.build, bare=bare, preload=self.rival.preload if rival else None,
                                       env=self.rival.env if rival else [], gpu=self.gpu, config="", dilation=self.dilation)
        timed = ",".join(f"{name}={round(us * self.dilation)}us/skip" for name, us in kernels.items())
        return processes.Machine(arguments, timed, COUNT=gpus, SLICE_US=SLICE_US * self.dilation,
                                 SWITCH_US=SWITCH_US * self.dilation, LAUNCH_US=LAUNCH_US * self.dilation, **settings)

    def us(self, model_us):
        """Returns microseconds of the host's time for those of the model."""
        return max(1, round(model_us * self.dilation))

    def wall_s(self, model_s, starts=1):
        """Returns about how long a run takes that measures for so long, with so many tenants to start."""
        return (model_s + WARMUP_S) * self.dilation + 0.5 + 0.15 * starts

    def watch(self, machine, seconds):
        """Looks at the tenants for so many seconds of model time, once in each block."""
        return machine.watch(WARMUP_S * self.dilation, BLOCK_S * self.dilation, round(seconds / BLOCK_S))

    def samples_in(self, looks, samples):
        """Returns for each block the samples (host's time, ns) that ended in it, in milliseconds of model time."""
        blocks = []
        for begin, end in zip(looks, looks[1:]):
            blocks.append([ns / self.dilation / 1e6 for at, ns in samples if begin["host"] <= at < end["host"]])
        return blocks

    def rates_in(self, looks, samples):
        """Returns for each block how many samples ended in it per second of model time."""
        return [[len(block) * self.dilation * 1e9 / (end["host"] - begin["host"])]
                for block, begin, end in zip(self.samples_in(looks, samples), looks, looks[1:])]


def shares_in(looks, tenants):
    """Returns for each block the part of one GPU's time that these tenants' kernels ran."""
    shares = processes.shares_of(looks)
    return [[sum(shares[i][block] for i in tenants)] for block in range(len(looks) - 1)]
