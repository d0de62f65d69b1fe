"""A real Prometheus, as we ship its configuration, scrapes a real exporter over a real broker with a tenant at work.

Usage: prometheus_test.py BUILD ROOT

Beside it, it scrapes a machine on which everything happens at once: the golden scrape, which the exporter's tests make of a crafted
snapshot, with its counters growing. Then every expression of every panel of the dashboards has to have data.
"""

import http.server
import json
import pathlib
import re
import sys
import threading
import time

sys.dont_write_bytecode = True  # the source tree stays as it is
HERE = pathlib.Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent / "programs"), str(HERE.parent / "config")]
from expressions import families, mistakes, recorded  # noqa: E402
from machine import Machine, wait_until  # noqa: E402
from prometheus import Prometheus  # noqa: E402

SKIPPED = 77
# What the machine with software GPUs has to serve beside its own golden twin: nobody's training, no queue, perhaps no BPF.
OF_THE_REAL_ONE = {"Busy", "Taken and used", "Memory", "Turns", "Beside Sluice", "Device errors", "GPU time by user", "GPU time by tenant",
                   "Share: had and promised", "Quota in use", "Launches", "Who is there", "Waiting, by reason", "Time of a scrape", "Admitted"}


def busy_machine(root):
    """Serves the golden scrape; counters, which grow by a hundredth of themselves a second, and what counts beside them."""
    golden = (root / "tests/exporter/golden.metrics").read_text().splitlines()
    counting = {name for line in golden if (name := re.match(r"# TYPE (\S+) (?:counter|histogram)", line))}
    counting = {name[1] for name in counting}
    start = time.monotonic()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            grown = 1 + (time.monotonic() - start) / 100
            lines = []
            for line in golden:
                series, _, value = line.rpartition(" ")
                name = re.sub(r"_(bucket|sum|count)$", "", series.split("{")[0])
                if not line.startswith("#") and (name in counting or series.split("{")[0] in counting):
                    line = f"{series} {float(value) * grown!r}"
                lines.append(line)
            body = ("\n".join(lines) + "\n").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def panels(root):
    """(dashboard, title, expression, legend) of every query of every panel."""
    for name in ("operators", "training"):
        board = json.loads((root / f"config/grafana/sluice-{name}.json").read_text())
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                yield name, panel["title"], target["expr"], target["legendFormat"]


def check_tenant(prometheus, machine, exporter_at):
    """What Prometheus has of the tenant is what the broker says of it."""
    [tenant] = machine.status()["tenants"]
    labels = f'{{instance="{exporter_at}", tenant="{tenant["tenant"]}"}}'
    wait_until("the tenant is scraped", lambda: prometheus.query(f"sluice_tenant_memory_limit_bytes{labels}"))
    [(series, limit)] = prometheus.query(f"sluice_tenant_memory_limit_bytes{labels}")
    gpu = machine.status()["gpus"][0]
    assert limit == 256 << 20, limit
    assert series["job"] == "sluice" and series["gpu"] == gpu["uuid"] and series["class"] == tenant["class"], (series, tenant)
    assert prometheus.value(f"sluice_tenant_guaranteed_share_ratio{labels}") == 0.25
    # Counters of work grow, and Prometheus's rate agrees with what Sluice itself says of the last ten seconds.
    wait_until("its GPU time is a rate", lambda: (prometheus.value(f"rate(sluice_tenant_gpu_seconds_total{labels}[10s])") or 0) > 0)
    wait_until("its share is recorded", lambda: prometheus.query(f'user:sluice_tenant_gpu_seconds:rate5m{{instance="{exporter_at}"}}'))
    return labels


def check_rules(prometheus):
    groups = prometheus.ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 15, rules
    for rule in rules:
        assert rule["health"] == "ok", rule
    return len(rules)


