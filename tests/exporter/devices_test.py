"""What the exporter says of the GPUs beside the broker, on a software GPU with programs inside and outside of Sluice.

Usage: devices_test.py BUILD. What is true comes from the software GPU's own accounts.
"""

import pathlib
import re
import subprocess
import sys
import urllib.request

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).parents[1] / "programs"))
from machine import MIB, Machine, wait_until  # noqa: E402


def scrape(url):
    """Values by family and labels, of which only the one that matters here."""
    out = {}
    with urllib.request.urlopen(url, timeout=300) as answer:
        for line in answer.read().decode().splitlines():
            match = re.fullmatch(r"(sluice_gpu_\w+|sluice_nvml_up)(?:\{(.*)\})? (\S+)", line)
            if match:
                xid = re.search(r'xid="(\w+)"', match[2] or "")
                out[(match[1], xid[1]) if xid else match[1]] = float(match[3])
    return out


def main():
    with Machine(sys.argv[1]) as machine:
        machine.start_broker()
        exporter = machine.launch([machine.build / "bin/sluice-exporter", "--no-bpf", "--listen", "127.0.0.1:0", "--socket",
                                   machine.socket])
        url = re.search(r"serving (\S+) ", exporter.stderr.readline())[1]
        idle = scrape(url)
        assert idle["sluice_nvml_up"] == 1, idle
        assert idle["sluice_gpu_unmanaged_processes"] == idle["sluice_gpu_memory_used_bytes"] == 0, idle

        own = machine.start(machine.slice(machine.program("module_variables")), stdin=subprocess.PIPE)
        stranger = machine.start([machine.program("module_variables")], stdin=subprocess.PIPE)
        wait_until("the broker counts it", lambda: machine.status()["gpus"][0]["held_bytes"] == machine.account(own.pid)["memory_bytes"])
        # The stranger may still be starting, and a page is kept for a moment.
        wait_until("what both use is told", lambda: 60 * MIB < machine.device()["used_bytes"] == scrape(url)["sluice_gpu_memory_used_bytes"]
                   and scrape(url)["sluice_gpu_unmanaged_processes"] == 1 and machine.account(stranger.pid)["memory_bytes"] > 32 * MIB)
        now = scrape(url)
        used = machine.device()["used_bytes"]
        assert now["sluice_gpu_memory_used_bytes"] == used, (now, used)
        assert now["sluice_gpu_unmanaged_processes"] == 1, now
        assert now["sluice_gpu_unmanaged_memory_bytes"] == machine.account(stranger.pid)["memory_bytes"], now
        assert now["sluice_gpu_memory_held_bytes"] + now["sluice_gpu_unmanaged_memory_bytes"] == used, now
        assert now["sluice_gpu_ledger_drift_bytes"] == 0, now

        xid = ("sluice_gpu_xid_errors_total", "31")
        assert now[xid] == now["sluice_gpu_xid_errors_total", "79"] == 0, now
        for number, times in (("31", 2), ("777", 1)):
            for _ in range(times):
                subprocess.run([machine.build / "bin/softgpu-ctl", "inject", "xid", number], env=machine.environment, check=True)
        wait_until("the errors are told", lambda: scrape(url)[xid] == 2 and scrape(url)["sluice_gpu_xid_errors_total", "777"] == 1)
        now = scrape(url)
        assert now["sluice_gpu_xid_errors_total", "79"] == 0, now

        stranger.communicate("\n", timeout=300)
        wait_until("the stranger is gone", lambda: scrape(url)["sluice_gpu_unmanaged_processes"] == 0)
        own.communicate("\n", timeout=300)
        wait_until("nothing is left", lambda: scrape(url)["sluice_gpu_memory_used_bytes"] == 0)
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main()
