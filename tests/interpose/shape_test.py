"""The shim's shape: it needs libc alone, exports its hooks and the two look-up functions alone, has a small thread-local
block, one constructor of its own, and its table agrees with the reference list of the driver's entry points."""
import argparse
import json
import pathlib
import re
import subprocess
import sys

import golden

parser = argparse.ArgumentParser()
for name in ("shim", "exports", "entrypoints", "reference", "sources", "golden"):
    parser.add_argument(f"--{name}", required=True)
arguments = parser.parse_args()
failures = []


def check(what, good, detail=""):
    if not good:
        failures.append(f"{what}: {detail}")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


dynamic = output("readelf", "-dW", arguments.shim)
needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
# The loader is part of libc and in every process; it has the list of loaded objects.
check("NEEDED is libc and its loader alone", set(needed) <= {"libc.so.6", "ld-linux-x86-64.so.2"}, needed)
check("never unloaded: threads and handlers of ours may be inside", "NODELETE" in dynamic)
# What runs at load is alone.cpp's, which acts only where the user set limits.
check("one function to run at load, none at the end", re.findall(r"\(((?:INIT|FINI)\w*)\)", dynamic) == ["INIT"], dynamic)
# What the loader does for it is paid by every program that is started under the shim.
segments = re.findall(r"^\s*LOAD\s.*?\s(R\s*W?\s*E?)\s+0x", output("readelf", "-lW", arguments.shim), re.M)
check("two segments to map", len(segments) == 2, segments)
sections = re.findall(r"\s(?:PROGBITS|DYNAMIC|INIT_ARRAY)\s+(\w+)\s+\w+\s+(\w+)\s+\w+\s+WA\s", output("readelf", "-SW", arguments.shim))
pages = {page for address, size in sections for page in
         range(int(address, 16) // 4096, (int(address, 16) + int(size, 16) - 1) // 4096 + 1)}
check("one page for the loader to write", len(sections) >= 4 and len(pages) == 1, sections)
relocations = re.findall(r"\sR_X86_64_(\w+)", output("readelf", "-rW", arguments.shim))
at_load = [kind for kind in relocations if kind != "JUMP_SLOT"]
check("at most 16 relocations at load", len(at_load) <= 16, at_load)
check("functions of libc are bound when first called", not re.search(r"\bBIND_NOW\b|Flags:.*\bNOW\b", dynamic))

exported = {line.split()[-1] for line in output("nm", "-D", "--defined-only", arguments.shim).splitlines()
            if line.split()[1] != "A"}
names = {name.split("@")[0] for name in exported}
expected = set(pathlib.Path(arguments.exports).read_text().split()) | {"dlsym", "dlvsym"}
check("exports are the hooks alone", names == expected, sorted(names ^ expected))
for symbol in ("dlsym@@GLIBC_2.34", "dlsym@GLIBC_2.2.5", "dlvsym@@GLIBC_2.34", "dlvsym@GLIBC_2.2.5"):
    check("look-up versions", symbol in exported, symbol)

changed = golden.differences(arguments.shim, arguments.golden)
check(f"nm -D differs from {arguments.golden}; if that is meant, renew it: {golden.RENEW}", not changed, "\n  ".join(["", *changed]))

tls = re.search(r"^\s*TLS\s+\S+\s+\S+\s+\S+\s+\S+\s+(\S+)", output("readelf", "-lW", arguments.shim), re.M)
check("thread-local block at most 64 bytes", tls is not None and int(tls[1], 16) <= 64, tls and tls[1])

entries = {e["symbol"]: e for e in json.loads(pathlib.Path(arguments.entrypoints).read_text())}
reference = {}
for line in pathlib.Path(arguments.reference).read_text().splitlines()[1:]:
    symbol, version, classes = line.split("\t")[:3]
    if "not_in_stub" not in classes:
        reference[symbol] = (version, classes)
check("637 entry points", len(entries) == 637 == len(reference), (len(entries), len(reference)))
check("names agree", set(entries) == set(reference), sorted(set(entries) ^ set(reference)))
for symbol, (version, classes) in reference.items():
    e = entries.get(symbol)
    if e is None:
        continue
    suffix = e["suffix"] + (f"_{e['per_thread']}" if e["per_thread"] else "") or "-"
    check(f"version of {symbol}", f"{e['since']}/{suffix}" == version, (e["since"], suffix, version))
    check(f"class of {symbol}", ";".join(e["class"]) == classes, (e["class"], classes))

launches = {s for s, e in entries.items() if "launch" in e["class"] or "launch_graph" in e["class"]}
launches -= {s for s in launches if "GraphUpload" in s}
check("every launch is hooked", launches <= names, sorted(launches - names))
allocations = {s for s, e in entries.items() if "mem_alloc" in e["class"] or "mem_free" in e["class"]}
missed = allocations - names
check("every allocation and free is hooked", not missed, sorted(missed))

# What matters for quotas has a hook, or a line that says why not.
MATTERS = {"launch", "launch_graph", "mem_alloc", "mem_free", "mem_pool", "mem_vmm", "graph_mem", "array", "mem_ipc",
           "report_mem", "ctx"}
unhooked = {}
for line in (pathlib.Path(arguments.sources) / "unhooked.tsv").read_text().splitlines():
    if not line.startswith("#"):
        symbol, _, reason = line.partition("\t")
        check(f"unhooked.tsv on {symbol}", symbol in entries and reason.strip(), line)
        unhooked[symbol] = reason
matter = {s for s, e in entries.items() if MATTERS & set(e["class"])}
missing = matter - names - set(unhooked)
check("hooked, or a reason in unhooked.tsv", not missing, sorted(missing))
check("unhooked.tsv names no hook", not names & set(unhooked), sorted(names & set(unhooked)))
check("unhooked.tsv names what matters", set(unhooked) <= matter, sorted(set(unhooked) - matter))

for source in pathlib.Path(arguments.sources).glob("*.cpp"):
    text = source.read_text()
    for word in ("std::", "#include <string>", "#include <vector>", "setenv(", "exit(0", "signal(", "sigaction("):
        check(f"{source.name} is a good guest", word not in text, word)

print("\n".join(failures) or "the shim has its shape")
sys.exit(1 if failures else 0)