def check_panels(prometheus, root, exporter_at, golden_at):
    known, records = families(root), recorded(root)
    wrong, count, alone = [], 0, set()
    for board, title, expression, legend in panels(root):
        count += 1
        wrong += [f"{board}, {title}: {line}" for line in mistakes(expression, known, records)]
        text = expression.replace("$__rate_interval", "10s").replace("$gpu", ".*").replace("$user", ".*")
        rows = prometheus.query(text.replace("$instance", f"({exporter_at}|{golden_at})".replace(".", "[.]")))
        if not [value for _, value in rows if value == value]:
            wrong.append(f"{board}, {title}: no data for {expression}")
            continue
        for label in re.findall(r"{{(\w+)}}", legend):
            if not all(label in series for series, _ in rows):
                wrong.append(f"{board}, {title}: the legend names {label}, which {expression} does not have")
        if not prometheus.query(text.replace("$instance", exporter_at.replace(".", "[.]"))):
            alone.add(title)
    wrong += [f"{title}: no data of the real exporter" for title in sorted(OF_THE_REAL_ONE & alone)]
    if wrong:
        sys.exit("\n".join(wrong))
    return count


def main():
    build, root = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    if not Prometheus.installed():
        print("skipped: prometheus is not installed (Debian package prometheus)")
        return SKIPPED
    golden = busy_machine(root)
    with Machine(build, rate=16_000_000) as machine:
        machine.start_broker()
        exporter = machine.launch([machine.build / "bin/sluice-exporter", "--listen", "127.0.0.1:0", "--socket", machine.socket])
        line = ""
        while "serving " not in line:
            line = exporter.stderr.readline()
            assert line, "the exporter ended"
        exporter_at = re.search(r"serving http://(\S+)/metrics ", line)[1]
        golden_at = f"127.0.0.1:{golden.server_address[1]}"
        job = machine.start(machine.slice(machine.program("launch_loop")))
        with Prometheus(root, machine.directory / "prometheus", [exporter_at, golden_at]) as prometheus:
            wait_until("prometheus is ready", prometheus.ready, 60)
            wait_until("both are scraped", lambda: prometheus.value("sum(up)") == 2, 60)
            for target in prometheus.ask("targets")["activeTargets"]:
                assert target["health"] == "up" and not target["lastError"], target
            labels = check_tenant(prometheus, machine, exporter_at)
            # Not a number until somebody came in between two scrapes.
            p95 = f'instance:sluice_admission_wait_seconds:p95_1h{{instance="{golden_at}"}} > 0'
            wait_until("rules were evaluated", lambda: prometheus.query(p95))
            rules = check_rules(prometheus)
            wait_until("the last ten seconds are filled", lambda: prometheus.query(f"sluice_tenant_achieved_share_ratio{labels}"))
            expressions = check_panels(prometheus, root, exporter_at, golden_at)
            # An alert that has been unit-tested fires for real: the golden GPU is lost.
            wait_until("the lost GPU is alerted on", lambda: prometheus.query(f'ALERTS{{alertname="SluiceGpuLost", instance="{golden_at}"}}'))
            assert not prometheus.query(f'ALERTS{{alertname="SluiceGpuLost", instance="{exporter_at}"}}')

            # Two that want the GPU wait for each other: the shim's account of it comes all the way.
            other = machine.start(machine.slice(machine.program("launch_loop")))
            waits = f'sluice_tenant_turn_wait_seconds_count{{instance="{exporter_at}"}} > 0'
            wait_until("both have waited for their turns", lambda: len(prometheus.query(waits)) == 2)
            beyond = f'sluice_tenant_turn_wait_seconds_bucket{{instance="{exporter_at}", le="10"}} == 0'
            assert not prometheus.query(beyond), "a turn is a matter of milliseconds"
            machine.stop(other)

            machine.stop(job)
            wait_until("the tenant that is gone has no series", lambda: not prometheus.query(f"sluice_tenant_gpu_seconds_total{labels}"))
            machine.kill_broker()
            wait_until("the broker is missed", lambda: prometheus.value(f'sluice_up{{instance="{exporter_at}"}}') == 0)
            assert prometheus.value(f'up{{instance="{exporter_at}"}}') == 1
    golden.shutdown()
    print(f"{rules} rules evaluated, {expressions} expressions have data")
    return 0


if __name__ == "__main__":
    sys.exit(main())
