"""Figures in documents that the tree can count: each sentence is found, and its number is what the tree has.

A row of FIGURES names a document, a pattern with one group for the number, and how to count. A pattern that is not found
fails too: a sentence that was rewritten takes its row along.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])


def rows(path):
    """Lines of a table that are neither empty nor comments."""
    return [line for line in (ROOT / path).read_text().splitlines() if line and not line.startswith("#")]


def instructions(case, mode):
    for row in rows("tests/bench/interpose/instructions.tsv"):
        if row.split("\t")[:2] == [case, mode]:
            return int(row.split("\t")[2])
    raise SystemExit(f"counted_figures: instructions.tsv has no row {case} {mode}")


def named(path):
    """Rows of a table of driver functions, without its head."""
    return sum(1 for row in rows(path) if row.startswith("cu"))


FIGURES = [
    ("README.md", r"adds (\d+) instructions to a launch", lambda: instructions("launch", "tenant")),
    ("README.md", r"and (\d+) in an exclusive job", lambda: instructions("launch", "exclusive")),
    ("README.md", r"kernels of 10 us: ([\d,]+)", lambda: instructions("launch_10us", "tenant")),
    ("README.md", r"of 1 ms: ([\d,]+);", lambda: instructions("launch_1ms", "tenant")),
    ("docs/interposition.md", r"empty kernel about (\d+) instructions", lambda: instructions("launch", "tenant")),
    ("docs/interposition.md", r"(\d+) under an exclusive lease", lambda: instructions("launch", "exclusive")),
    ("docs/interposition.md", r"about (\d+) and \d+\. Each has its share", lambda: instructions("graph_launch", "tenant")),
    ("docs/interposition.md", r"about \d+ and (\d+)\. Each has its share", lambda: instructions("graph_launch", "exclusive")),
    ("docs/interposition.md", r"(\d+) with kernels of 10 us", lambda: instructions("launch_10us", "tenant")),
    ("docs/interposition.md", r"([\d,]+) with kernels of 1 ms", lambda: instructions("launch_1ms", "tenant")),
    ("docs/interposition.md", r"The table of the driver's (\d+) entry points", lambda: named("interpose/classes.tsv")),
    ("docs/interposition.md", r"each of the (\d+) requests of the CUDA 13.0 runtime", 
     lambda: named("tests/interpose/runtime_lookups.tsv")),
]


def main():
    wrong = []
    for document, pattern, count in FIGURES:
        text = " ".join((ROOT / document).read_text().split())
        found = re.findall(pattern, text)
        if not found:
            wrong.append(f"{document}: no sentence matches '{pattern}'")
        wrong += [f"{document}: '{pattern}' says {said}, and the tree has {count()}" for said in found if int(said.replace(',', '')) != count()]
    print("\n".join(wrong) or f"{len(FIGURES)} figures are what the tree has")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
