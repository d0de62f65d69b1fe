#!/usr/bin/env python3
"""The table of behaviours: checks it, and writes docs/conformance.md from it.

  table.py TABLE --api JSON --sources DIRECTORY --library FILE... --program FILE... [--driver DIRECTORY]
           (--check DOCUMENT | --write DOCUMENT)

A table is TSV with the columns id, rule, source, API, status; an id is FAMILY.NAME and the GoogleTest case that shows it.
--api is the list of the driver's entry points; further names are looked up in what the libraries export. With --check, the
rows and the programs' cases must be the same set, and the document up to date. Every entry point that the sources of the driver define must be in some row: what is in none answers NOT_SUPPORTED.
Wrong rows are listed, one line each.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys

COLUMNS = ["id", "rule", "source", "API", "status"]
STATUS = {
    "exact": "the software GPU does what the sentence says",
    "modelled": "it does so with a stand-in for a physical quantity",
    "unsupported": "it answers `CUDA_ERROR_NOT_SUPPORTED`, and the test asserts that",
}
ROWS_MIN = 300
FAMILY_ROWS_MIN = 20
FAMILIES = {
    "memory": "Device, pitched, managed and host memory; what pointers tell of themselves",
    "pools": "Stream-ordered allocation and its pools",
    "vmm": "Virtual memory management",
    "arrays": "Arrays and mipmapped arrays",
    "textures": "Texture and surface objects, and what kernels fetch",
    "copies": "Copies and fills; what is synchronous",
    "streams": "Streams, default streams, stream memory operations",
    "events": "Events and timing",
    "hostfuncs": "Host functions and callbacks",
    "capture": "Stream capture",
    "graphs": "Graphs",
    "modules": "Modules, libraries, linking, lazy loading, occupancy",
    "contexts": "Contexts and limits",
    "ipc": "Sharing between processes and peers",
    "launches": "Launches, cooperative launches, launch attributes",
    "checkpoint": "Checkpoint and restore",
    "errors": "Errors",
    "visibility": "Which devices are seen, and how entry points are found",
    "nvml": "NVML as monitors read it",
    "runtime": "The runtime API",
}


def rows_read(path, problems):
    rows = []
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    if not lines or lines[0].split("\t") != COLUMNS:
        problems.append(f"{path}: the first line must name the columns {COLUMNS}")
        return rows
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("\t")
        if len(cells) != len(COLUMNS) or not all(c.strip() for c in cells):
            problems.append(f"{path}:{number}: {len(cells)} cells, some of them empty, instead of {len(COLUMNS)}")
            continue
        rows.append(dict(zip(COLUMNS, cells), where=f"{path}:{number}"))
    return rows


def names_known(arguments):
    names = set()
    for entry in json.loads(pathlib.Path(arguments.api).read_text()):
        names |= {entry["symbol"], entry["base"]}
    for line in (pathlib.Path(arguments.sources) / "graphics.tsv").read_text().splitlines():
        if not line.startswith("#"):
            names.add(line.split("\t")[0])
    for library in arguments.library:
        out = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
        names |= {line.split()[-1].split("@")[0] for line in out.splitlines()}
    return names


# Refuses everybody, in a form that is nobody's documented behaviour (softgpu/README.md).
WITHOUT_ROW = {"cuGetExportTable"}


def base(name):
    """The entry point without the suffixes of versions and per-thread streams."""
    return re.sub(r"_v\d+$", "", re.sub(r"_pt[sd][zs]$", "", name))


def implemented(directory):
    names = set()
    for path in pathlib.Path(directory).glob("*.cpp"):
        names |= {base(n) for n in re.findall(r"^CUresult (cu[A-Z]\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)}
    return names


def cases_of(arguments):
    environment = dict(os.environ)
    if arguments.driver:
        environment["LD_LIBRARY_PATH"] = arguments.driver
    cases = []
    for program in arguments.program:
        listed = subprocess.run([program, "--gtest_list_tests"], check=True, capture_output=True, text=True, env=environment)
        suite = ""
        for line in listed.stdout.splitlines():
            if line.startswith("  "):
                cases.append(suite + line.split("#")[0].strip())
            elif line.endswith("."):
                suite = line
    return cases


def rows_check(rows, known, problems):
    seen = set()
    for row in rows:
        where = row["where"]
        if not re.fullmatch(r"[a-z0-9]+\.[A-Za-z0-9_]+", row["id"]):
            problems.append(f"{where}: the id {row['id']!r} is not FAMILY.NAME")
        if row["id"] in seen:
            problems.append(f"{where}: {row['id']} stands twice")
        seen.add(row["id"])
        if row["id"].split(".")[0] not in FAMILIES:
            problems.append(f"{where}: there is no family {row['id'].split('.')[0]}")
        if row["status"] not in STATUS:
            problems.append(f"{where}: the status {row['status']!r} is none of {', '.join(STATUS)}")
        for name in row["API"].split(","):
            if name.strip() not in known:
                problems.append(f"{where}: nothing exports {name.strip()!r}")
    counts = collections.Counter(row["id"].split(".")[0] for row in rows)
    for family in FAMILIES:
        if counts[family] < FAMILY_ROWS_MIN:
            problems.append(f"family {family} has {counts[family]} rows, fewer than {FAMILY_ROWS_MIN}")
    if len(rows) < ROWS_MIN:
        problems.append(f"{len(rows)} rows in all, fewer than {ROWS_MIN}")
    return seen


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


def document_make(rows):
    by_family = {family: [r for r in rows if r["id"].split(".")[0] == family] for family in FAMILIES}
    out = [
        "# How a GPU behaves, row by row",
        "",
        "Generated from `tests/conformance/behaviours.tsv` by `tests/conformance/table.py`; edit the table, not this page.",
        "",
        "Each row is one sentence that can be true or false, with where it is written and the test that shows it",
        "(`ctest -R conformance.ID`). The same tests run on hardware: `tests/gpu/conformance.py`. What is in no row is not",
        "promised; calls that the software GPU does not know return `CUDA_ERROR_NOT_SUPPORTED` and are named on stderr with",
        "`SOFTGPU_LOG=1`.",
        "",
    ]
    out += [f"- `{status}`: {meaning}." for status, meaning in STATUS.items()]
    out += ["", "| family | what | rows | exact | modelled | unsupported |", "|---|---|---|---|---|---|"]
    for family, of_family in by_family.items():
        counts = collections.Counter(r["status"] for r in of_family)
        out.append(f"| [{family}](#{family}) | {FAMILIES[family]} | {len(of_family)} | " +
                   " | ".join(str(counts[s]) for s in STATUS) + " |")
    total = collections.Counter(r["status"] for r in rows)
    out.append(f"| all | | {len(rows)} | " + " | ".join(str(total[s]) for s in STATUS) + " |")
    for family, of_family in by_family.items():
        out += ["", f"## {family}", "", f"{FAMILIES[family]}.", "", "| id | rule | source | status |", "|---|---|---|---|"]
        out += [f"| `{r['id'].split('.')[1]}` | {cell(r['rule'])} | {cell(r['source'])} | {r['status']} |" for r in of_family]
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("--api", required=True)
    parser.add_argument("--sources", required=True)
    parser.add_argument("--library", action="append", default=[])
    parser.add_argument("--program", action="append", default=[])
    parser.add_argument("--driver")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check")
    action.add_argument("--write")
    arguments = parser.parse_args()
    problems = []
    rows = rows_read(arguments.table, problems)
    ids = rows_check(rows, names_known(arguments), problems)
    told = {base(name.strip()) for row in rows for name in row["API"].split(",")}
    problems += [f"{name} is implemented, and no row tells what it does"
                 for name in sorted(implemented(arguments.sources) - told - WITHOUT_ROW)]
    if arguments.write:
        pathlib.Path(arguments.write).write_text(document_make(rows), encoding="utf-8")
    else:
        cases = cases_of(arguments)
        problems += [f"{id} is in the table, and no test shows it" for id in sorted(ids - set(cases))]
        problems += [f"{id} is a test, and no row of the table" for id in sorted(set(cases) - ids)]
        document = pathlib.Path(arguments.check)
        if not document.exists() or document.read_text(encoding="utf-8") != document_make(rows):
            problems.append(f"{document} is not what the table says; build the target conformance_document")
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(rows)} rows, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
