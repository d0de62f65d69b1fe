"""What an attack is: a name, what it tries, and a check that judges it by numbers of the device."""

import dataclasses
import random
import typing
import zlib

FAMILIES = {
    "memory": "what a tenant takes in every way, shape of processes and moment",
    "tricks": "calls in an order that could confuse an account, and what is taken then",
    "away": "what a tenant takes while the broker is killed, stopped or hidden",
    "shares": "GPU time of a victim beside every pattern of launches",
    "broker": "hostile clients of the broker's socket",
    "exporter": "hostile clients of the exporter's port, and tenants that lie in what it reads",
}


class Broken(Exception):
    """The attack broke through: the promise and the number that breaks it."""


class Undecided(Exception):
    """Nothing can be said: the host was too busy, or the machine lacks something."""


def hold(condition, text):
    if not condition:
        raise Broken(text)


@dataclasses.dataclass(frozen=True)
class Case:
    family: str
    name: str        # within the family
    tries: str       # one line
    check: typing.Callable  # check(build, random) -> numbers, or Broken, or Undecided
    quick: bool = False     # also in the part that runs with every change
    alone: bool = False     # measures time: nothing runs beside it

    @property
    def full_name(self):
        return f"{self.family}.{self.name}"

    def random(self, seed):
        return random.Random(zlib.crc32(f"{seed} {self.full_name}".encode()))


def table_check(cases):
    names = [case.full_name for case in cases]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"two attacks have one name: {sorted(twice)}"
    assert all(case.family in FAMILIES for case in cases)
    assert all(case.tries and "\n" not in case.tries and "|" not in case.tries for case in cases)
    return cases


def all_cases():
    from suite import away, broker, exporter, memory, shares, tricks
    return table_check([case for module in (memory, tricks, away, shares, broker, exporter) for case in module.cases()])
