#!/usr/bin/env python3
"""Generates the shim's table from the list of entry points and from the hooks found in the sources.

Reads entrypoints.json (cmake/entrypoints.py), unhooked.tsv and the hook sources; writes into --out:
  driver_table.gen.h     one typed pointer per driver entry point, ordered by base name
  driver_offsets.gen.h   where in it the real functions of hooks in assembly are
  driver_table.gen.inc   names, base names, versions, hash tables, hook addresses
  hooks_touch.gen.cpp    hooks of one pattern: what only waits for the end of a hold
  exports.map            the version script
  exports.txt            the names of all hooks, one a line, for the test that compares them with `nm -D`

A hook is a function defined with SLUICE_HOOK in a hooks_*.cpp. It must be an entry point of the driver or one of the
NVML functions below; anything else is an error here, not a silent export.
"""
import argparse
import json
import pathlib
import re
import sys

HOOK = re.compile(r"^SLUICE_HOOK(?:\s+\w+\s+|_ASSEMBLED\()(\w+)\s*[(,)]", re.M)
ASSEMBLED = re.compile(r"^SLUICE_HOOK_ASSEMBLED\((\w+)\)", re.M)
NVML = ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetSamples",
        "nvmlDeviceGetRunningProcessDetailList"]
NVML += [f"nvmlDeviceGet{kind}RunningProcesses{version}" for kind in ("Compute", "Graphics", "MPSCompute")
         for version in ("", "_v2", "_v3")]
# Whatever touches device memory or handles waits for the end of a hold, but for what unhooked.tsv names. `copy;sync` blocks
# its caller as well.
TOUCH = {"copy", "memset", "mem_alloc", "mem_free", "mem_alloc_indirect", "mem_free_indirect", "mem_vmm", "mem_pool", "mem_ipc",
         "mem_managed", "mem_host", "array", "module", "texture", "tensormap", "interop", "graph_build", "graph_exec", "host_fn",
         "memop", "sync", "ctx", "green", "stream", "event", "report_sm", "debug"}
# These are not stopped by a hold's gate but by a lease's: hand-written (hooks_launch.cpp).
LAUNCH = {"launch", "launch_graph"}
# What is put into a stream and keeps launches behind it waiting for something else than the GPU's own work, besides copies.
STREAM_WORK = re.compile(r"cu(LaunchHostFunc|StreamAddCallback|StreamWaitValue|StreamBatchMemOp|WaitExternalSemaphores|"
                         r"MemPrefetch\w*Async|MemDiscardAndPrefetch\w*Async|Graphics(Map|Unmap)Resources)")
NAMES_A_KERNEL = re.compile(r"CUfunction$|const CUDA_KERNEL_NODE_PARAMS(_v\d)? \*$|CUgraphNodeParams \*$")
# Copies whose arguments say whether they stay on the GPU, and which arguments do.
COPY_ENDS = {"cuMemcpy": ("dst", "src", "ByteCount"),
             **{f"cuMemcpy{form}": ("pCopy",) for form in ("2D", "2DAsync", "2DUnaligned", "3D", "3DAsync")}}
COPY_ENDS["cuMemcpyAsync"] = COPY_ENDS["cuMemcpy"]


def stream_of(e):
    """The stream that an entry point works in, as an expression; None where it names none."""
    stream = next((p["name"] for p in e["params"] if p["type"] == "CUstream"), None)
    return f"sluice::interpose::stream_per_thread({stream})" if stream and e["per_thread"] else stream


def gpu_work(e):
    """Whether an entry point keeps the GPU busy as a launch does, as an expression; None = never."""
    if "work" in e["class"]:
        return "true"
    ends = COPY_ENDS.get(e["base"])
    return f"sluice::interpose::copy_stays({', '.join(ends)})" if ends else None


def stream_work(e):
    """The arguments of stream_work() for an entry point: the stream and the bytes; None where it needs no call."""
    stream = stream_of(e)
    if stream is None or gpu_work(e) == "true" or not ("copy" in e["class"] or STREAM_WORK.match(e["symbol"])):
        return None
    names = [p["name"] for p in e["params"]]
    if "ByteCount" in names:
        size = "ByteCount"
    elif e["base"] == "cuMemPrefetchAsync":
        size = "count"
    else:
        size = "sluice::interpose::kWorkUnknown"
    return f"{stream}, {size}"


def fnv1a(text):
    value = 0x811C9DC5
    for byte in text.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def hash_table(names):
    """Open addressing, linear probing; the value is the index + 1, 0 = empty."""
    size = 1
    while size < 3 * len(names):
        size *= 2
    table = [0] * size
    for index, name in enumerate(names):
        slot = fnv1a(name) % size
        while table[slot]:
            slot = (slot + 1) % size
        table[slot] = index + 1
    return table


def numbers(values, per_line=24):
    values = [str(v) for v in values]
    return ",\n    ".join(", ".join(values[i:i + per_line]) for i in range(0, len(values), per_line))


