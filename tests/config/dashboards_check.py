"""The Grafana dashboards: written by their script, placed without overlap, and asking only for what exists.

Usage: dashboards_check.py ROOT. That every expression gets data is tests/exporter/prometheus_test.py's business.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree stays as it is
from expressions import families, mistakes, recorded  # noqa: E402


def wrong_of(board, known, records):
    cells, ids = set(), set()
    variables = {variable["name"] for variable in board["templating"]["list"]}
    for panel in board["panels"]:
        where, place = panel["title"], panel["gridPos"]
        taken = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        if taken & cells or place["x"] + place["w"] > 24:
            yield f"{where}: lies on another panel or beyond the page"
        cells |= taken
        if panel["id"] in ids:
            yield f"{where}: the number of another panel"
        ids.add(panel["id"])
        if panel["type"] != "row" and not panel["targets"]:
            yield f"{where}: asks nothing"
        for target in panel.get("targets", []):
            yield from (f"{where}: {line}" for line in mistakes(target["expr"], known, records))
            used = {word for word in ("instance", "gpu", "user") if f"${word}" in target["expr"]}
            if not used <= variables:
                yield f"{where}: uses a variable that the page does not have"
    for variable in board["templating"]["list"]:
        yield from (f"${variable['name']}: {line}" for line in mistakes(variable["query"], known, records))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1])
    folder = root / "config/grafana"
    known, records, wrong, count = families(root), recorded(root), [], 0
    with tempfile.TemporaryDirectory() as name:
        subprocess.run([sys.executable, folder / "dashboards.py", name], check=True)
        for written in sorted(pathlib.Path(name).iterdir()):
            if (folder / written.name).read_text() != written.read_text():
                wrong.append(f"{written.name} is not what dashboards.py writes; run it again")
    for file in sorted(folder.glob("*.json")):
        board = json.loads(file.read_text())
        count += len(board["panels"])
        wrong += [f"{file.name}: {line}" for line in wrong_of(board, known, records)]
    if wrong or count < 30:
        sys.exit("\n".join(wrong) or f"only {count} panels")
    print(f"{count} panels")


if __name__ == "__main__":
    main()
