#!/usr/bin/env python3
"""Compares two traces of driver calls, as the recorder libsoftgpu_trace.so writes them.

  compare.py FIRST SECOND          prints where the calls differ; exit status 1 when they do
  compare.py --lookups FIRST SECOND    compares which names and versions were looked up, in any order

Calls are compared in their order, equal ones in a row as one. Look-ups are left out of that: how often a runtime asks for a name
says nothing of what the program does. A file may have comments, lines that begin with '#'.
"""

import argparse
import difflib
import pathlib
import sys


def lines_of(path):
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def is_lookup(line):
    return line.startswith("cuGetProcAddress")


def calls(lines):
    """`name result` of each call; equal ones in a row once."""
    out = []
    for line in lines:
        if not is_lookup(line) and (not out or out[-1] != line):
            out.append(line)
    return out


def lookups(lines):
    return sorted({line.split()[2] for line in lines if is_lookup(line) and len(line.split()) == 3})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lookups", action="store_true")
    parser.add_argument("first")
    parser.add_argument("second")
    arguments = parser.parse_args()
    choose = lookups if arguments.lookups else calls
    try:
        first, second = (choose(lines_of(path)) for path in (arguments.first, arguments.second))
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}")
    different = list(difflib.unified_diff(first, second, arguments.first, arguments.second, lineterm="", n=2))
    print("\n".join(different) if different else f"{len(first)} alike")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
