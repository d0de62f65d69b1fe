#!/usr/bin/env python3
"""Reads the list of CUDA driver entry points from the toolkit and writes it as JSON.

The list is data, never typed by hand: the names come from the toolkit's stub library, their prototypes from cuda.h and
cudaProfiler.h (preprocessed with __CUDA_API_VERSION_INTERNAL, so that every ABI version is visible under its own name),
and the driver version since which each exists from cudaTypedefs.h, whose PFN_<base>_v<since>[_ptds|_ptsz] names, sorted
by version, pair one to one with the exported suffixes "", _v2, _v3 ... The shim and the software driver are both
generated from the result. Only the class of an entry point (what it does: launch, mem_alloc, ...) is hand-kept, in a
table of two columns.

It knows nothing of hooks or implementations, and it fails when the toolkit and its own expectations disagree: a name
without a prototype, without a version or without a class must never be dropped in silence.

    entrypoints.py --json OUT --cuda-include DIR --stub PATH [--classes TSV] [--cxx g++]

Each record: symbol, base, since (e.g. 3020), suffix ("" or "_v2" ...), per_thread ("", "ptds" or "ptsz"), returns,
params [{type, name}], class (a list). symbol = base + suffix + ("_" + per_thread if any).
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

HEADERS = ("cuda.h", "cudaProfiler.h")
TYPEDEF_HEADERS = ("cudaTypedefs.h", "cudaProfilerTypedefs.h")
SYMBOL = re.compile(r"^(?P<base>cu[A-Z]\w*?)(?P<suffix>_v\d+)?(?:_(?P<per_thread>pt[ds][sz]?))?$")
PROTOTYPE = re.compile(r"\b(CUresult)\s+(cu[A-Z]\w*)\s*\(([^;{}]*)\)\s*;")
TYPEDEF = re.compile(r"\*\s*PFN_(cu[A-Z]\w*?)_v(\d+)(?:_(ptds|ptsz))?\s*\)")
PARAMETER = re.compile(r"^(?P<type>.*?[\s*&])(?P<name>\w+)$", re.S)


def fail(text):
    sys.exit(f"entrypoints.py: {text}")


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        fail(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def stub_names(stub):
    lines = run(["nm", "-D", "--defined-only", str(stub)]).splitlines()
    names = sorted(parts[2].split("@")[0] for parts in (line.split() for line in lines)
                   if len(parts) == 3 and parts[1] in "TWi" and re.match(r"cu[A-Z]", parts[2]))
    if not names:
        fail(f"{stub} exports no cu* name; give the stub libcuda.so of the toolkit with --stub")
    return names


def parameter_split(text):
    """One parameter as {type, name}. The driver API passes neither arrays nor function pointers by bare declarator."""
    text = " ".join(text.split())
    if "(" in text or "[" in text:
        fail(f"parameter '{text}' is an array or function declarator, which this parser does not read")
    match = PARAMETER.match(text)
    if not match:
        fail(f"parameter '{text}' has no name")
    return {"type": re.sub(r"\s*\*\s*", " *", match["type"].strip()).replace("* *", "**"), "name": match["name"]}


def prototypes(include, cxx):
    source = "".join(f"#include <{header}>\n" for header in HEADERS)
    text = run([cxx, "-E", "-P", "-x", "c++", "-D__CUDA_API_VERSION_INTERNAL", f"-I{include}", "-"], input=source)
    found = {}
    for returns, name, params in PROTOTYPE.findall(text):
        params = params.strip()
        parsed = [] if params in ("", "void") else [parameter_split(p) for p in params.split(",")]
        if found.get(name, (returns, parsed)) != (returns, parsed):
            fail(f"{name} is declared twice with different parameters")
        found[name] = (returns, parsed)
    return found


def versions(include):
    """(base, per_thread) -> ascending list of the driver versions at which that ABI appeared."""
    found = {}
    for header in TYPEDEF_HEADERS:
        text = (pathlib.Path(include) / header).read_text(encoding="utf-8")
        for base, since, per_thread in TYPEDEF.findall(text):
            found.setdefault((base, per_thread), set()).add(int(since))
    return {key: sorted(value) for key, value in found.items()}


def classes_read(path):
    found = {}
    for number, line in enumerate(pathlib.Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        parts = line.split("\t")
        if len(parts) != 2 or not parts[1]:
            fail(f"{path}:{number}: expected 'symbol<TAB>class[;class]'")
        found[parts[0]] = parts[1].split(";")
    return found


def since_assign(names, known):
    """symbol -> since. Suffixes of a family in their order pair with its versions in theirs."""
    families = {}
    for name in names:
        match = SYMBOL.match(name)
        key = (match["base"], match["per_thread"] or "")
        families.setdefault(key, []).append((match["suffix"] or "", name))
    since = {}
    for (base, per_thread), members in families.items():
        members.sort(key=lambda member: int(member[0][2:] or 1) if member[0] else 1)
        stated = known.get((base, per_thread))
        if stated is None or len(stated) != len(members):
            fail(f"cudaTypedefs.h states {stated or 'no versions'} for {base}{'_' + per_thread if per_thread else ''}, "
                 f"but the stub exports {[name for _, name in members]}")
        since.update((name, version) for (_, name), version in zip(members, stated))
    return since


def records(names, protos, since, classes):
    missing = [name for name in names if name not in protos]
    if missing:
        fail(f"no prototype in {' or '.join(HEADERS)} for: {', '.join(missing)}")
    if classes is not None:
        unclassed = [name for name in names if name not in classes]
        unknown = sorted(set(classes) - set(names))
        if unclassed or unknown:
            fail(f"the class table does not fit this toolkit; without class: {unclassed}, not exported: {unknown}")
    for name in names:
        match = SYMBOL.match(name)
        returns, params = protos[name]
        yield {"symbol": name, "base": match["base"], "since": since[name], "suffix": match["suffix"] or "",
               "per_thread": match["per_thread"] or "", "returns": returns, "params": params,
               "class": [] if classes is None else classes[name]}


def main():
    parser = argparse.ArgumentParser(description="writes the driver's entry points as JSON")
    parser.add_argument("--json", required=True)
    parser.add_argument("--cuda-include", required=True)
    parser.add_argument("--stub", required=True)
    default_classes = pathlib.Path(__file__).resolve().parent.parent / "interpose" / "classes.tsv"
    parser.add_argument("--classes", default=str(default_classes))
    parser.add_argument("--cxx", default="g++")
    arguments = parser.parse_args()

    names = stub_names(arguments.stub)
    table = list(records(names, prototypes(arguments.cuda_include, arguments.cxx),
                         since_assign(names, versions(arguments.cuda_include)), classes_read(arguments.classes)))
    text = "[\n" + ",\n".join(json.dumps(record) for record in table) + "\n]\n"
    out = pathlib.Path(arguments.json)
    out.parent.mkdir(parents=True, exist_ok=True)
    if not out.exists() or out.read_text(encoding="utf-8") != text:
        out.write_text(text, encoding="utf-8")
    else:
        out.touch()


if __name__ == "__main__":
    main()
