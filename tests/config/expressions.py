"""What rules, alerts and dashboards speak of, checked against the table of metrics (docs/metrics.md, which is printed from it)."""

import re

WORD = re.compile(r"(?<![\w:])sluice_[a-z0-9_]+(?![\w:])")
RECORDED = re.compile(r"(?<![\w:])[a-z]+:sluice_[a-z0-9_]+:[a-z0-9_]+")
SELECTOR = re.compile(r"(?<![\w:])(sluice_[a-z0-9_]+)\s*\{([^}]*)\}")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
ADDED_BY_PROMETHEUS = {"job", "instance"}


def families(root):
    """Labels by family, from the rows of docs/metrics.md; a histogram's are those of its three series."""
    out = {}
    rows = re.findall(r"^\| `(sluice_\w+)` \| (\w+) \| ([^|]*) \|", (root / "docs/metrics.md").read_text(), re.M)
    for name, kind, labels in rows:
        labels = set(filter(None, (label.strip() for label in labels.split(",")))) | ADDED_BY_PROMETHEUS
        for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            out[name + suffix] = labels | ({"le"} if suffix == "_bucket" else set())
    assert len(rows) > 50, f"docs/metrics.md has only {len(rows)} rows that look like metrics"
    return out


def recorded(root):
    return set(re.findall(r"^ *- record: (\S+)$", (root / "config/prometheus/rules.yml").read_text(), re.M))


def mistakes(expression, known, records):
    """One line per name or label in `expression` that nobody serves."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    for name in WORD.findall(text):
        if name not in known:
            yield f"no metric is called {name}"
    for name in RECORDED.findall(text):
        if name not in records:
            yield f"no rule records {name}"
    for name, matchers in SELECTOR.findall(text):
        for label in MATCHER.findall(matchers):
            if label not in known.get(name, {label}):
                yield f"{name} has no label {label}"
