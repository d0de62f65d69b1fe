#!/usr/bin/env python3
"""Reads what probe_driver found and says in words what of it contradicts what Sluice is built on.

  probe_report.py DRIVER.json REFERENCE_LIST_OF_ENTRY_POINTS

Contradictions: a look-up by cuGetProcAddress that is another function than dlsym's; a CUDA runtime that minds a changed answer
that Sluice changes (total memory), or does not mind a changed UUID, which Sluice therefore could change. Captures are compared
with the list; where they differ the list is wrong. Exit status: 1 for a contradiction of the first kind.
"""

import json
import re
import sys

# Whether NVIDIA's runtime is expected to come up with the answer changed.
ACCEPTED = {"none": True, "total_memory": True, "sm_count": True, "pci_string": True, "name": True, "uuid": False}
MODES = ("global", "thread_local", "relaxed")


def capture_class(answer):
    """In the words of the reference list; None when the call was never good enough to tell. A call that fails without a capture,
    too, is decided where a capture did not survive it."""
    if "ended" in answer:
        return None
    ways = {(mode, thread): answer[mode][thread] for mode in MODES for thread in ("same_thread", "other_thread")}
    borne = {way: one["survives"] and one["result"] == answer["outside"] for way, one in ways.items()}
    if all(borne.values()):
        return "allowed" if answer["outside"] == 0 else None
    if not any(borne.values()):
        return "refused" if all(one["survives"] for one in ways.values()) else "illegal"
    unsafe = [("global", "same_thread"), ("global", "other_thread"), ("thread_local", "same_thread")]
    return "unsafe" if all(borne[way] != (way in unsafe) for way in ways) else "mixed"


def captures_tell(captures, reference):
    listed = dict(re.findall(r"^(\w+)\t.*\| capture=([a-z]*)", open(reference).read(), re.M))
    for symbol, answer in captures.items():
        found, thought = capture_class(answer), listed.get(symbol) or "unknown"
        if found is None:
            print(f"capture: {symbol}: not decided ({answer.get('ended') or 'error %d without a capture' % answer['outside']})")
        elif found != thought:
            print(f"capture: {symbol}: {found}, the list says {thought}")


def integrity_tell(integrity):
    contradictions = 0
    for link, answers in integrity.items():
        if answers["bare"].get("error") != 0:
            print(f"integrity, {link} runtime: it does not come up bare ({answers['bare']}), so nothing is decided")
            continue
        for change, accepted in ACCEPTED.items():
            answer = answers[change]
            comes_up = answer.get("error") == 0
            if comes_up != accepted:
                contradictions += 1
                print(f"integrity, {link} runtime: {change} changed, expected to be {'borne' if accepted else 'refused'}: {answer}")
    return contradictions


def main():
    answer = json.load(open(sys.argv[1]))
    contradictions = len(answer["lookup"]["different"])
    for symbol in answer["lookup"]["different"]:
        print(f"lookup: {symbol}: cuGetProcAddress gives another function than dlsym")
    for names in answer["lookup"]["aliases"]:
        print(f"lookup: one function: {names}")
    captures_tell(answer["capture"], sys.argv[2])
    contradictions += integrity_tell(answer["integrity"])
    for link, runs in answer["overhead"].items():
        if runs["bare"].get("error") == 0 and runs["wrapper"].get("error") == 0:
            bare, wrapped = runs["bare"], runs["wrapper"]
            print(f"launch, {link} runtime: {bare['launch_ns']:.0f} ns, a wrapper adds {wrapped['launch_ns'] - bare['launch_ns']:.0f}, "
                  f"a pair of events {bare['with_event_pair_ns'] - bare['launch_ns']:.0f}")
    print(f"{contradictions} contradictions")
    return 1 if contradictions else 0


if __name__ == "__main__":
    sys.exit(main())
