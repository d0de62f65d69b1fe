#!/usr/bin/env python3
"""Two ranks of sluice-train on one GPU, through NCCL and through Gloo: do they come up, train the same, and how fast.

  nccl_ranks.py --build BUILD [--output FILE] [--steps N] [--batch N] [--hidden N,N]

The sum of two numbers is the same in whatever order, so both ways train the same losses; another loss is a failure, as is an
NCCL that does not come up. Times are printed and never judged. Ends with 77 where NCCL is not installed, 1 on a failure.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

SKIPPED = 77
SAME = 1e-6  # of a loss


def train(options, engine, directory):
    """One run: how it ended, what it said, and the figures of its log."""
    log = directory / f"{engine}.jsonl"
    command = [options.build / "bin" / "sluice-train", "--data", "synthetic", "--start", "self", "--nproc", "2", "--comm", engine,
               "--batch", str(options.batch), "--hidden", options.hidden, "--steps", str(options.steps), "--eval-samples", "0",
               "--comm-timeout", "60", "--log", log]
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=options.timeout,
                          env=os.environ | {"CUDA_VISIBLE_DEVICES": first})
    out = {"exit": done.returncode, "said": (done.stderr if done.returncode else done.stdout).strip()}
    if done.returncode != 0:
        return out
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [line for line in lines if line["event"] == "step" and line["rank"] == 0]
    end = lines[-1]
    later = steps[len(steps) // 2:]  # the first ones also set up what is kept
    return out | {
        "losses": [step["loss"] for step in steps],
        "step_ms": statistics.median(step["duration_ns"] for step in later) / 1e6,
        "communication_ms": statistics.median(step["communication_ns"] for step in later) / 1e6,
        "sent_bytes": end["sent_bytes"],
        "busbw_mb_per_s": end["busbw_mb_per_s"],
    }


def judge(runs):
    """What is wrong; empty = nothing."""
    wrong = [f"{engine} ended with {run['exit']}: {run['said']}" for engine, run in runs.items() if run["exit"] != 0]
    if wrong:
        return wrong
    if "a host of its own (NCCL_HOSTID)" not in runs["nccl"]["said"]:
        wrong.append("the run through NCCL does not say that its ranks share a GPU")
    pairs = list(zip(runs["nccl"]["losses"], runs["gloo"]["losses"]))
    if not pairs or len(pairs) != len(runs["gloo"]["losses"]):
        wrong.append("not as many steps through NCCL as through Gloo")
    apart = max((abs(a - b) / abs(b) for a, b in pairs), default=0)
    if apart > SAME:
        wrong.append(f"losses through NCCL and Gloo are {apart:.2e} apart, more than {SAME}")
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hidden", default="1024,1024")
    parser.add_argument("--timeout", type=float, default=120)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        runs = {}
        for engine in ("nccl", "gloo"):
            runs[engine] = train(options, engine, pathlib.Path(name))
            if "NCCL cannot be used" in runs[engine]["said"]:
                print(f"nccl_ranks: skipped, {runs[engine]['said'].splitlines()[0]}")
                return SKIPPED
    wrong = judge(runs)
    text = json.dumps({"ranks": 2, "gpus": 1, "steps": options.steps, "wrong": wrong, "runs": runs}, indent=1)
    if options.output:
        options.output.write_text(text + "\n")
    else:
        print(text)
    for one in wrong:
        print(f"nccl_ranks: {one}", file=sys.stderr)
    if not wrong:
        for engine, run in runs.items():
            print(f"two ranks on one GPU, {engine}: step {run['step_ms']:.3f} ms, communication {run['communication_ms']:.3f} ms",
                  file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
