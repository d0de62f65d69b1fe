#!/usr/bin/env python3
"""The policy is changed by a reload while two programs share a GPU: turns in equal parts before, percentages after, and the
programs notice nothing. Asserts ratios only.

    reload_test.py BUILD
"""
import argparse
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "trainer/lab"))
from sluice_lab import processes

CONFIG = '[scheduler]\npolicy = "{}"\n'
arguments = argparse.Namespace(build=pathlib.Path(sys.argv[1]), preload=None, env=[], bare=False, gpu=False,
                               config=CONFIG.format("round-robin"))
specs = [processes.Spec(f"t{percent}", percent, processes.load("loop", kernel="w", kernel_us=5000, depth=4)) for percent in (10, 90)]
with processes.Machine(arguments, "w=5000us/skip") as machine:
    machine.start(specs)
    (before,), (before_90,) = processes.shares_of(machine.watch(0.5, 2, 1))
    (machine.directory / "sluice.toml").write_text(CONFIG.format("fair"))
    machine.broker.send_signal(signal.SIGHUP)
    (after,), (after_90,) = processes.shares_of(machine.watch(0.5, 2, 1))
    log = (machine.directory / "log").read_text()
print(f"round-robin: {before:.3f} and {before_90:.3f}; fair: {after:.3f} and {after_90:.3f}")
assert "event=reloaded" in log, log
assert 2 / 3 < before_90 / before < 3 / 2, "a turn each"
assert after_90 / after > 4, "nine to one"
