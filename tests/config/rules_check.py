"""What promtool says of the alerts, and whether it would notice if they were wrong.

Usage: rules_check.py ROOT names|alerts|mutations

names: what rules and alerts speak of exists, each alert has its section in the runbook, and its tests.
alerts: promtool runs the tests of tests/config/alerts_test.yml.
mutations: every alert is broken on purpose, in each of several ways, and promtool has to notice.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree stays as it is
from expressions import families, mistakes, recorded  # noqa: E402

SKIPPED = 77


def blocks(text):
    """The text of each alert, by name."""
    parts = re.split(r"(?m)^ *- alert: (\w+)$", text)
    return dict(zip(parts[1::2], parts[2::2]))


def expression(block):
    """Whatever follows `expr:`, folded or not."""
    return re.search(r"expr: (?:>-\n)?(.*?)\n +(?:for|labels):", block, re.S)[1]


def anchors(markdown):
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in re.findall(r"(?m)^#+ (.*)$", markdown)}


def check_names(root):
    rules = (root / "config/prometheus/rules.yml").read_text()
    alerts = blocks((root / "config/prometheus/alerts.yml").read_text())
    tests = (root / "tests/config/alerts_test.yml").read_text()
    runbook = (root / "docs/runbook.md").read_text()
    known, records = families(root), recorded(root)
    wrong = [f"rules.yml: {line}" for text in re.findall(r"(?m)^ *expr: (.*)$", rules) for line in mistakes(text, known, records)]
    sections = re.split(r"(?m)^## (\w+)$", runbook)
    sections = dict(zip(sections[1::2], sections[2::2]))
    _, groups = test_groups(tests)
    for name, block in alerts.items():
        wrong += [f"{name}: {line}" for line in mistakes(expression(block), known, records)]
        if "severity: critical" not in block and "severity: warning" not in block:
            wrong.append(f"{name}: no severity")
        link = re.search(r"runbook: docs/runbook\.md#(\S+)", block)
        if not link or link[1] != name.lower() or link[1] not in anchors(runbook):
            wrong.append(f"{name}: docs/runbook.md has no section for it that `runbook` leads to")
        elif len(sections[name].split()) < 30:
            wrong.append(f"{name}: its section in docs/runbook.md says next to nothing")
        # Silent, then firing, then silent again, in the order of time.
        moments = re.findall(r"alertname: (\w+),?\s+eval_time: (\d+)m\b(\s+exp_alerts)?", groups.get(name, ""))
        states = [bool(fires) for alert, _, fires in sorted(moments, key=lambda m: int(m[1])) if alert == name]
        if not states or states[0] or states[-1] or True not in states:
            wrong.append(f"{name}: its tests do not see it silent, firing and silent again")
    wrong += [f"docs/runbook.md: there is no alert {name}" for name in sections if name.startswith("Sluice") and name not in alerts]
    wrong += [f"alerts_test.yml: there is no alert {name}" for name in groups if name not in alerts]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(alerts)} alerts")


def test_groups(text):
    """What is before the first group of tests, and the text of each group by name."""
    head, *rest = re.split(r"(?m)^  - name: (\w+)$", text)
    return head, dict(zip(rest[::2], rest[1::2]))


def promtool(folder):
    return subprocess.run(["promtool", "test", "rules", "alerts_test.yml"], cwd=folder, capture_output=True, text=True, timeout=300)


def mutants(block):
    """Ways of getting an alert wrong: (what, changed text)."""
    expr = expression(block)
    compare = list(re.finditer(r"(==|>|<) (-?[\d.]+)", expr))
    for match in compare:
        def swapped(text, match=match):
            return block.replace(expr, expr[:match.start()] + text + expr[match.end():])
        sign, limit = match.groups()
        yield f"never: {match[0]}", swapped(f"== {limit} + 123456789")
        yield f"at the limit: {match[0]}", swapped({"==": f"!= {limit} + 123456789", ">": f">= {limit}", "<": f"<= {limit}"}[sign])
    for match in re.finditer(r"\n +(and|or|unless) ", expr):
        yield f"without what follows {match[1]}", block.replace(expr, expr[:match.start()])
    for match in re.finditer(r" (and|or|unless) (?!on|ignoring)", expr.replace("\n", " ")):
        yield f"without what follows {match[1]} in the line", block.replace(expr, expr[:match.start()])
    for match in re.finditer(r'\{[^}]*\}', expr):
        yield f"without {match[0]}", block.replace(expr, expr[:match.start()] + expr[match.end():])
    wait = re.search(r"for: (\d+)m\n", block)
    if wait:
        yield "at once", block.replace(wait[0], "for: 0m\n")
        yield "a minute later", block.replace(wait[0], f"for: {int(wait[1]) + 1}m\n")


# Changes that mean the same, each with its reason.
EQUAL = {("SluiceReloadFailed", 'without {result="failure"}'): "a success never comes after the last success"}


def check_mutations(root, folder):
    whole = (root / "config/prometheus/alerts.yml").read_text()
    tests = (folder / "alerts_test.yml").read_text()
    head, groups = test_groups(tests)
    survivors, count = [], 0
    for name, block in blocks(whole).items():
        (folder / "alerts_test.yml").write_text(f"{head}  - name: {name}\n{groups[name]}")
        for what, changed in mutants(block):
            assert changed != block, (name, what)
            (folder / "alerts.yml").write_text(whole.replace(block, changed))
            count += 1
            if (promtool(folder).returncode == 0) != ((name, what) in EQUAL):
                survivors.append(f"{name}, {what}: the tests did not notice, or do now")
    if survivors:
        sys.exit("\n".join(survivors))
    print(f"{count} broken alerts noticed")


def main():
    if len(sys.argv) != 3 or sys.argv[2] not in ("names", "alerts", "mutations"):
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1])
    if sys.argv[2] == "names":
        return check_names(root)
    if shutil.which("promtool") is None:
        print("skipped: promtool is not installed (Debian package prometheus)")
        return SKIPPED
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for file in ("config/prometheus/rules.yml", "config/prometheus/alerts.yml", "tests/config/alerts_test.yml"):
            shutil.copy(root / file, folder)
        answer = promtool(folder)
        if answer.returncode != 0:
            sys.exit(answer.stdout + answer.stderr)
        if sys.argv[2] == "mutations":
            return check_mutations(root, folder)
        print(answer.stdout.strip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
