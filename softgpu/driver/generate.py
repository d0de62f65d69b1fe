"""Writes what of the driver library follows from the toolkit's headers alone.

Usage: generate.py ENTRYPOINTS.json GRAPHICS.tsv OWN.h STUBS.cpp ENTRIES.cpp TABLE.cpp EXPORTS.map

GRAPHICS.tsv names the functions that the stub library lacks.
OWN.h       gives what this folder defines under the name of an entry point the symbol own_NAME, for ENTRIES.cpp to call.
STUBS.cpp   a weak definition of every entry point: a _ptsz/_ptds form calls its plain form with the calling thread's own
            default stream, an older name with the same arguments calls the newer one, everything else is refused as not
            supported. What is written by hand in this folder is strong and takes the place of these.
ENTRIES.cpp the exported entry points: each goes through the gate (gate.h) and calls its own_NAME. The checkpoint calls do
            not: they are about other processes, or about opening this one's gate.
TABLE.cpp   the table of cuGetProcAddress: base name, version, per-thread -> function.
EXPORTS.map the version script: these names and the softgpu extensions, nothing else.
"""

import json
import re
import sys

HEAD = '// Generated from the toolkit\'s headers by softgpu/driver/generate.py; see there.\n'
# Older names whose newer form differs only in what the header promises, not in its arguments.
SAME = ["cuCtxAttach", "cuCtxDestroy", "cuCtxPopCurrent", "cuCtxPushCurrent", "cuStreamDestroy", "cuEventDestroy",
        "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxSetFlags", "cuMemHostRegister",
        "cuStreamWriteValue32", "cuStreamWriteValue64", "cuStreamWaitValue32", "cuStreamWaitValue64"]


def graphics(path):
    """Entries of the functions that are in no header which compiles without the graphics libraries' own."""
    entries = []
    with open(path, encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file if not line.startswith("#")]
    for symbol, since, *arguments in rows:
        params = [p.rsplit(" ", 1) for p in arguments[0].split(", ")] if arguments else []
        per_thread = re.search(r"_(ptsz|ptds)$", symbol)
        entries.append({"symbol": symbol, "base": re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", symbol), "since": int(since),
                        "per_thread": per_thread[1] if per_thread else "", "returns": "CUresult",
                        "params": [{"type": kind, "name": name} for kind, name in params], "graphics": True})
    return entries


def declaration(entry):
    params = ", ".join(parameter(p) for p in entry["params"])
    return f'{entry["returns"]} {entry["symbol"]}({params})'


def parameter(p):
    """`type name`, with the name inside for function pointers and arrays."""
    if "(*" in p["type"] or "[" in p["type"]:
        return p["type"] + (" " + p["name"] if "(*" not in p["type"] else "")
    return f'{p["type"]} {p["name"]}'


def call(symbol, entry):
    return f'{symbol}({", ".join(p["name"] for p in entry["params"])})'


def plain_of(entry):
    return re.sub(r"_(ptsz|ptds)$", "", entry["symbol"])


def body(entry, symbols):
    name = entry["symbol"]
    if entry["per_thread"] and plain_of(entry) in symbols:
        return f'  const PerThreadDefault own;\n  return {call(plain_of(entry), entry)};\n'
    newer = name + "_v2"
    if name in SAME and newer in symbols:
        return f'  return {call(newer, entry)};\n'
    unused = "".join(f'  (void){p["name"]};\n' for p in entry["params"] if p["name"])
    return f'{unused}  return not_implemented("{name}");\n'


def stubs(entries):
    symbols = {e["symbol"] for e in entries}
    parts = [HEAD, '#include "softgpu/driver/state.h"\n\nusing namespace softgpu::driver;\n']
    for entry in entries:
        parts.append(f'\n__attribute__((weak)) {declaration(entry)} {{\n{body(entry, symbols)}}}\n')
    return "".join(parts)


def own(entries):
    lines = [f'{declaration(e)} __asm__("own_{e["symbol"]}");\n' for e in entries]
    return HEAD + '#pragma once\n\nextern "C" {\n' + "".join(lines) + "}\n"


def entry_points(entries):
    parts = [HEAD, '#define SOFTGPU_EXPORTED_NAMES\n#include "softgpu/driver/cuda_api.h"\n#include "softgpu/driver/gate.h"\n',
             declared_graphics(entries)]
    for entry in entries:
        symbol = entry["symbol"]
        gate = "" if symbol.startswith("cuCheckpoint") else "  const softgpu::driver::Call inside;\n"
        parts.append(f'\nextern "C" {declaration(dict(entry, symbol="own_" + symbol))};\n'
                     f'{declaration(entry)} {{\n{gate}  return {call("own_" + symbol, entry)};\n}}\n')
    return "".join(parts)


def declared_graphics(entries):
    declared = "".join(f"{declaration(e)};\n" for e in entries if "graphics" in e)
    return f'\n#pragma GCC visibility push(default)\nextern "C" {{\n{declared}}}\n#pragma GCC visibility pop\n'


def table(entries):
    # Byte order: the lookup is a binary search by strcmp order.
    rows = sorted(entries, key=lambda e: (e["base"].encode(), bool(e["per_thread"]), e["since"]))
    parts = [HEAD, '#define SOFTGPU_EXPORTED_NAMES\n#include "softgpu/driver/cuda_api.h"\n',
             '#include "softgpu/driver/lookup.h"\n\n', declared_graphics(entries),
             "namespace softgpu::driver {\n\nconst Entry kEntries[] = {\n"]
    for e in rows:
        own = "true" if e["per_thread"] else "false"
        parts.append(f'    {{"{e["base"]}", {e["since"]}, {own}, "{e["symbol"]}", '
                     f'reinterpret_cast<void*>(&{e["symbol"]})}},\n')
    parts.append(f"}};\nconst unsigned kEntryCount = {len(rows)};\n\n}}  // namespace softgpu::driver\n")
    return "".join(parts)


def exports(entries):
    names = "".join(f'    {e["symbol"]};\n' for e in entries)
    return "{\n  global:\n" + names + "    softgpu*;\n  local: *;\n};\n"


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    if len(sys.argv) != 8:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        entries = json.load(file) + graphics(sys.argv[2])
    for path, text in zip(sys.argv[3:], (own(entries), stubs(entries), entry_points(entries), table(entries), exports(entries))):
        write(path, text)


if __name__ == "__main__":
    main()
