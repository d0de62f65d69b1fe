#!/usr/bin/env python3
"""How fast a job's memory leaves the GPU and comes back, by Sluice's own copies and by the driver's checkpoint, and whether every
word is right afterwards.

  moves.py --build BUILD [--gib N] [--repeats N] [--output FILE]

Each job holds so many GiB in blocks of 64 MiB. GB/s are 1e9 bytes of the program's data over the whole time of `sluice suspend`
or `sluice resume`, as its user waits. Exit status: 0 all words right, 1 a move failed or a word is wrong.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

import ground

BLOCK_MIB = 64
CONFIG = '[memory]\noversell = 4.0\nswap_host_max = "64GiB"\n'


class Holder:
    def __init__(self, broker, name, gib, options):
        self.process = broker.start(["--name", name, "--memory", f"{gib + 2}GiB", *options],
                                    [broker.build / "tests/oversubscription_holder"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.expect("started", None)
        self.expect("done", f"alloc {BLOCK_MIB} {gib * 1024 // BLOCK_MIB}")
        self.expect("done", "step")

    def ask(self, line):
        if line is not None:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def expect(self, word, line):
        answer = self.ask(line)
        if answer != word:
            raise RuntimeError(f"{line}: the program answers {answer!r}")

    def end(self):
        self.process.kill()
        self.process.wait()


def timed(broker, command, name):
    begin = time.monotonic()
    done = broker.tool(command, name)
    seconds = time.monotonic() - begin
    if done.returncode != 0:
        raise RuntimeError(f"sluice {command}: {done.stderr.strip() or done.stdout.strip()}")
    return seconds, done.stdout.strip()


def trial(broker, name, gib, options, repeats):
    holder = Holder(broker, name, gib, options)
    moves = []
    try:
        for _ in range(repeats):
            out_s, out = timed(broker, "suspend", name)
            in_s, back = timed(broker, "resume", name)
            holder.expect("right", "check")
            holder.expect("done", "step")
            moves.append({"out_s": out_s, "in_s": in_s, "said": [out, back]})
            speeds = " ".join(f"{way} {moves[-1][f'{way}_s']:.2f} s ({gib * 2**30 / 1e9 / moves[-1][f'{way}_s']:.1f} GB/s)"
                              for way in ("out", "in"))
            print(f"{name}: {gib} GiB {speeds}; {out}; {back}", flush=True)
    finally:
        holder.end()
    return moves


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--gib", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--soft", help="the libraries of the software GPU")
    options = parser.parse_args()
    results, wrong = {}, 0
    with ground.Broker(options.build, CONFIG, options.soft) as broker:
        for name, how in (("own_copies", ["--swap"]), ("drivers_checkpoint", [])):
            try:
                results[name] = trial(broker, name, options.gib, how, options.repeats)
            except RuntimeError as failure:
                results[name], wrong = str(failure), 1
                print(f"{name}: {failure}", flush=True)
    if options.output:
        options.output.write_text(json.dumps({"gib": options.gib, "moves": results}, indent=1) + "\n")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
