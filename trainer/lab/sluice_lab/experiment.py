"""What an experiment is. An experiment has cells, which differ in what is being compared; each cell is run in each repeat with a
seed of its own. From what was measured come figures with intervals, and from these the verdict of each claim."""
import dataclasses
import enum
import math

from .intervals import Interval, pooled

AGAIN = ", again"  # ends the name of a repeat's first cell when it runs for the second time
LAG_MAX = 0.02  # execution that overran the software GPU's model by more says more about the host


class Verdict(enum.Enum):
    SUPPORTED = "supported"
    REFUTED = "refuted"
    INCONCLUSIVE = "inconclusive"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One thing to measure. The name is unique in its experiment and stands in the raw records."""
    name: str
    settings: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence that holds if the figure lies between two bounds."""
    text: str
    figure: Interval
    least: float = -math.inf
    most: float = math.inf

    def verdict(self):
        """Supported where the whole interval is within the bounds, refuted where none of it is."""
        low, high = self.figure.low, self.figure.high
        if math.isnan(low):
            return Verdict.INCONCLUSIVE
        if self.least <= low and high <= self.most:
            return Verdict.SUPPORTED
        if high < self.least or low > self.most:
            return Verdict.REFUTED
        return Verdict.INCONCLUSIVE


def verdict_of(claims):
    """Returns the verdict of all claims together: one that is refuted refutes."""
    verdicts = {claim.verdict() for claim in claims}
    for one in (Verdict.REFUTED, Verdict.INCONCLUSIVE):
        if one in verdicts:
            return one
    return Verdict.SUPPORTED if verdicts else Verdict.INCONCLUSIVE


class Experiment:
    """The base of all. `name` is a word of the command line; the texts are sentences of the report."""
    name = ""
    title = ""
    question = ""
    setup = ""
    refuted_if = ""
    noise_of = None  # (a figure of the first cell, a statistic)

    def cells(self, lab):
        """Returns the cells in the order in which they run. The first one is run again at the end of a repeat: how far both
        differ is the noise floor."""
        raise NotImplementedError

    def measure(self, lab, cell, seed):
        """Runs the cell. Returns a dict: the name of a figure to its blocks; `lag`, where it is measured, has one
        sample."""
        raise NotImplementedError

    def seconds(self, lab, cell):
        """Returns about how long measure() takes."""
        raise NotImplementedError

    def rows(self, lab, measured):
        """Returns the table of results: dicts from the heading of a column to an Interval, a number or a text. `measured` maps the
        name of a cell to a dict from the name of a figure to the blocks of all repeats."""
        raise NotImplementedError

    def claims(self, lab, measured):
        """Returns the claims."""
        raise NotImplementedError

    def lesson(self, lab, measured):
        """Returns one sentence: what was shown, by how much."""
        raise NotImplementedError

    def plots(self, lab, measured):
        """Returns plots.Plot objects; the first is the one of the summary."""
        raise NotImplementedError

    def noise(self, measured):
        """Returns how far the first cell's second runs are from its first ones, relative; None before there are any."""
        again = next((name for name in measured if name.endswith(AGAIN)), None)
        if again is None:
            return None
        figure, statistic = self.noise_of
        first = measured[again.removesuffix(AGAIN)]
        return abs(statistic(pooled(measured[again][figure])) / statistic(pooled(first[figure])) - 1)


def lag_of(measured):
    """Returns the largest lag of all runs; None where it is not measured."""
    lags = [sample for figures in measured.values() for block in figures.get("lag", []) for sample in block]
    return max(lags, default=None)
