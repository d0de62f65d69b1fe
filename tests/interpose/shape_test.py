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
check("NEEDED is libc alone", needed == ["libc.so.6"], needed)
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
versions = re.findall(r"Name: (GLIBC_\S+)  Flags: none  Version", output("readelf", "-VW", arguments.shim))
check("at most seven versions of libc: the loader looks each up", 0 < len(versions) <= 7, versions)
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
reference, graphics = {}, {}
for line in pathlib.Path(arguments.reference).read_text().splitlines()[1:]:
    symbol, version, classes = line.split("\t")[:3]
    if "not_in_stub" in classes:
        graphics[symbol] = set(classes.split(";"))
    else:
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

# Every entry point has a hook, or a line that says why not: its own, or one for each of its classes. Also those of graphics,
# which the stub library and with it the table lacks. What is new in a toolkit is in neither place until somebody decides.
unhooked, harmless = {}, {}
for line in (pathlib.Path(arguments.sources) / "unhooked.tsv").read_text().splitlines():
    if line.startswith("#"):
        continue
    name, _, reason = line.partition("\t")
    named = harmless if name.startswith("class:") else unhooked
    check("unhooked.tsv gives a reason", reason.strip(), line)
    check("unhooked.tsv names nothing twice", name not in named, line)
    named[name.removeprefix("class:")] = reason
classes = {symbol: set(e["class"]) for symbol, e in entries.items()} | graphics
by_class = {s for s, own in classes.items() if own <= set(harmless)}
missing = set(classes) - names - set(unhooked) - by_class
check("hooked, or a reason in unhooked.tsv", not missing, sorted(missing))
check("unhooked.tsv names entry points", set(unhooked) <= set(classes), sorted(set(unhooked) - set(classes)))
check("unhooked.tsv names no hook", not names & set(unhooked), sorted(names & set(unhooked)))
check("unhooked.tsv names nothing that a class of it names", not by_class & set(unhooked), sorted(by_class & set(unhooked)))
for name in harmless:
    check("unhooked.tsv: a class without a hook has entry points, and none of them a hook", {
        s for s, own in classes.items() if own == {name}} and not names & by_class, name)
# What launches, or takes or gives memory, is no class of its own that could pass, and neither is what touches the device.
TOUCHING = {"launch", "launch_graph", "mem_alloc", "mem_free", "mem_alloc_indirect", "mem_free_indirect", "mem_pool", "mem_vmm",
            "mem_ipc", "mem_managed", "mem_host", "graph_mem", "copy", "memset", "memop", "host_fn", "stream_op", "sync", "array",
            "texture", "module", "interop", "graph_build", "graph_exec", "capture", "event", "stream", "ctx", "green",
            "multicast", "report_mem"}
check("no class that touches the device passes as a whole", not TOUCHING & set(harmless), sorted(TOUCHING & set(harmless)))

for source in pathlib.Path(arguments.sources).glob("*.cpp"):
    text = source.read_text()
    for word in ("std::", "#include <string>", "#include <vector>", "setenv(", "exit(0", "signal(", "sigaction("):
        check(f"{source.name} is a good guest", word not in text, word)

print("\n".join(failures) or "the shim has its shape")
sys.exit(1 if failures else 0)
