#!/usr/bin/env python3
"""Runs the rows of the table of behaviours, one process each, and compares two such runs.

  conformance.py run PROGRAM... --output FILE [--soft DIRECTORY] [--only PATTERN] [--except FILE] [--timeout SECONDS]
                     [--jobs N] [--limited SHIM --memory SIZE]
  conformance.py compare HARDWARE SOFTWARE

`run` uses the GPU of this machine, or with --soft the software GPU whose libraries are in DIRECTORY, and writes JSON:
{"device": ..., "rows": {id: {"result": passed|failed|skipped|crashed|timeout, "observed": {...}, "why": text,
"said": [what the shim printed]}}}.
With --jobs above 1 rows run beside each other; each that did not pass then runs once more, alone, and that counts. The file is
written after every hundred rows. With --limited rows run under that shim, with so much memory and half of the GPU's time. --except names such a file: its
rows are left out.
`compare` prints every row in which the two differ, in result or in an observed figure. Hardware is right: a row that fails
there is a wrong row, and one that fails only in software a wrong software GPU. Exit status: 0 alike (figures may differ),
1 results differ, 2 a wrong call.
"""

import argparse
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import subprocess
import sys
import tempfile


CHUNK = 100  # rows, after which what is known is written: a run that is cut short has most of it


def environment_make(arguments):
    environment = dict(os.environ)
    if arguments.limited:
        environment |= {"LD_PRELOAD": str(pathlib.Path(arguments.limited).resolve()), "SLUICE_SOCKET": "/nonexistent",
                        "SLUICE_MEMORY": arguments.memory, "SLUICE_SM": "50%"}
    if arguments.soft:
        environment["LD_LIBRARY_PATH"] = arguments.soft
        environment.pop("CONFORMANCE_HARDWARE", None)
    else:
        environment["CONFORMANCE_HARDWARE"] = "1"
    return environment


def rows_list(program, environment):
    listed = subprocess.run([program, "--gtest_list_tests"], check=True, capture_output=True, text=True, env=environment)
    suite, out = "", []
    for line in listed.stdout.splitlines():
        if line.startswith("  "):
            out.append(suite + line.split("#")[0].strip())
        elif line.endswith("."):
            suite = line
    return out


def row_read(path):
    """What GoogleTest wrote of the one case that ran."""
    case = json.loads(path.read_text())["testsuites"][0]["testsuite"][0]
    standard = {"name", "file", "line", "status", "result", "timestamp", "time", "classname", "failures"}
    observed = {k: v for k, v in case.items() if k not in standard}
    if case.get("failures"):
        return {"result": "failed", "observed": observed, "why": "\n".join(f["failure"] for f in case["failures"])}
    return {"result": "skipped" if case["result"] == "SKIPPED" else "passed", "observed": observed, "why": ""}


def row_run(program, row, environment, timeout_s):
    with tempfile.TemporaryDirectory() as temp:
        report = pathlib.Path(temp) / "row.json"
        command = [program, f"--gtest_filter={row}", f"--gtest_output=json:{report}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return {"result": "timeout", "observed": {}, "why": f"more than {timeout_s} s"}
        said = [line for line in done.stderr.splitlines() if line.startswith("sluice:")]
        if not report.exists():
            return {"result": "crashed", "observed": {}, "why": f"status {done.returncode}: {(done.stdout + done.stderr)[-800:]}"}
        return row_read(report) | {"said": said}


def device_describe(soft):
    if soft:
        return "software GPU"
    asked = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True,
                           text=True)
    return asked.stdout.strip() or "unknown GPU"


def rows_run(program, rows, environment, arguments):
    """{row: result}, of rows beside each other where that was asked for."""
    def one(row):
        return row_run(program, row, environment, arguments.timeout)

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        results = dict(zip(rows, pool.map(one, rows)))
    if arguments.jobs > 1:
        results |= {row: one(row) for row in rows if results[row]["result"] not in ("passed", "skipped")}
    return results


def run(arguments):
    environment = environment_make(arguments)
    rows = {}
    device = device_describe(arguments.soft)
    known = json.loads(pathlib.Path(arguments.known).read_text())["rows"] if arguments.known else {}
    for program in arguments.program:
        todo = [r for r in rows_list(program, environment) if fnmatch.fnmatch(r, arguments.only) and r not in known]
        for first in range(0, len(todo), CHUNK):
            rows.update(rows_run(program, todo[first:first + CHUNK], environment, arguments))
            pathlib.Path(arguments.output).write_text(json.dumps({"device": device, "rows": rows}, indent=1) + "\n")
    counts = {}
    for row in rows.values():
        counts[row["result"]] = counts.get(row["result"], 0) + 1
    print(f"{len(rows)} rows: " + ", ".join(f"{n} {name}" for name, n in sorted(counts.items())))
    return 0 if rows else 2


def compare(arguments):
    hardware, software = (json.loads(pathlib.Path(p).read_text()) for p in (arguments.hardware, arguments.software))
    differ = 0
    for row in sorted(hardware["rows"].keys() | software["rows"].keys()):
        a, b = (side["rows"].get(row, {"result": "absent", "observed": {}, "why": ""}) for side in (hardware, software))
        if a["result"] != b["result"]:
            differ += "skipped" not in (a["result"], b["result"])
            print(f"{row}: {a['result']} on {hardware['device']}, {b['result']} on {software['device']}")
            for side in (a, b):
                if side["why"]:
                    print("    " + side["why"].replace("\n", "\n    "))
        for name in sorted(a["observed"].keys() | b["observed"].keys()):
            if a["observed"].get(name) != b["observed"].get(name):
                print(f"{row}: {name} is {a['observed'].get(name)} on {hardware['device']}, "
                      f"{b['observed'].get(name)} on {software['device']}")
    print(f"{differ} rows differ in their result")
    return 1 if differ else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    one.add_argument("program", nargs="+")
    one.add_argument("--output", required=True)
    one.add_argument("--soft")
    one.add_argument("--only", default="*")
    one.add_argument("--except", dest="known", metavar="FILE", help="leaves out the rows of this result")
    one.add_argument("--limited", metavar="SHIM", help="this library preloaded, with half of the GPU's time")
    one.add_argument("--memory", default="512MiB", metavar="SIZE", help="of each GPU with --limited (512MiB)")
    one.add_argument("--timeout", type=float, default=60)
    one.add_argument("--jobs", type=int, default=1, help="rows at once (1: rows look at the memory of the whole device)")
    one.set_defaults(action=run)
    two = commands.add_parser("compare")
    two.add_argument("hardware")
    two.add_argument("software")
    two.set_defaults(action=compare)
    arguments = parser.parse_args()
    return arguments.action(arguments)


if __name__ == "__main__":
    sys.exit(main())
