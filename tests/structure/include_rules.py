"""Checks the dependencies between rooms: an include in a direction that ARCHITECTURE.md does not allow is a bug.

Usage: include_rules.py ROOT. Exit 1 with one line per offending include. `--self-test` plants offenders and expects
them to be found.
"""

import pathlib
import re
import sys
import tempfile

# room -> rooms it may include (itself always). The longest matching prefix decides which room a file is in.
ALLOWED = {
    "interpose": {"broker/protocol"},
    "broker/protocol": set(),
    "broker/core": {"broker/protocol"},
    "broker/devices": {"broker/protocol"},
    "broker/sim": {"broker/core", "broker/protocol"},
    "broker/daemon": {"broker/core", "broker/devices", "broker/protocol", "config/reader"},
    "broker/cli": {"broker/core", "broker/devices", "broker/protocol", "config/reader"},
    "kernels": set(),
    "trainer": {"kernels", "broker/protocol", "config/reader"},
    "trainer/infer": {"trainer", "kernels", "config/reader"},
    "trainer/debug": {"trainer", "kernels", "config/reader"},
    "trainer/lab": {"broker/sim", "broker/protocol", "config/reader"},
    "exporter": {"broker/protocol", "config/reader"},
    "config/reader": set(),
    "softgpu": set(),
}
# The pure room: headers that mean system calls, clocks or I/O.
PURE = "broker/core"
IMPURE = re.compile(r"^(unistd|fcntl|time|errno|stdio|stdlib|pthread|signal|poll|dlfcn|sys/.*|linux/.*)\.h$"
                    r"|^(chrono|iostream|fstream|thread|mutex|filesystem|cstdio|ctime|random|condition_variable)$"
                    r"|^(future|shared_mutex|semaphore|latch|barrier|stop_token|csignal|cerrno)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = {".h", ".cpp", ".c", ".cu", ".cuh", ".inc", ".S"}


def room_of(path):
    """The room of a path relative to the root, or None outside the rooms."""
    best = None
    for room in ALLOWED:
        if (path == room or path.startswith(room + "/")) and (best is None or len(room) > len(best)):
            best = room
    return best


def offences(root):
    root = pathlib.Path(root)
    tops = {room.split("/")[0] for room in ALLOWED}
    for top in sorted(tops):
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in SOURCES:
                continue
            here = file.relative_to(root).as_posix()
            room = room_of(here)
            for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                quote, name = match.groups()
                if room == PURE and quote == "<" and IMPURE.match(name):
                    yield f"{here}:{number}: {PURE} is pure and may not include <{name}>"
                target = name if (root / name).exists() else (file.parent / name).resolve()
                if not isinstance(target, str):
                    target = target.relative_to(root.resolve()).as_posix() if target.is_relative_to(root.resolve()) else ""
                other = room_of(target) if quote == '"' else room_of(name)
                if target.startswith("tests/") and quote == '"':
                    yield f"{here}:{number}: a room may not include tests ({name})"
                if other and other != room and other not in ALLOWED.get(room, set()):
                    yield f"{here}:{number}: {room} may not include {other} ({name})"


def self_test():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        for path, text in {
            "broker/core/a.cpp": '#include "broker/daemon/b.h"\n#include <chrono>\n',
            "broker/daemon/b.h": '#include "broker/core/a.h"\n',
            "broker/core/a.h": '#include "broker/protocol/p.h"\n',
            "broker/protocol/p.h": "#include <cstdint>\n",
            "softgpu/x.h": '#include "../broker/protocol/p.h"\n',
            "interpose/i.cpp": '#include "broker/core/a.h"\n',
            "trainer/job/r.h": '#include "broker/protocol/p.h"\n',
            "trainer/infer/s.cpp": '#include "broker/protocol/p.h"\n#include "trainer/job/r.h"\n',
        }.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        found = list(offences(root))
        assert len(found) == 5, found


if __name__ == "__main__":
    self_test()
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    rows = list(offences(sys.argv[1]))
    print("\n".join(rows) if rows else "every include follows the rules")
    sys.exit(1 if rows else 0)
