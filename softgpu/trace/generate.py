"""Writes a recording wrapper for every entry point of the driver.

Usage: generate.py ENTRYPOINTS.json ENTRIES.cpp

Each wrapper calls the real function, writes one line, and returns the result. The table pairs it with the place where the real
function's address goes. The look-up functions themselves are written by hand.
"""

import json
import sys

HEAD = """// Generated from the toolkit's headers by softgpu/trace/generate.py; see there.
#include <cuda.h>
#include <cudaProfiler.h>

#include "softgpu/trace/trace.h"

namespace softgpu::trace {
namespace {
"""
BY_HAND = ("cuGetProcAddress", "cuGetProcAddress_v2")


def parameter(p):
    if "(*" in p["type"] or "[" in p["type"]:
        return p["type"] + (" " + p["name"] if "(*" not in p["type"] else "")
    return f'{p["type"]} {p["name"]}'


def wrapper(entry):
    name = entry["symbol"]
    params = ", ".join(parameter(p) for p in entry["params"])
    arguments = ", ".join(p["name"] for p in entry["params"])
    return (f'\nCUresult (*real_{name})({params});\n'
            f'CUresult wrap_{name}({params}) {{\n'
            f'  const CUresult answer = real_{name}({arguments});\n'
            f'  call_write("{name}", answer);\n  return answer;\n}}\n')


def row(entry):
    name = entry["symbol"]
    own = "true" if entry["per_thread"] else "false"
    head = f'    {{"{name}", "{entry["base"]}", {entry["since"]}, {own}, '
    if name in BY_HAND:
        return head + f'lookup_real("{name}"), lookup_wrapper("{name}")}},\n'
    return head + f'reinterpret_cast<void**>(&real_{name}), reinterpret_cast<void*>(&wrap_{name})}},\n'


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        entries = json.load(file)
    strange = [e["symbol"] for e in entries if e["returns"] != "CUresult"]
    if strange:
        sys.exit("generate.py: these return something else than CUresult: " + " ".join(strange))
    text = HEAD + "".join(wrapper(e) for e in entries if e["symbol"] not in BY_HAND) + "\n}  // namespace\n\n"
    text += "const Entry kEntries[] = {\n" + "".join(row(e) for e in entries) + "};\n"
    text += f"const unsigned kEntryCount = {len(entries)};\n\n}}  // namespace softgpu::trace\n"
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
