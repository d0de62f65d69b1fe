"""Causes of idle time as metrics: a program with a planted cause, a broker, and exporters of three kinds.

Usage: idle_metrics_test.py BUILD. One exporter gives up root for the user whom the broker's configuration names, and traces; one
becomes somebody else, and is told nothing; one samples. What each serves of the program's idle time is compared with what was planted.
"""

import json
import os
import pathlib
import re
import sys
import time
import urllib.request

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).parents[1] / "programs"))
from machine import Machine, wait_until  # noqa: E402

SKIPPED = 77
CAUSE = "network"
WATCHED_S = 1.2


def exporter_start(machine, *flags):
    """Its address, once it serves."""
    program = machine.launch([machine.build / "bin/sluice-exporter", "--listen", "127.0.0.1:0", "--socket", machine.socket, *flags])
    line = ""
    while "serving " not in line:
        line = program.stderr.readline()
        assert line, "the exporter ended"
    return re.search(r"serving (http://\S+/)metrics ", line)[1]


def scrape(url):
    """Of the idle families: values by name and labels."""
    out = {}
    with urllib.request.urlopen(url + "metrics", timeout=300) as answer:
        for line in answer.read().decode().splitlines():
            match = re.fullmatch(r"(sluice_(?:tenant_idle|exporter_idle)\w+)(?:\{(.*)\})? (\S+)", line)
            if match:
                out[match[1], frozenset(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))] = float(match[3])
    return out


def one(figures, name):
    [(labels, value)] = [(dict(key[1]), value) for key, value in figures.items() if key[0] == name]
    return labels, value


def unseen(figures):
    return {dict(labels)["reason"]: value for (name, labels), value in figures.items() if name == "sluice_exporter_idle_unseen_tenants"}


def idle(figures):
    return {dict(labels)["cause"]: value for (name, labels), value in figures.items() if name == "sluice_tenant_idle_seconds_total"}


def check_cause(found, least):
    planted = sum(found.values()) - found["runqueue"]
    print({cause: round(value, 2) for cause, value in found.items() if value})
    if planted < 0.5 * sum(found.values()):
        print("skipped: others had the machine's CPUs")
        return SKIPPED
    assert found[CAUSE] >= least * planted, found
    return 0


def main():
    if os.geteuid() != 0:
        print("skipped: only root can become the exporter's user")
        return SKIPPED
    with Machine(sys.argv[1], rate=2e7, config='[exporter]\nuser = "nobody"\n') as machine:
        machine.directory.chmod(0o755)
        machine.start_broker()
        # Without capabilities, which an exporter that has none may not look at by samples.
        job = machine.start(["nice", "-n", "-20", "setpriv", "--bounding-set=-all"] + machine.slice(machine.program("idler"), CAUSE, str(machine.build), sm=50))
        named, other = exporter_start(machine, "--user", "nobody"), exporter_start(machine, "--user", "daemon")
        sampling, blind = exporter_start(machine, "--no-bpf"), exporter_start(machine, "--no-bpf", "--user", "nobody")

        labels, one_there = one(scrape(named), "sluice_exporter_idle_observer")
        assert one_there == 1 and labels["kind"] in ("bpf", "proc"), labels
        if labels["kind"] != "bpf":
            print("skipped: " + labels["reason"])
            return SKIPPED
        assert labels["reason"] == "loaded", labels
        wait_until("it is observed", lambda: sum(idle(scrape(named)).values()) > WATCHED_S)
        now = scrape(named)
        if check_cause(idle(now), 0.75) == SKIPPED:
            return SKIPPED
        assert len(idle(now)) == 9, now
        assert unseen(now) == {"not_observed": 0, "exclusive": 0}, now
        [tenant] = machine.status()["tenants"]
        labels, lost = one(now, "sluice_tenant_idle_unseen_seconds_total")
        assert labels["tenant"] == str(tenant["tenant"]) and labels["class"] == tenant["class"] and lost == 0, (labels, lost)

        # The page for people has the same, busy time beside it.
        with urllib.request.urlopen(named + "snapshot.json", timeout=300) as answer:
            page = json.load(answer)
        [piece] = page["gpus"][0]["slices"]
        assert page["idle_observer"]["kind"] == "bpf" and piece["idle_s"][CAUSE] >= idle(now)[CAUSE] and piece["busy_s"] > 0, page
        # And it is time of the clock: what has been accounted goes on with it.
        first, at = sum(idle(scrape(named)).values()), time.monotonic()
        time.sleep(2)
        grown, elapsed_s = sum(idle(scrape(named)).values()) - first, time.monotonic() - at
        assert 0.2 * elapsed_s < grown < 1.5 * elapsed_s, (grown, elapsed_s)

        # Whom the broker does not know is told nothing, and who may not look at the program's threads guesses nothing.
        for told_nothing in (scrape(other), scrape(blind)):
            assert not idle(told_nothing) and unseen(told_nothing) == {"not_observed": 1, "exclusive": 0}, told_nothing

        sampled = scrape(sampling)
        assert one(sampled, "sluice_exporter_idle_observer")[0] == {"kind": "proc", "reason": "switched off with --no-bpf"}, sampled
        # The beginning of a thread found asleep is not known to samples: what has grown since is compared.
        wait_until("samples tell of more", lambda: sum(idle(scrape(sampling)).values()) > sum(idle(sampled).values()) + WATCHED_S)
        if check_cause({cause: value - idle(sampled)[cause] for cause, value in idle(scrape(sampling)).items()}, 0.5) == SKIPPED:
            return SKIPPED

        machine.stop(job)
        wait_until("the tenant that is gone has no series", lambda: not idle(scrape(named)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
