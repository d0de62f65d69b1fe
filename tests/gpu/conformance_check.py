#!/usr/bin/env python3
"""Checks conformance.py itself on the software GPU: it runs rows, sees a difference, and says which."""

import json
import pathlib
import subprocess
import sys
import tempfile

ROWS = "launches.grid*"


def main():
    program, libraries = sys.argv[1:]
    tool = pathlib.Path(__file__).with_name("conformance.py")
    with tempfile.TemporaryDirectory() as temp:
        here = pathlib.Path(temp)

        def tool_run(*arguments):
            return subprocess.run([sys.executable, tool, *arguments], capture_output=True, text=True, timeout=50)

        def compared(name, change):
            report = json.loads((here / "a.json").read_text())
            change(report["rows"])
            (here / name).write_text(json.dumps(report))
            return tool_run("compare", here / name, here / "a.json")

        ran = tool_run("run", program, "--soft", libraries, "--only", ROWS, "--output", here / "a.json")
        assert ran.returncode == 0, ran.stderr
        rows = json.loads((here / "a.json").read_text())["rows"]
        assert rows and all(row["result"] == "passed" for row in rows.values()), rows
        row = next(iter(rows))

        same = compared("same.json", lambda rows: None)
        assert same.returncode == 0 and "0 rows differ" in same.stdout, same.stdout
        failed = compared("failed.json", lambda rows: rows[row].update(result="failed", why="because"))
        assert failed.returncode == 1 and f"{row}: failed" in failed.stdout and "because" in failed.stdout, failed.stdout
        gone = compared("gone.json", lambda rows: rows.pop(row))
        assert gone.returncode == 1 and f"{row}: absent" in gone.stdout, gone.stdout
        skipped = compared("skipped.json", lambda rows: rows[row].update(result="skipped"))
        assert skipped.returncode == 0 and row in skipped.stdout, skipped.stdout
        figure = compared("figure.json", lambda rows: rows[row]["observed"].update(bytes="7"))
        assert figure.returncode == 0 and f"{row}: bytes is 7" in figure.stdout, figure.stdout
        nothing = tool_run("run", program, "--soft", libraries, "--only", "no.such*", "--output", here / "none.json")
        assert nothing.returncode == 2, nothing.stdout


if __name__ == "__main__":
    main()
