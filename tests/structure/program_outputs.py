"""A program whose output cannot be written says so and fails: every installed program, on a full disk, with standard output closed,
and beyond the limit on the size of files.

Usage: program_outputs.py BUILD.
"""

import pathlib
import subprocess
import sys
import tempfile

PATIENCE_S = 60
FULL, CLOSED, TOO_LARGE = "No space left on device", "it is closed", "File too large"
# Programs that only other programs start: they print no help.
HELPERS = {"sluice-probe", "sluice-checkpoint"}
# What sluice prints without a broker or a GPU, with the exit code of a lost output.
COMMANDS = (("sluice", ["--version"], 1), ("sluice", ["config", "show"], 1), ("sluice", ["help", "run"], 1),
            ("sluice", ["run", "--help"], 125), ("sluice-exporter", ["--describe"], 1), ("sluiced", ["--version"], 1),
            ("sluice", ["doctor", "--json"], 1), ("sluice", ["doctor"], 1))


def run(program, arguments, stdout, before=""):
    result = subprocess.run(["sh", "-c", before + 'exec "$@"', "sh", program, *arguments], stdout=stdout, stderr=subprocess.PIPE,
                            text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL)
    return result.returncode, result.stderr


def faults(program, arguments, code):
    name = " ".join([program.name, *arguments])
    with open("/dev/full", "w") as full, tempfile.TemporaryFile() as file:
        for stdout, before, reason in ((full, "", FULL), (None, "exec >&-;", CLOSED), (file, "ulimit -f 0;", TOO_LARGE)):
            rc, said = run(program, arguments, stdout, before)
            if rc != code or f"{program.name}: cannot write to standard output: {reason}\n" not in said:
                yield f"{name}: exit code {rc}, expected {code} and '{reason}': {said!r}"


def main():
    programs = pathlib.Path(sys.argv[1]).resolve() / "bin"
    rows = [(path, ["--help"], 1) for path in sorted(programs.iterdir()) if path.name not in HELPERS]
    assert len(rows) > 5, rows
    for program, arguments, _ in rows:
        assert run(program, arguments, subprocess.DEVNULL) == (0, ""), program
    rows += [(programs / program, arguments, code) for program, arguments, code in COMMANDS]
    found = [fault for row in rows for fault in faults(*row)]
    print("\n".join(found) or f"{len(rows)} commands say that their output was lost")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
