"""Checks what the rooms may speak of: an include is not the only way to know of another room.

The trainer and its kernels are programs like any other and know nothing of the shim; the software GPU is hardware and
knows nothing of Sluice; and no file names a path that exists on one developer's machine only.

Usage: room_words.py ROOT. Exit 1 with one line per offence, 77 outside a checkout: what counts is what git tracks.
Offenders are planted first and have to be found.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

BUILD_NAMES = r"\b(sluice_[a-z_]+|SLUICE_[A-Z_]+)\b"  # targets, functions and options of the one build system


class Rule:
    """Files that begin with one of `places` may not contain `word`, in a name or in a line; `allowed` is what may be
    there all the same, by the end of the file's path, each with its reason."""

    def __init__(self, text, places, word, allowed):
        self.text, self.places, self.word = text, places, re.compile(word)
        self.allowed = {end: re.compile(pattern) for end, pattern in allowed.items()}


RULES = (
    Rule("knows nothing of the shim", ("trainer/", "kernels/"), r"(?i)interpose|ld_preload|libsluice|\bshims?\b", {
        # The lab compares: it starts programs with and without Sluice, each in a clean environment.
        "trainer/lab/machine.cpp": r'"libsluice\.so"',
        "trainer/lab/machine.h": r"folder of libsluice\.so",
        "trainer/lab/runner.cpp": r'"LD_PRELOAD"',
        "trainer/lab/sluice_lab/processes.py": r'"LD_PRELOAD"',
    }),
    Rule("knows nothing of Sluice", ("softgpu/",), r"(?i)sluice", {
        "CMakeLists.txt": BUILD_NAMES,
        "softgpu/README.md": r"-DSLUICE_ROOMS=",  # how to build it alone
    }),
    Rule("has to be the same on every machine", ("",), r"(?<![\w.}~])/(home|root|work|Users)(?![\w-]|\.\w)", {
        "tests/broker/devices/probe_test.cpp": r'"HOME=[/]root"',  # the superuser's home of every Linux
    }),
)


def offences(root, names, needed):
    """One line per offence; what of the allowances was needed is added to `needed`."""
    for name in sorted(names):
        file = root / name
        if not file.is_file():  # a link to nowhere, or deleted and not yet committed
            continue
        lines = [name, *file.read_bytes().decode("latin-1").split("\n")]
        for rule in RULES:
            if not name.startswith(rule.places):
                continue
            for number, line in enumerate(lines):
                for end, allowed in rule.allowed.items():
                    if name.endswith(end) and number > 0 and rule.word.search(line):
                        line, count = allowed.subn("", line)
                        needed.update({(rule, end)} if count else ())
                found = rule.word.search(line)
                if found:
                    yield f"{name}:{number}: '{found[0]}' in a file that {rule.text}"


def self_test():
    home = "/" + "home"
    planted = {  # path: text, offending lines
        "trainer/a.cpp": ("// starts\n// with LD_PRELOAD\n#include \"interpose/x.h\"\n", {2, 3}),
        "trainer/lab/runner.cpp": ('unset("LD_PRELOAD");\nset("LD_PRELOAD");\nload("libsluice.so");\n', {3}),
        "kernels/CMakeLists.txt": ("# beside the shim\nadd_library(sluice_kernels)\n", {1}),
        "kernels/b.cu": ("// shimmer\n// Shims\n", {2}),
        "softgpu/CMakeLists.txt": ("if(SLUICE_SANITIZE)\n# Sluice asks\nlink(x sluice_options)\n", {2}),
        "softgpu/README.md": ("cmake -DSLUICE_ROOMS=softgpu\nsluice run\n", {2}),
        "softgpu/driver/c.cpp": ("sluice_options\n", {1}),
        "softgpu/libsluice.txt": ("\n", {0}),
        "interpose/d.cpp": ("// the shim, LD_PRELOAD, libsluice.so\n", set()),
        "docs/e.md": (f"cd {home}/somebody/sluice\n~/work/x and tests/work/y\n$DIR/home\n${{DIR}}/home\n"
                      "HOME=/" + "root\n/" + "Users/me\n(/" + "work/x)\nin /" + "work.\n"
                      "/" + f"work.tar {home}s {home}-x\n", {1, 5, 6, 7, 8}),
        "docs/f.bin": ("\x00\xff\n\x01" + home + "/x\x00", {2}),
    }
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        for name, (text, _) in planted.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(text.encode("latin-1"))
        found = {":".join(row.split(":")[:2]) for row in offences(root, planted, set())}
        expected = {f"{name}:{number}" for name, (_, numbers) in planted.items() for number in numbers}
        assert found == expected, f"missed {sorted(expected - found)}, made up {sorted(found - expected)}"


def main():
    self_test()
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1])
    try:
        listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        listing = ""
    names = [name for name in listing.split("\0") if name]
    if not names:
        print("skipped: not a git checkout")
        return 77
    needed = set()
    rows = list(offences(root, names, needed))
    rows += [f"room_words.py: nothing in {end} needs its allowance any more" for rule in RULES for end in rule.allowed
             if (rule, end) not in needed]
    print("\n".join(rows) if rows else f"{len(names)} files speak of what they may know")
    return 1 if rows else 0


if __name__ == "__main__":
    sys.exit(main())
