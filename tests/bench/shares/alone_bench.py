#!/usr/bin/env python3
"""What a program with many streams pays for Sluice while it is alone on its GPU: kernels of one block, given to all streams
at once, bare and under `sluice run` in each class, in turn.

    alone_bench.py --build build/dev
    alone_bench.py --build build/dev --classes batch --repeats 15
    alone_bench.py --build build/dev --gpu

Times are the program's, from its first launch to the end of its last kernel; the first kernel's load is among them. `ratio`
is the median under Sluice over the median bare, of so many runs each; times in milliseconds, the least and most in brackets.
"""
import argparse
import dataclasses
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "trainer/lab"))
from sluice_lab import processes

CLASSES = ("debug", "batch", "inference")


@dataclasses.dataclass
class Shape:
    """So many kernels of this length in each of so many streams."""
    streams: int
    each: int
    kernel_us: int

    def name(self):
        return f"{self.streams} streams x {self.each} x {self.kernel_us} us"

    def words(self):
        return processes.load("once", kernel="work", kernel_us=self.kernel_us, streams=self.streams, kernels=self.each)


# As cuda-samples' simpleHyperQ, programs that keep streams full of shorter kernels, and longer ones of both kinds.
SHAPES = (Shape(32, 2, 10000), Shape(16, 20, 1000), Shape(8, 100, 200), Shape(4, 40, 2500), Shape(32, 20, 10000),
          Shape(16, 200, 1000))


def once(arguments, shape, tenant_class):
    """One run, in milliseconds. Without a class it runs bare."""
    arguments.bare = tenant_class is None
    with processes.Machine(arguments, f"work={shape.kernel_us}us/skip") as machine:
        command = [*machine.program, *shape.words()]
        if tenant_class is not None:
            command = [machine.build / "bin/sluice", "run", "--socket", machine.directory / "broker.sock", "--memory",
                       processes.MEMORY_GPU if arguments.gpu else processes.MEMORY_SOFT, "--class", tenant_class, "--", *command]
        done = subprocess.run(command, env=machine.env, check=True, capture_output=True, text=True, timeout=60)
    word, value = done.stdout.split()
    if word != "took":
        raise RuntimeError(f"the program said {done.stdout}")
    return int(value) / 1e6


def measure(arguments, shape):
    """Runs of each way, in turn."""
    ways = [None, *arguments.classes]
    runs = {way: [] for way in ways}
    for _ in range(arguments.repeats):
        for way in ways:
            runs[way].append(once(arguments, shape, way))
    return runs


def text_of(times):
    return f"{statistics.median(times):.1f} ({min(times):.1f}-{max(times):.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    processes.add_options(parser)
    parser.add_argument("--classes", nargs="+", choices=CLASSES, default=CLASSES)
    parser.set_defaults(repeats=7)
    arguments = parser.parse_args()
    processes.check_options(parser, arguments)
    figures = {}
    for shape in SHAPES:
        runs = measure(arguments, shape)
        bare = statistics.median(runs[None])
        print(f"{shape.name():28} bare {text_of(runs[None])} ms", flush=True)
        for way in arguments.classes:
            print(f"{'':28} {way} {text_of(runs[way])} ms, ratio {statistics.median(runs[way]) / bare:.2f}", flush=True)
        figures[shape.name()] = {way or "bare": times for way, times in runs.items()}
    processes.json_write(arguments, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
