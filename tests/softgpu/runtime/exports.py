#!/usr/bin/env python3
"""Compares what our libcudart.so.13 exports with what the toolkit's does.

  exports.py OURS TOOLKIT

Ours must export every documented name the toolkit's exports, under the same version, and nothing else.
"""

import subprocess
import sys

# Not in any public header, so nothing we could know a signature or a meaning of.
UNDOCUMENTED = {"__cudaGetProcAddress", "__cudaRegisterHostVar", "__cudaRegisterUnifiedTable"}


def exports(library):
    out = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", library], check=True,
                         capture_output=True, text=True).stdout
    symbols = dict(line.split()[2].replace("@@", "@").partition("@")[::2] for line in out.splitlines())
    symbols.pop("libcudart.so.13", None)
    return symbols


def main():
    ours, theirs = exports(sys.argv[1]), exports(sys.argv[2])
    missing = sorted(theirs.keys() - ours.keys() - UNDOCUMENTED)
    extra = sorted(ours.keys() - theirs.keys())
    versions = sorted(name for name in ours if ours[name] != "libcudart.so.13")
    for title, names in (("missing", missing), ("exported without need", extra), ("wrong version", versions)):
        if names:
            print(f"{title}: {' '.join(names)}")
    if not missing and not extra and not versions:
        print(f"{len(ours)} names, as the toolkit's library has them")
    return 1 if missing or extra or versions else 0


if __name__ == "__main__":
    sys.exit(main())
