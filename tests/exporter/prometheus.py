"""A Prometheus of one test's own: on loopback, with its data in a folder that goes away with the test."""

import json
import pathlib
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request


class Prometheus:
    def __init__(self, root, folder, targets):
        """Runs the shipped configuration, rules and alerts, with other targets and once a second instead of every 15 s."""
        self.folder = pathlib.Path(folder)
        self.folder.mkdir()
        shipped = pathlib.Path(root) / "config/prometheus"
        for name in ("rules.yml", "alerts.yml"):
            text = (shipped / name).read_text()
            assert "interval: 1m\n" in text, name
            (self.folder / name).write_text(text.replace("interval: 1m\n", "interval: 1s\n"))
        text = (shipped / "prometheus.yml").read_text()
        for was, now in (("scrape_interval: 15s", "scrape_interval: 1s\n  evaluation_interval: 1s"), ("scrape_timeout: 5s", "scrape_timeout: 1s"),
                         ('"127.0.0.1:9843"', ", ".join(f'"{target}"' for target in targets))):
            assert was in text, f"prometheus.yml has no {was}"
            text = text.replace(was, now)
        (self.folder / "prometheus.yml").write_text(text)
        command = ["prometheus", f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/data",
                   "--web.listen-address=127.0.0.1:0", "--storage.tsdb.retention.time=1h"]
        self.log = open(self.folder / "log", "w+")
        self.process = subprocess.Popen(command, stderr=self.log, stdout=subprocess.DEVNULL, cwd=self.folder)
        self.url = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()

    @staticmethod
    def installed():
        return shutil.which("prometheus") is not None

    def said(self):
        return (self.folder / "log").read_text()

    def ready(self):
        if self.process.poll() is not None:
            raise AssertionError(f"prometheus ended:\n{self.said()}")
        if self.url is None:
            found = re.search(r'msg="Listening on" address=(127\.0\.0\.1:\d+)', self.said())
            if not found:
                return False
            self.url = f"http://{found[1]}"
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return answer.status == 200
        except urllib.error.URLError:
            return False

    def ask(self, what, **parameters):
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=300) as answer:
                body = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        return body["data"]

    def query(self, expression):
        """[(labels, value)] of now."""
        return [(row["metric"], float(row["value"][1])) for row in self.ask("query", query=expression)["result"]]

    def value(self, expression):
        rows = self.query(expression)
        return rows[0][1] if len(rows) == 1 else None
