#!/usr/bin/env python3
"""Runs programs of the usual frameworks bare, under the shim without a quota, and under a quota: what comes out is the same,
and a need beyond the quota ends in the framework's own out-of-memory error, after which it works on.

  frameworks.py --build DIR --output FILE [--quota BYTES] [--need BYTES] [--jobs N] [PROGRAM ...]

Without PROGRAM, those of programs/ beside this file. A program says itself what it misses and is then skipped. JSON in FILE:
{program: {"result": passed|failed|skipped, "why": text, "runs": {name: {"status", "stdout", "stderr"}}}}. Exit status: 0 no
program failed, 1 one did, 77 all were skipped.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

GIB = 1 << 30
HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = ("pytorch.py", "pytorch_async.py", "pytorch_graphs.py", "pytorch_ranks.py", "cupy_arrays.py", "jax_arrays.py",
            "jax_preallocates.py", "numba_arrays.py")


class Failed(Exception):
    pass


def expect(good, text):
    if not good:
        raise Failed(text)


class Trial:
    def __init__(self, program, arguments):
        self.command = [sys.executable, program] if program.endswith(".py") else [program]
        self.build = arguments.build.resolve()
        self.quota, self.need, self.timeout_s = arguments.quota, arguments.need, arguments.timeout
        self.runs = {}

    def run(self, name, command, **settings):
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"} | settings
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace",
                                  timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"{name}: more than {self.timeout_s} s") from None
        self.runs[name] = {"status": done.returncode, "stdout": done.stdout[-4000:], "stderr": done.stderr[-4000:]}
        return done

    def good(self, name, command, **settings):
        done = self.run(name, command, **settings)
        expect(done.returncode == 0, f"{name}: ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        return done

    def sliced(self, *arguments):
        return [str(self.build / "bin/sluice"), "run", "--memory", f"{self.quota}B", "--", *self.command, *arguments]

    def all(self):
        """The reason for which it was skipped, or None."""
        check = self.run("check", [*self.command, "--check"])
        if check.returncode == 77:
            return check.stdout.strip() or "the program did not say why"
        expect(check.returncode == 0, f"check: ended with {check.returncode}: {check.stderr.strip()[-300:]}")

        bare = self.good("bare", self.command).stdout
        expect(bare.strip(), "bare: no output")
        shim = self.good("shim", self.command, LD_PRELOAD=str(self.build / "lib/libsluice.so"), SLUICE_SOCKET="/nonexistent")
        expect(shim.stdout == bare, f"shim: printed {shim.stdout!r}, bare {bare!r}")
        expect("sluice:" not in shim.stderr, f"shim: not silent: {shim.stderr!r}")
        enough = self.good("quota", self.sliced()).stdout
        expect(enough == bare, f"quota: printed {enough!r}, bare {bare!r}")

        taken = self.good("need_bare", [*self.command, "--need", str(self.need)]).stdout
        expect(f"allocated {self.need} bytes" in taken, f"need_bare: this GPU has no room for the trial: {taken!r}")
        short = self.good("need_quota", self.sliced("--need", str(self.need))).stdout.splitlines()
        expect(any(line.startswith("out of memory: ") for line in short), f"need_quota: the quota was passed: {short!r}")
        expect(short.count(bare.strip()) == 2, f"need_quota: not the same before and after: {short!r}")
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="*")
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--output", required=True, type=pathlib.Path)
    parser.add_argument("--quota", type=int, default=4 * GIB, help="bytes (4 GiB)")
    parser.add_argument("--need", type=int, default=6 * GIB, help="bytes, more than the quota (6 GiB)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for each run (300)")
    parser.add_argument("--jobs", type=int, default=1, help="programs at once (1)")
    arguments = parser.parse_args()
    results = {}

    def judge(program):
        trial = Trial(program, arguments)
        try:
            why = trial.all()
            result = "passed" if why is None else "skipped"
        except Failed as failure:
            result, why = "failed", str(failure)
        name = pathlib.Path(program).stem
        results[name] = {"result": result, "why": why or "", "runs": trial.runs}
        print(f"{name}: {result}" + (f", {why}" if why else ""), flush=True)

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(judge, arguments.program or [str(HERE / "programs" / name) for name in PROGRAMS]))
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    if any(one["result"] == "failed" for one in results.values()):
        return 1
    return 77 if all(one["result"] == "skipped" for one in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