def parameter(p):
    return p["type"] + ("" if p["type"].endswith("*") else " ") + p["name"]


def unhooked_names(path):
    """The entry points that unhooked.tsv names, each for itself; those it names by their classes are in none of TOUCH."""
    lines = pathlib.Path(path).read_text().splitlines()
    return {line.split("\t")[0] for line in lines if not line.startswith(("#", "class:"))}


def touch_hooks(entries, hand_written, unhooked):
    for e in entries:
        classes = set(e["class"])
        if e["symbol"] in hand_written | unhooked or not classes & TOUCH:
            continue
        if classes & LAUNCH:
            sys.exit(f"generate.py: {e['symbol']} launches, and no source hooks it")
        yield e, ("copy" in classes or "memset" in classes) and "stream_op" not in classes


def write_if_changed(path, text):
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--entrypoints", required=True)
    parser.add_argument("--unhooked", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("sources", nargs="+")
    arguments = parser.parse_args()
    entries = json.loads(pathlib.Path(arguments.entrypoints).read_text())
    entries.sort(key=lambda e: (e["base"], e["per_thread"], e["since"]))
    symbols = [e["symbol"] for e in entries]
    known = set(symbols)

    hand_written, assembled = set(), []
    for source in arguments.sources:
        text = pathlib.Path(source).read_text()
        assembled += ASSEMBLED.findall(text)
        for name in HOOK.findall(text):
            if name not in known and name not in NVML:
                sys.exit(f"generate.py: {source} hooks {name}, which is no entry point of the driver or of NVML")
            if name in hand_written:
                sys.exit(f"generate.py: {name} is hooked twice")
            hand_written.add(name)
    for name in NVML:
        if name not in hand_written:
            sys.exit(f"generate.py: no source hooks {name}")

    unhooked = unhooked_names(arguments.unhooked)
    touch = list(touch_hooks(entries, hand_written, unhooked))
    hooked = hand_written | {e["symbol"] for e, _ in touch}
    out = pathlib.Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)

    # ---- the table's type
    members = "".join(f"  decltype(&::{s}) {s};\n" for s in symbols)
    write_if_changed(out / "driver_table.gen.h",
                     "// Generated by interpose/generate.py. One pointer to the real function per driver entry point.\n"
                     "#pragma once\n\n#include \"interpose/cuda_api.h\"\n\nnamespace sluice::interpose {\n\n"
                     f"inline constexpr int kEntryCount = {len(symbols)};\n"
                     f"struct DriverTable {{\n{members}}};\n"
                     "static_assert(sizeof(DriverTable) == kEntryCount * sizeof(void*));\n\n"
                     "}  // namespace sluice::interpose\n")

    write_if_changed(out / "driver_offsets.gen.h",
                     "// Generated by interpose/generate.py. Offsets into DriverTable, for the assembler.\n#pragma once\n\n"
                     + "".join(f"#define SLUICE_REAL_{s} {8 * symbols.index(s)}\n" for s in assembled))

    # ---- names, base names, hashes
    bases = sorted({e["base"] for e in entries})
    first = {b: next(i for i, e in enumerate(entries) if e["base"] == b) for b in bases}
    count = {b: sum(e["base"] == b for e in entries) for b in bases}
    names, offsets = "", []
    for s in symbols + NVML:
        offsets.append(len(names))
        names += s + "\0"
    base_offsets, base_names = [], ""
    for b in bases:
        base_offsets.append(len(base_names))
        base_names += b + "\0"
    per_thread = {"": 0, "ptds": 1, "ptsz": 1}
    quoted = lambda text: "\n    ".join(f'"{part}\\0"' for part in text.split("\0") if part)
    # What drivers have and the toolkit's stub library lacks: passed on, but not unknown.
    passed = sorted({re.sub(r"(_v\d+)?(_pt[ds]s?z?)?$", "", name) for name in unhooked - known})
    passed_offsets, passed_names = [], ""
    for b in passed:
        passed_offsets.append(len(passed_names))
        passed_names += b + "\0"
    symbol_hash, base_hash, passed_hash = hash_table(symbols + NVML), hash_table(bases), hash_table(passed)
    # Distances instead of addresses: nothing for the loader to relocate, in every program that is started.
    hooks = "".join(f'    ".long {s + " - sluice_hook_distances" if s in hooked else "0"}\\n"\n' for s in symbols + NVML)
    write_if_changed(out / "driver_table.gen.inc",
                     "// Generated by interpose/generate.py. Included by table.cpp alone.\n"
                     f"constexpr int kNvmlCount = {len(NVML)};\nconstexpr int kBaseCount = {len(bases)};\n"
                     f"alignas(4096) const char kNames[] =\n    {quoted(names)};\n"
                     f"constexpr uint16_t kNameOffsets[] = {{\n    {numbers(offsets)}}};\n"
                     f"constexpr uint16_t kSince[] = {{\n    {numbers([e['since'] for e in entries])}}};\n"
                     f"constexpr uint8_t kPerThread[] = {{\n    {numbers([per_thread[e['per_thread']] for e in entries])}}};\n"
                     f"alignas(4096) const char kBaseNames[] =\n    {quoted(base_names)};\n"
                     f"constexpr uint16_t kBaseNameOffsets[] = {{\n    {numbers(base_offsets)}}};\n"
                     f"constexpr uint16_t kBaseFirst[] = {{\n    {numbers([first[b] for b in bases])}}};\n"
                     f"constexpr uint8_t kBaseSize[] = {{\n    {numbers([count[b] for b in bases])}}};\n"
                     f"constexpr uint16_t kSymbolHash[] = {{\n    {numbers(symbol_hash)}}};\n"
                     f"constexpr uint16_t kBaseHash[] = {{\n    {numbers(base_hash)}}};\n"
                     f"const char kPassedNames[] =\n    {quoted(passed_names)};\n"
                     f"constexpr uint16_t kPassedNameOffsets[] = {{\n    {numbers(passed_offsets)}}};\n"
                     f"constexpr uint16_t kPassedHash[] = {{\n    {numbers(passed_hash)}}};\n"
                     "asm(\n    \".pushsection .rodata\\n\"\n    \".p2align 2\\n\"\n    \"sluice_hook_distances:\\n\"\n"
                     f"{hooks}    \".popsection\\n\");\n")

    # ---- hooks of one pattern
    bodies = []
    for e, blocking in touch:
        params = ", ".join(parameter(p) for p in e["params"])
        args = ", ".join(p["name"] for p in e["params"])
        scope = "BlockingScope" if blocking else "TouchScope"
        call = f"driver.{e['symbol']}({args})"
        # What names a kernel of a library loads that library into the context.
        named = next((p["name"] for p in e["params"] if NAMES_A_KERNEL.match(p["type"])), None)
        # What asks about a function may ask about a kernel, whose code is loaded with that.
        function = next((p["name"] for p in e["params"] if p["type"] == "CUfunction" and "legacy" not in e["class"]), None)
        if function is not None:
            call = f"asked.answered({call})"
        work, stream = gpu_work(e), stream_of(e)
        if work is not None:
            # Work passes the gate first: a thread that waits there touches nothing.
            legacy = "CU_STREAM_PER_THREAD" if e["per_thread"] else "nullptr"
            between = f"    if (!is_work) stream_work(touch, {stream_work(e)});\n" if stream_work(e) else ""
            bodies.append(f"SLUICE_HOOK CUresult {e['symbol']}({params}) {{\n  const bool is_work = {work};\n"
                          f"  return work_gated(is_work, {'false' if stream else 'true'}, {stream or legacy}, [&] {{\n    const {scope} touch;\n"
                          "    if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;\n"
                          f"{between}    return {call};\n  }});\n}}\n")
            continue
        bodies.append(f"SLUICE_HOOK CUresult {e['symbol']}({params}) {{\n  const {scope} touch;\n"
                      "  if (SLUICE_UNLIKELY(touch.unrecorded())) return CUDA_ERROR_NOT_PERMITTED;\n"
                      + (f"  stream_work(touch, {stream_work(e)});\n" if stream_work(e) else "")
                      + (f"  const CUresult loaded = kernel_load({named});\n  if (loaded != CUDA_SUCCESS) return loaded;\n"
                         if named is not None else "")
                      + (f"  KernelAsked asked({function});\n" if function is not None else "")
                      + f"  return {call};\n}}\n")
    write_if_changed(out / "hooks_touch.gen.cpp",
                     "// Generated by interpose/generate.py: entry points that only have to wait for the end of a hold.\n"
                     "#include \"interpose/gate.h\"\n#include \"interpose/late.h\"\n#include \"interpose/memory/libraries.h\"\n#include \"interpose/touch.h\"\n#include \"interpose/work.h\"\n\n"
                     "using sluice::interpose::BlockingScope;\nusing sluice::interpose::KernelAsked;\n"
                     "using sluice::interpose::TouchScope;\nusing sluice::interpose::driver;\n"
                     "using sluice::interpose::kernel_load;\nusing sluice::interpose::work_gated;\n\n" + "\n".join(bodies))

    # ---- exports
    # Hooks have no version, so that they stand for functions of any: a program that is linked against a driver whose names
    # have versions would pass by hooks of another one. With versions in the script there can be no `local: *` that spares
    # them; hidden visibility is what keeps the rest in, and the golden list of the tests sees what slips.
    exported = sorted(hooked)
    write_if_changed(out / "exports.map",
                     "# Generated by interpose/generate.py: the look-up functions have glibc's versions, the hooks none.\n"
                     "GLIBC_2.2.5 { global: dlsym; dlvsym; local: _*; sluice_*; dlsym_*; dlvsym_*; };\n"
                     "GLIBC_2.34 { global: dlsym; dlvsym; } GLIBC_2.2.5;\n")
    write_if_changed(out / "exports.txt", "".join(f"{n}\n" for n in exported))


if __name__ == "__main__":
    main()
