"""Figures with their 95 % intervals.

A run is cut into blocks of time, and a figure is a statistic of the samples of all blocks. Its interval is the bootstrap's: the
statistic of as many blocks, drawn with replacement, 1,000 times; the middle 95 % of these (Efron and Tibshirani, An Introduction to
the Bootstrap, 1993, chapter 13). Samples of one block may depend on each other; blocks are long beside what connects samples.
"""
import dataclasses
import math
import random
import statistics

RESAMPLES = 1000  # the ends of an interval move by less than a tenth of its width from one seed to the next
TAIL = 0.025  # on either side


@dataclasses.dataclass(frozen=True)
class Interval:
    """A figure and the ends of its interval, which are NaN where there are too few blocks for one."""
    value: float
    low: float = math.nan
    high: float = math.nan

    def text(self, digits=2):
        if math.isnan(self.value):
            return "-"
        if math.isnan(self.low):
            return f"{self.value:.{digits}f}"
        return f"{self.value:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"


def percentile(samples, part):
    """Returns the sample at `part` per cent, by nearest rank; NaN of none."""
    if not samples:
        return math.nan
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(len(ordered) * part / 100) - 1)]


def median(samples):
    return percentile(samples, 50)


def p99(samples):
    return percentile(samples, 99)


def part_within(samples, most):
    """Returns the part of the samples that are at most `most`; NaN of none."""
    return sum(sample <= most for sample in samples) / len(samples) if samples else math.nan


def mean(samples):
    return statistics.fmean(samples) if samples else math.nan


def deviation(samples):
    """Returns the coefficient of variation: the standard deviation over the mean."""
    if len(samples) < 2 or mean(samples) == 0:
        return math.nan
    return statistics.pstdev(samples) / mean(samples)


def estimate(statistic, *figures):
    """Returns the Interval of statistic(samples of the first figure, samples of the second, ...). A figure is a list of blocks, a
    block a list of samples. Figures are measured apart, so their blocks are drawn apart."""
    value = statistic(*(pooled(blocks) for blocks in figures))
    if any(len(blocks) < 2 for blocks in figures) or math.isnan(value):
        return Interval(value)
    draw = random.Random(1)
    drawn = sorted(statistic(*(pooled(draw.choices(blocks, k=len(blocks))) for blocks in figures)) for _ in range(RESAMPLES))
    drawn = [one for one in drawn if not math.isnan(one)]
    if not drawn:
        return Interval(value)
    return Interval(value, drawn[math.floor(TAIL * (len(drawn) - 1))], drawn[math.ceil((1 - TAIL) * (len(drawn) - 1))])


def pooled(blocks):
    return [sample for block in blocks for sample in block]


def ratio_of(statistic):
    """Returns the statistic of the first figure over that of the second."""
    def ratio(first, second):
        below = statistic(second)
        return statistic(first) / below if below else math.nan
    return ratio
