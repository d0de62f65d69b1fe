"""The section of docs/threat-model.md on these attacks, between markers: how many there are, by family, and what came of them
the last time."""

import json
import pathlib
import re
import sys

from suite.cases import FAMILIES

DOCUMENT = pathlib.Path(__file__).resolve().parents[3] / "docs/threat-model.md"
BEGIN, END = "<!-- attacks: written by tests/attacks/run --summary -->", "<!-- end of attacks -->"
PLACE = "## What is bounded, not stopped"  # the section goes before it where there is none yet


def section(cases, results):
    lines = [BEGIN, "## Attacks that are tried by the nightly preset", "",
             f"`tests/attacks` holds {len(cases)} attacks. Each is judged by the software GPU's own account of memory and time, or by the",
             "kernel's account of the broker or the exporter (memory, descriptors, time for an honest answer), and never by what Sluice says.",
             "`tests/attacks/run --list` names them all. `error` (the attack itself failed) counts as broken.",
             "The last three columns count the results of the last run of each family that was written here; attacks that came since are",
             "in none of them. `-`: the family was not judged in such a run.", "",
             "| family | what is attacked | attacks | held | broken | undecided |", "|---|---|---:|---:|---:|---:|"]
    for family, text in FAMILIES.items():
        number = sum(case.family == family for case in cases)
        mine = [result for result in results if result["case"].startswith(family + ".")]
        counts = [str(sum(r["state"] in states for r in mine)) if mine else "-"
                  for states in (("held",), ("broken", "error"), ("undecided",))]
        lines.append(f"| {family} | {text} | {number} | {' | '.join(counts)} |")
    return "\n".join([*lines, "", END, ""])


def counts_of(text):
    """The number of attacks of each family, as the document has it."""
    found = re.search(re.escape(BEGIN) + "(.*?)" + re.escape(END), text, re.S)
    return {row[0]: int(row[1]) for row in re.findall(r"^\| (\w+) \| [^|]* \| (\d+) \|", found[1], re.M)} if found else {}


def write(cases, paths):
    results = [result for path in paths for result in json.loads(pathlib.Path(path).read_text())["results"]]
    known = {case.full_name for case in cases}
    text = DOCUMENT.read_text()
    new = section(cases, [result for result in results if result["case"] in known])
    old = re.search(re.escape(BEGIN) + ".*?" + re.escape(END) + "\n", text, re.S)
    text = text.replace(old[0], new) if old else text.replace(PLACE, new + "\n" + PLACE, 1)
    DOCUMENT.write_text(text)
    return 0


def check(cases):
    said = counts_of(DOCUMENT.read_text())
    are = {family: sum(case.family == family for case in cases) for family in FAMILIES}
    if said == are:
        print(f"the document knows all {len(cases)} attacks")
        return 0
    print(f"docs/threat-model.md says {said}, and there are {are}: run tests/attacks/run --summary", file=sys.stderr)
    return 1
