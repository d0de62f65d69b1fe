"""The kernel is asked for tracepoints, an iterator and probes on a library alone: no kprobes, fentry, fexit or LSM hooks, which not every kernel lets
itself be asked for.

Usage: bpf_kinds_test.py SOURCE.
"""

import pathlib
import re
import sys

ALLOWED = re.compile(r"tp_btf/(sched_switch|sched_waking|sched_process_(fork|exec|exit)|sys_exit)|iter/task|uprobe")
NO_PROGRAM = {"license", ".maps"}


def main():
    sources = sorted((pathlib.Path(sys.argv[1]) / "exporter/bpf").glob("*.bpf.c"))
    kinds = {(source.name, kind) for source in sources for kind in re.findall(r'SEC\("([^"]+)"\)', source.read_text())}
    programs = {(name, kind) for name, kind in kinds if kind not in NO_PROGRAM}
    assert {name for name, _ in programs} == {source.name for source in sources} != set(), "a source without a program"
    others = sorted(row for row in programs if not ALLOWED.fullmatch(row[1]))
    if others:
        print(f"programs of kinds that not every kernel has: {others}; use a tracepoint, or say here why not")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main())
