#!/usr/bin/env python3
"""Writes the list of driver entry points (JSON of cmake/entrypoints.py) as rows of C++ for probe_driver."""

import json
import sys


def main():
    records = json.load(open(sys.argv[1], encoding="utf-8"))
    records = records if isinstance(records, list) else records["entrypoints"]
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        for record in records:
            flags = 2 if record["per_thread"] else 1  # 1: legacy default stream, 2: per-thread default stream
            out.write(f'{{"{record["symbol"]}", "{record["base"]}", {record["since"]}, {flags}}},\n')


if __name__ == "__main__":
    main()
