#!/usr/bin/env python3
"""What training choices do to the accuracy of a model: each variant with several seeds, as mean and standard deviation.

    training_experiments.py --build build/dev --records records.jsonl
    training_experiments.py --build build/dev --records records.jsonl --only batch,precision --seeds 3
    training_experiments.py --records records.jsonl --table

A perceptron on the first --samples images of Fashion-MNIST, on software GPUs, whose arithmetic is IEEE's: accuracy does not depend
on the speed of this host. A run is one line of the records when it has ended; runs that are there already are not run again, so
the script can be stopped and started at any time. Tables of everything recorded come at the end.
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time


def steps_of(samples, batch, epochs):
    return -(-samples // batch) * epochs


def experiments(samples):
    """name -> (what the variants are, {variant: options}); an option "ranks" is --nproc. Rates are for a momentum of 0.9."""
    every = {}

    base, rate, epochs = 32, 0.002, 5
    variants = {}
    for batch in (32, 256, 1024):
        common = {"--batch": batch, "--epochs": epochs}
        variants[f"{batch}, rate as for {base}"] = {**common, "--lr": rate}
        if batch == base:
            continue
        variants[f"{batch}, scaled linearly"] = {**common, "--lr": rate, "--lr-batch": base}
        variants[f"{batch}, scaled, warm-up of 1 epoch"] = {**common, "--lr": rate, "--lr-batch": base,
                                                            "--lr-warmup": steps_of(samples, batch, 1)}
    high = 4 * rate
    variants[f"{base}, rate {high}"] = {"--batch": base, "--epochs": epochs, "--lr": high}
    common = {"--batch": 1024, "--epochs": epochs, "--lr": high, "--lr-batch": base}
    variants[f"1024, scaled from {high}"] = common
    variants[f"1024, scaled from {high}, warm-up of 1 epoch"] = {**common, "--lr-warmup": steps_of(samples, 1024, 1)}
    every["batch"] = (f"batch and learning rate, {epochs} epochs, rate {rate} for batches of {base}", variants)

    variants = {}
    for precision in ("fp32", "bf16", "fp16"):
        variants[precision] = {"--batch": 64, "--lr": 0.01, "--epochs": 5, "--precision": precision}
    every["precision"] = ("what matrix products take, batch 64, rate 0.01, 5 epochs", variants)

    variants = {}
    for compression in ("none", "fp16", "topk:0.1", "topk:0.01", "powersgd:1", "powersgd:4"):
        variants[compression] = {"ranks": 2, "--batch": 32, "--lr": 0.01, "--epochs": 5, "--compress": compression}
    every["compression"] = ("what travels, 2 ranks of batch 32, rate 0.01, 5 epochs", variants)

    # A worker's gradient counts as its part of a global batch, so the rate of one update of 64 samples is --lr / workers.
    # As many workers as take turns make the gradients old by one update less than there are workers.
    variants = {}
    for rate, delays in ((0.01, (0, 1, 4, 8, 16)), (0.0025, (0, 4, 16))):
        for delay in delays:
            workers = delay + 1
            variants[f"{delay} updates, rate {rate}"] = {
                "ranks": workers + 1, "--strategy": "async", "--staleness": 2, "--batch": 64, "--lr": rate * workers, "--prefetch": 0,
                "--steps": steps_of(samples, 64, 5) // workers}
    every["staleness"] = ("age of gradients (workers less one) and rate of an update, 5 epochs of batch 64", variants)

    variants = {}
    for epochs in (1, 2, 5):
        common = {"--batch": 64, "--epochs": epochs}
        variants[f"{epochs} epochs, constant 0.01"] = {**common, "--lr": 0.01}
        variants[f"{epochs} epochs, cosine from 0.01"] = {**common, "--lr": 0.01, "--schedule": "cosine"}
        variants[f"{epochs} epochs, 1cycle up to 0.04"] = {**common, "--lr": 0.04, "--schedule": "1cycle"}
    variants["10 epochs, constant 0.0025"] = {"--batch": 64, "--epochs": 10, "--lr": 0.0025}
    every["schedule"] = ("course of the learning rate, batch 64", variants)
    return every


def train(options, data, settings, seed):
    """The record of one run: a diverged one has an accuracy of its own, that of guessing."""
    with tempfile.TemporaryDirectory() as directory:
        log = os.path.join(directory, "log")
        environment = dict(os.environ, LD_LIBRARY_PATH=os.path.join(options.build, "lib/softgpu"), SOFTGPU_PACING="0",
                           SOFTGPU_COUNT="1", SOFTGPU_DIR=os.path.join(directory, "softgpu"), TMPDIR=directory)
        settings = dict(settings)
        command = [os.path.join(options.build, "bin/sluice-train"), "--nproc", str(settings.pop("ranks", 1)), "--seed", str(seed),
                   "--data", data, "--hidden", str(options.hidden), "--eval-samples", "5000", "--quiet",
                   "--comm-timeout", "600", "--log", log]
        for option, value in settings.items():
            command += [option, str(value)]
        begin = time.monotonic()
        ended = subprocess.run(command, env=environment, timeout=900, stderr=subprocess.PIPE, text=True, check=False)
        seconds = time.monotonic() - begin
        diverged = "training diverged" in ended.stderr
        if ended.returncode != 0 and not diverged:
            raise SystemExit(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stderr}")
        with open(log) as lines:
            events = [json.loads(line) for line in lines]
    end = events[-1]
    record = {"diverged": diverged, "accuracy": 0.1, "seconds": round(seconds, 2), "sent_bytes": end["sent_bytes"],
              "steps": end["steps"]}
    for event in events:
        if event["event"] == "eval":
            record.update(accuracy=event["accuracy"], loss=event["loss"])
    for key in ("staleness_mean", "staleness_max"):
        if key in end:
            record[key] = end[key]
    return record


def records_read(path):
    """(experiment, variant, seed, samples, hidden) -> record"""
    found = {}
    if os.path.exists(path):
        with open(path) as lines:
            for line in lines:
                one = json.loads(line)
                found[(one["experiment"], one["variant"], one["seed"], one["samples"], one["hidden"])] = one
    return found


def tables_print(options, found):
    for name, (what, variants) in experiments(options.samples).items():
        rows = []
        for variant in variants:
            runs = [one for key, one in found.items() if key[:2] == (name, variant) and key[3:] == (options.samples, options.hidden)]
            if not runs:
                continue
            accuracies = [100 * run["accuracy"] for run in runs]
            deviation = statistics.stdev(accuracies) if len(runs) > 1 else math.nan
            notes = []
            if name == "staleness":
                notes.append(f"{statistics.mean(run['staleness_mean'] for run in runs):.2f}")
            if name == "compression":
                notes.append(f"{statistics.mean(run['sent_bytes'] for run in runs) / 1e6:.2f}")
            diverged = sum(run["diverged"] for run in runs)
            rows.append([variant, f"{statistics.mean(accuracies):.2f}", f"{deviation:.2f}", str(len(runs)), str(diverged), *notes])
        if not rows:
            continue
        head = [name, "accuracy, %", "deviation", "runs", "diverged"]
        head += {"staleness": ["mean age"], "compression": ["MB sent by rank 0"]}.get(name, [])
        print(f"\n{what}; {options.samples} images, {options.hidden} hidden units\n")
        print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
        for row in rows:
            print("| " + " | ".join(row) + " |")


def work_do(options, found, work, data):
    """Runs what is to be done, on shards in `data`, which every rank maps instead of unpacking the set for itself."""
    subprocess.run([os.path.join(options.build, "bin/sluice-train"), "pack", "--data", "fashion-mnist", "--train-samples",
                    str(options.samples), "--out", data], stdout=subprocess.DEVNULL, check=True)
    begin = time.monotonic()
    for number, (seed, name, variant, settings) in enumerate(work):
        record = {"experiment": name, "variant": variant, "seed": seed, "samples": options.samples, "hidden": options.hidden,
                  **train(options, data, settings, seed)}
        with open(options.records, "a") as file:
            file.write(json.dumps(record) + "\n")
        found[(name, variant, seed, options.samples, options.hidden)] = record
        left = (time.monotonic() - begin) / (number + 1) * (len(work) - number - 1)
        print(f"{number + 1}/{len(work)} {name}: {variant}, seed {seed}: {100 * record['accuracy']:.2f} % in "
              f"{record['seconds']} s; {left / 60:.1f} minutes left", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", help="the build's directory")
    parser.add_argument("--records", required=True, help="JSON lines; read, and added to")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="experiments with commas between them; default: all")
    parser.add_argument("--variants", default="", help="only variants with this text in their name")
    parser.add_argument("--samples", type=int, default=6000, help="training images; evaluation takes 5,000 of the test set")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--table", action="store_true", help="run nothing, print the tables")
    options = parser.parse_args()
    every = experiments(options.samples)
    chosen = options.only.split(",") if options.only else list(every)
    unknown = set(chosen) - set(every)
    if unknown:
        parser.error(f"--only {','.join(sorted(unknown))}: there are {', '.join(every)}")
    if not options.table and not options.build:
        parser.error("--build is needed to run anything; --table prints what is recorded")
    found = records_read(options.records)
    if options.table and not found:
        parser.error(f"{options.records} has no records")
    # Seeds outermost: what is stopped early has fewer seeds of everything.
    work = [(seed, name, variant, settings) for seed in range(1, options.seeds + 1) for name in chosen
            for variant, settings in every[name][1].items() if options.variants in variant]
    work = [one for one in work if (one[1], one[2], one[0], options.samples, options.hidden) not in found]
    if work and not options.table:
        with tempfile.TemporaryDirectory() as directory:
            work_do(options, found, work, os.path.join(directory, "shards"))
    tables_print(options, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
