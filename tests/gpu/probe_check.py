#!/usr/bin/env python3
"""Runs probe_driver on the software driver, where the answers are known, and checks that every part of its JSON is there.

  probe_check.py PROBE_DRIVER SOFTWARE_GPU_LIBRARIES REFERENCE_LIST_OF_ENTRY_POINTS
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import probe_report

LAUNCHES = 1000
CHANGES = {"total_memory": "property_total_bytes", "sm_count": "sm_count", "pci_string": "pci", "name": "name", "uuid": "uuid"}
failures = []


def expect(good, text):
    if not good:
        failures.append(text)


def check_lookup(lookup):
    expect(lookup["asked"] >= 600, f"only {lookup['asked']} entry points asked")
    for kind in ("different", "only_dlsym", "only_lookup", "neither"):
        expect(not lookup[kind], f"{kind}: {' '.join(lookup[kind])}")
    expect(lookup["same"] == lookup["asked"] and isinstance(lookup["aliases"], list), "lookup: same, aliases")


def check_capture(captures, reference):
    """Calls of which the reference list has a note, all that it marks as inferred among them, each asked in every way."""
    noted = {line.split("\t")[0]: re.search(r"\| capture=([a-z]*)(\?)?", line).groups() for line in open(reference) if "| capture=" in line}
    inferred = {symbol for symbol, (_, inferred) in noted.items() if inferred}
    expect(len(captures) > 60 and inferred <= set(captures) <= set(noted),
           f"capture: not asked {inferred - set(captures)}, not in the list {set(captures) - set(noted)}")
    for symbol, answer in captures.items():
        expect("outside" in answer, f"capture of {symbol}: {answer}")
        for mode in ("global", "thread_local", "relaxed"):
            for thread in ("same_thread", "other_thread"):
                one = answer.get(mode, {}).get(thread, {})
                expect(one.get("begin") == 0 and isinstance(one.get("result"), int), f"capture of {symbol}, {mode}: {one}")
                expect(one.get("survives") == (one.get("end") == 0), f"capture of {symbol}, {mode}, {thread}: {one}")
    # The list has hardware's answers, and the software GPU gives them, too, where it has the call at all.
    for symbol in set(captures) - inferred:
        found = probe_report.capture_class(captures[symbol])
        expect(found is None or noted[symbol][0].startswith(found), f"capture of {symbol}: {found}, the list says {noted[symbol][0]}")
    # Known here: a pool may not be made by a thread that captures, unless it said it knows what it does.
    pool = captures["cuMemPoolCreate"]
    expect(pool["outside"] == 0, f"cuMemPoolCreate outside: {pool['outside']}")
    expect(pool["global"]["other_thread"] == {"begin": 0, "result": 900, "survives": False, "end": 901}, f"{pool['global']}")
    expect(pool["thread_local"]["same_thread"]["result"] == 900, f"{pool['thread_local']}")
    expect(pool["thread_local"]["other_thread"]["survives"], f"{pool['thread_local']}")
    expect(pool["relaxed"]["same_thread"]["survives"], f"{pool['relaxed']}")


def check_integrity(integrity):
    """The software GPU's runtime checks nothing, so every change passes, and must be seen by the program."""
    shared = integrity["shared"]
    expect(shared["bare"]["error"] == 0 and shared["bare"] == shared["none"], f"integrity: {shared['bare']}, {shared['none']}")
    for change, figure in CHANGES.items():
        answer = shared[change]
        differing = {name for name in shared["bare"] if answer.get(name) != shared["bare"][name]}
        expect(differing == {figure}, f"integrity: {change} changed {differing}")
        # NVIDIA's own runtime needs NVIDIA's driver; that it says so is all that can be known here.
        expect(integrity["static"][change].get("error", 0) != 0, f"integrity, static: {integrity['static'][change]}")


def check_overhead(overhead):
    shared, static = overhead["shared"], overhead["static"]
    for name, wrapped in (("bare", 0), ("wrapper", LAUNCHES)):
        answer = shared[name]
        expect(answer["error"] == 0 and answer["launches"] == LAUNCHES, f"overhead: {answer}")
        expect((answer["wrapped_launches"] >= LAUNCHES) == bool(wrapped), f"overhead, {name}: {answer['wrapped_launches']} wrapped")
        expect(0 < answer["launch_least_ns"] <= answer["launch_ns"] < 1e9, f"overhead: {answer}")
        expect(0 < answer["with_event_pair_least_ns"] <= answer["with_event_pair_ns"] < 1e9, f"overhead: {answer}")
        expect(static[name].get("error", 0) != 0, f"overhead, static: {static[name]}")


def check_report(answer, reference, directory):
    """probe_report.py on these answers: the software GPU's runtime bears a changed UUID, which is told; a runtime that refuses
    it contradicts nothing; a look-up that differs does."""
    def report(change):
        changed = json.loads(json.dumps(answer))
        change(changed)
        path = pathlib.Path(directory) / "answer.json"
        path.write_text(json.dumps(changed))
        done = subprocess.run([sys.executable, pathlib.Path(__file__).with_name("probe_report.py"), path, reference],
                              capture_output=True, text=True)
        return done.returncode, done.stdout

    def refuse(changed):
        changed["integrity"]["shared"]["uuid"] = {"error": 103}

    status, text = report(lambda changed: None)
    expect(status == 1 and "uuid changed, expected to be refused" in text and "1 contradictions" in text, f"report: {text}")
    expect("static runtime: it does not come up bare" in text, f"report: {text}")
    status, text = report(refuse)
    expect(status == 0 and "0 contradictions" in text and "a wrapper adds" in text, f"report: {text}")
    expect("cuMemPoolCreate:" not in text and "cuCtxCreate: not decided (error 801" in text, f"report: {text}")
    status, text = report(lambda changed: (refuse(changed), changed["lookup"]["different"].append("cuInit")))
    expect(status == 1 and "lookup: cuInit" in text, f"report: {text}")
    status, text = report(lambda changed: (refuse(changed), changed["capture"].update(cuMemCreate={"ended": "signal 11"})))
    expect(status == 0 and "cuMemCreate: not decided (signal 11)" in text, f"report: {text}")


def main():
    probe, libraries, reference = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        environment = dict(os.environ, LD_LIBRARY_PATH=libraries, SOFTGPU_DIR=directory, PROBE_LAUNCHES=str(LAUNCHES))
        text = subprocess.run([probe], env=environment, check=True, capture_output=True, text=True, timeout=100).stdout
        answer = json.loads(text)
        check_report(answer, reference, directory)
    expect(answer["driver_version"] >= 13000, f"driver {answer['driver_version']}")
    check_lookup(answer["lookup"])
    expect(isinstance(answer["exports"]["beyond_list"], list) and "cudbgGetAPI" in answer["exports"]["interop"], "exports")
    check_capture(answer["capture"], reference)
    check_integrity(answer["integrity"])
    check_overhead(answer["overhead"])
    for name in ("btf", "tracing_readable", "sched_switch", "nvidia_dev_xid"):
        expect(isinstance(answer["kernel"].get(name), bool), f"kernel: {answer['kernel']}")
    print("\n".join(failures) or "every part of the answer is there")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
