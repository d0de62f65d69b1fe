"""The files of a run: settings.json and a table of raw samples for each experiment, NAME.csv. What has been measured completely is
there at once, and a run that was interrupted goes on behind it."""
import csv
import itertools
import json
import os
import pathlib
import tempfile

SETTINGS = "settings.json"
COLUMNS = ["cell", "repeat", "figure", "block", "value"]
COMPLETE = "complete"  # the figure of the last row of a cell in a repeat


class ResultsError(Exception):
    """A sentence for people: what is wrong with which file."""


def file_write(path, text):
    """Replaces the file as a whole."""
    path = pathlib.Path(path)
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
            try:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                os.chmod(file.name, 0o644)
                os.replace(file.name, path)
            except OSError:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise ResultsError(f"cannot write {path}: {error.strerror}") from error


class Results:
    """A directory of results."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)

    def settings_keep(self, settings):
        """Writes the settings of a new run; of one that goes on they must be the same."""
        path = self.directory / SETTINGS
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultsError(f"cannot create {self.directory}: {error.strerror}") from error
        if not path.exists():
            return file_write(path, json.dumps(settings, indent=1) + "\n")
        there = self.settings()
        differ = sorted(key for key in settings if settings[key] != there.get(key) and key not in ("started", "wake_us"))
        if differ:
            raise ResultsError(f"{self.directory} holds a run with other settings ({', '.join(differ)}): go on with the same, or "
                               "choose another --out")
        return None

    def settings(self):
        path = self.directory / SETTINGS
        try:
            return json.loads(path.read_text())
        except OSError as error:
            raise ResultsError(f"{self.directory} is no directory of results: {path.name}: {error.strerror}") from error
        except ValueError as error:
            raise ResultsError(f"{path} is not JSON: {error}") from error

    def path(self, experiment):
        return self.directory / f"{experiment}.csv"

    def experiments(self):
        return sorted(path.stem for path in self.directory.glob("*.csv"))

    def load(self, experiment):
        """Returns what was measured completely: a dict from (cell, repeat) to a dict from a figure to its blocks. Cuts off what
        was not."""
        path = self.path(experiment)
        if not path.exists():
            return {}
        runs, complete, kept = {}, {}, 0
        with open(path, newline="", encoding="utf-8") as file:
            lines = itertools.takewhile(lambda line: line.endswith("\n"), iter(file.readline, ""))
            if next(lines, "").rstrip("\r\n").split(",") != COLUMNS:
                raise ResultsError(f"{path}: the first line is not {','.join(COLUMNS)}")
            kept = file.tell()
            for number, row in enumerate(csv.reader(lines), 2):
                try:
                    cell, repeat, figure, block, value = row
                    key, block, value = (cell, int(repeat)), int(block), float(value)
                except ValueError:
                    break  # the last write was cut off
                if figure == COMPLETE:
                    complete[key] = runs.pop(key, {})
                    kept = file.tell()
                    continue
                blocks = runs.setdefault(key, {}).setdefault(figure, [])
                while len(blocks) <= block:
                    blocks.append([])
                blocks[block].append(value)
        if kept < path.stat().st_size:
            os.truncate(path, kept)
        return complete

    def append(self, experiment, cell, repeat, figures):
        """Adds what one run of a cell measured, so that it is there after a crash or not at all."""
        path = self.path(experiment)
        rows = [[cell, repeat, figure, number, repr(float(sample))]
                for figure, blocks in figures.items() for number, block in enumerate(blocks) for sample in block]
        rows.append([cell, repeat, COMPLETE, 0, 1])
        try:
            with open(path, "a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                if file.tell() == 0:
                    writer.writerow(COLUMNS)
                writer.writerows(rows)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ResultsError(f"cannot write {path}: {error.strerror}; what was measured before is kept") from error


def measured_of(runs):
    """Returns, for each cell, a dict from a figure to the blocks of all repeats."""
    measured = {}
    for (cell, _), figures in sorted(runs.items(), key=lambda item: (item[0][0], item[0][1])):
        for figure, blocks in figures.items():
            measured.setdefault(cell, {}).setdefault(figure, []).extend(blocks)
    return measured
