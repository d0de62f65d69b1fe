#!/usr/bin/env python3
"""Compares names and messages of errors with the toolkit's own runtime, code by code.

  error_texts.py OURS TOOLKIT

Every name must be the same. So must the messages that programs meet in practice; the others must say something.
"""

import ctypes
import sys

COMMON = [0, 1, 2, 3, 4, 9, 12, 13, 17, 21, 34, 35, 46, 52, 98, 100, 101, 103, 200, 201, 209, 214, 215, 217, 218, 222, 301,
          304, 400, 401, 500, 600, 700, 701, 702, 704, 705, 708, 709, 710, 712, 713, 715, 716, 717, 718, 719, 720, 800,
          801, 900, 901, 904, 906, 999]


def texts(path):
    library = ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL)
    library.cudaGetErrorName.restype = library.cudaGetErrorString.restype = ctypes.c_char_p
    return {code: (library.cudaGetErrorName(code), library.cudaGetErrorString(code)) for code in range(1200)}


def main():
    ours, theirs = texts(sys.argv[1]), texts(sys.argv[2])
    failures = [f"{code}: name {ours[code][0]}, not {theirs[code][0]}" for code in ours
                if ours[code][0] != theirs[code][0]]
    failures += [f"{code}: {ours[code][1]}, not {theirs[code][1]}" for code in COMMON
                 if ours[code][1] != theirs[code][1]]
    failures += [f"{code}: no message" for code in ours if not ours[code][1]]
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
