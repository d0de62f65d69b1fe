"""A job that owns a whole GPU, where nothing is metered: `sluice why` and the metrics say so, and what the driver knows.

Usage: exclusive_test.py BUILD.
"""

import json
import pathlib
import re
import subprocess
import sys
import time
import urllib.request

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).parents[1] / "programs"))
from machine import Machine, wait_until  # noqa: E402

ATTEMPTS = 4
# Of the time: the driver's figure is of its last moments, each time that it is asked.
TOLERANCE = 0.1


def why(machine, *arguments):
    command = [machine.build / "bin/sluice", "why", *arguments, "--socket", machine.socket]
    return subprocess.run(command, env=machine.environment, capture_output=True, text=True, timeout=60, check=True).stdout


def scrape(url):
    with urllib.request.urlopen(url, timeout=300) as answer:
        return answer.read().decode()


def utilization(text):
    return {level: float(value) for level, value in re.findall(r'(?m)^sluice_gpu_utilization_ratio\{.*level="(\w+)"\} (\S+)$', text)}


def exporter_start(machine, environment=None):
    exporter = machine.launch([machine.build / "bin/sluice-exporter", "--no-bpf", "--listen", "127.0.0.1:0", "--socket", machine.socket],
                              environment=environment)
    line = ""
    while "serving " not in line:
        line = exporter.stderr.readline()
        assert line, "the exporter ended"
    return re.search(r"serving (\S+) ", line)[1]


def check_why(machine, job):
    """How busy the GPU was, as the software GPU's own account has it."""
    said = []
    for _ in range(ATTEMPTS):
        begin, busy_ns = time.monotonic(), machine.device()["busy_ns"]
        report = json.loads(why(machine, "sluice-train", "--for", "3s", "--json"))
        really = (machine.device()["busy_ns"] - busy_ns) / 1e9 / (time.monotonic() - begin)
        assert job.poll() is None, job.stderr.read()
        [whole] = report["whole_gpus"]
        assert report["tenants"] == [] and whole["name"] == "sluice-train" and whole["watched_ns"] > 2e9, report
        said.append((round(whole["busy_ratio"], 3), round(really, 3)))
        if abs(said[-1][0] - said[-1][1]) <= TOLERANCE:
            break
    print(f"busy, as said and really: {said}")
    assert abs(said[-1][0] - said[-1][1]) <= TOLERANCE, said
    for arguments in ([], ["sluice-train"]):
        text = why(machine, *arguments, "--for", "500ms")
        assert "which it owns as a whole" in text and "causes are not known, because on a whole GPU nothing is metered" in text, text


def check_metrics(machine):
    url = exporter_start(machine)
    wait_until("it knows how busy the GPU is", lambda: utilization(scrape(url)).get("time", 0) > 0)
    text = scrape(url)
    assert 'sluice_exporter_idle_unseen_tenants{reason="exclusive"} 1' in text, text
    assert 'sluice_exporter_idle_unseen_tenants{reason="not_observed"} 0' in text, text
    assert "sluice_tenant_idle_seconds_total{" not in text and "sm" not in utilization(text), text

    # Another driver: one whose GPU counts its SMs.
    [gpu] = machine.status()["gpus"]
    library = machine.build / "tests/counting_nvml"
    url = exporter_start(machine, machine.environment | {"LD_LIBRARY_PATH": str(library), "COUNTING_NVML_UUID": gpu["uuid"]})
    wait_until("the levels are told", lambda: utilization(scrape(url)) == {"allocated": 1, "time": 0.4, "sm": 0.375})


def main():
    with Machine(sys.argv[1]) as machine:
        machine.start_broker()
        train = [machine.build / "bin/sluice-train", "--data", "synthetic", "--nproc", "1", "--seconds", "1000", "--eval-samples", "0", "--quiet",
                 "--load-delay-us", "20000", "--prefetch", "0"]
        job = machine.launch([machine.build / "bin/sluice", "run", "--socket", machine.socket, "--class", "exclusive", "--", *train])
        wait_until("it steps", lambda: any((row.get("steps") or 0) >= 5 for row in machine.status()["tenants"]) or job.poll() is not None, 60)
        assert job.poll() is None, job.stderr.read()
        check_why(machine, job)
        check_metrics(machine)
        machine.stop(job)
        wait_until("nobody is left", lambda: "no job is running" in why(machine, "--for", "100ms"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
