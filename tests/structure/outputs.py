"""bin/ and lib/ of a build hold what is installed, and nothing else: what tests and the build need lies elsewhere.

Usage: outputs.py BUILD. What is installed is read from the build's own install scripts.
"""

import pathlib
import re
import sys


def installed(build):
    """Files and whole directories of the build that an installation copies."""
    found = set()
    for script in build.rglob("cmake_install.cmake"):
        for files in re.findall(r"file\(INSTALL [^)]*?FILES((?:\s+\"[^\"]+\")+)", script.read_text()):
            found |= {pathlib.Path(name) for name in re.findall(r'"([^"]+)"', files)}
    return {path for path in found if path.is_relative_to(build)}


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    expected = installed(build)
    names = {path.name for path in expected}
    assert {"sluice", "sluiced", "libsluice.so", "softgpu"} <= names, f"the install scripts were not understood: {sorted(names)}"
    stray = []
    for folder in ("bin", "lib"):
        for path in sorted((build / folder).rglob("*")):
            if path.is_dir() or any(path == one or one in path.parents for one in expected):
                continue
            stray.append(str(path.relative_to(build)))
    if stray:
        sys.exit("in the build's bin/ or lib/, but not installed (say where it goes, or install it):\n  " + "\n  ".join(stray))
    print(f"{len(expected)} outputs are installed, and nothing else is in bin/ and lib/")


if __name__ == "__main__":
    main()
