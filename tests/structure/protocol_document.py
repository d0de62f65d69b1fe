#!/usr/bin/env python3
"""docs/protocol.md names every message and refusal with its number, and the protocol's version.

    protocol_document.py SOURCE_DIRECTORY
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
document = (root / "docs/protocol.md").read_text()
messages = (root / "broker/protocol/messages.h").read_text()
words = (root / "broker/protocol/words.h").read_text()
wrong = []
found = 0
for enumeration in ("MessageType", "RefusalCode"):
    body = re.search(rf"enum class {enumeration} : [^{{]*{{(.*?)}};", messages, re.S)[1]
    for name, number in re.findall(r"\bk(\w+) = (\d+)", re.sub(r"//[^\n]*", "", body)):
        found += 1
        if not re.search(rf"^\| {number} \| `{name}` \|", document, re.M):
            wrong.append(f"{enumeration} {name} = {number} has no row")
version = re.search(r"kVersion = (\d+);", words)[1]
if f"It is protocol version {version}." not in document:
    wrong.append(f"the version is {version}")
if found < 30:
    wrong.append(f"only {found} messages and refusals were found in messages.h")
for line in wrong:
    print(f"docs/protocol.md: {line}")
sys.exit(1 if wrong else 0)
