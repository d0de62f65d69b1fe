#!/usr/bin/env python3
"""Writes the two Grafana dashboards beside it: sluice-operators.json and sluice-training.json.

Usage: dashboards.py [FOLDER]. The tables below are what a dashboard is about; all else is what Grafana wants around it. To change
a dashboard, change them and run this again (a test compares). In expressions $instance, $gpu and $user are the choices at the
top of the page; $__rate_interval is Grafana's own.
"""

import json
import pathlib
import sys

HERE = 'instance=~"$instance"'
GPU = HERE + ', gpu=~"$gpu"'
TENANT = GPU + ', user=~"$user"'
JOB = HERE + ', user=~"$user"'  # of families without GPUs


def panel(title, unit, *queries, kind="timeseries", width=8, text="", top=None, stack=False):
    """A query is (expression, legend); the legend names labels in {{}}. `top`: the end of the axis where it is known."""
    return {"title": title, "unit": unit, "queries": queries, "kind": kind, "width": width, "text": text, "top": top, "stack": stack}


OPERATORS = {
    "Now": [
        panel("Brokers that answer", "none", (f"sum(sluice_up{{{HERE}}})", ""), kind="stat", width=4),
        panel("GPUs", "none", (f"count(sluice_gpu_info{{{GPU}}})", ""), kind="stat", width=4),
        panel("Tenants running", "none", (f'sum(sluice_tenants{{{HERE}, state="running"}})', ""), kind="stat", width=4),
        panel("Waiting for admission", "none", (f"sum(instance:sluice_queue_length:sum{{{HERE}}})", ""), kind="stat", width=4),
        panel("GPUs worth of work", "none", (f"sum(rate(sluice_gpu_busy_seconds_total{{{GPU}}}[$__rate_interval]))", ""), kind="stat", width=4,
              text="2.5: as if two GPUs and a half worked all the time."),
        panel("Alerts", "none", ('count(ALERTS{alertname=~"Sluice.*", alertstate="firing"}) or vector(0)', ""), kind="stat", width=4,
              text="What to do about each: docs/runbook.md"),
    ],
    "GPUs": [
        panel("Busy", "percentunit", (f"gpu:sluice_gpu_busy_seconds:rate5m{{{GPU}}}", "{{gpu}}"), top=1,
              text="Part of the time in which work of tenants ran."),
        panel("Taken and used", "percentunit", (f"sluice_gpu_utilization_ratio{{{GPU}}}", "{{level}} {{gpu}}"), top=1,
              text="allocated far above time: asked for and not used."),
        panel("Memory", "bytes",
              (f"sluice_gpu_memory_capacity_bytes{{{GPU}}}", "capacity {{gpu}}"), (f"sluice_gpu_memory_promised_bytes{{{GPU}}}", "promised {{gpu}}"),
              (f"sluice_gpu_memory_quota_bytes{{{GPU}}}", "quotas {{gpu}}"), (f"sluice_gpu_memory_held_bytes{{{GPU}}}", "held {{gpu}}"),
              text="Quotas above the capacity: oversold."),
        panel("Why GPUs stand idle", "none", (f"sum by (cause) (rate(sluice_tenant_idle_seconds_total{{{TENANT}}}[$__rate_interval]))", "{{cause}}"), stack=True,
              text="Tenants whose GPU waits, on average, by what for."),
        panel("Waiting for turns", "none", (f"gpu:sluice_tenant_gate_wait_seconds:rate5m{{{GPU}}}", "{{gpu}}"),
              text="Threads that wait, on average."),
        panel("Turns", "ops", (f"rate(sluice_gpu_leases_granted_total{{{GPU}}}[$__rate_interval])", "granted {{gpu}}"),
              (f"rate(sluice_gpu_leases_revoked_total{{{GPU}}}[$__rate_interval])", "taken back {{gpu}}")),
        panel("Overruns", "percentunit", (f"rate(sluice_gpu_lease_overrun_seconds_total{{{GPU}}}[$__rate_interval])", "{{gpu}}"),
              text="Part of the time in which somebody was on a GPU beyond the own turn."),
        panel("Whole, draining, lost", "none", (f"sluice_gpu_exclusive{{{GPU}}}", "whole {{gpu}}"), (f"sluice_gpu_draining{{{GPU}}}", "draining {{gpu}}"),
              (f"sluice_gpu_lost{{{GPU}}}", "lost {{gpu}}"), top=1),
        panel("Beside Sluice", "bytes", (f"sluice_gpu_unmanaged_memory_bytes{{{GPU}}}", "memory of strangers {{gpu}}"),
              (f"sluice_gpu_ledger_drift_bytes{{{GPU}}}", "account off by {{gpu}}"), text="Needs NVML."),
        panel("Device errors", "none", (f"increase(sluice_gpu_xid_errors_total{{{GPU}}}[1h])", "Xid {{xid}} {{gpu}}"), text="In the last hour; needs NVML."),
    ],
    "Tenants": [
        panel("GPU time by user", "none", (f'user:sluice_tenant_gpu_seconds:rate5m{{{JOB}}}', "{{user}}"), stack=True, text="In GPUs."),
        panel("GPU time by tenant", "percentunit", (f"rate(sluice_tenant_gpu_seconds_total{{{TENANT}}}[$__rate_interval])", "{{user}} {{tenant}} {{gpu}}"), stack=True),
        panel("Share: had and guaranteed", "percentunit", (f"sluice_tenant_achieved_share_ratio{{{TENANT}}}", "{{user}} {{tenant}}"),
              (f"sluice_tenant_guaranteed_share_ratio{{{TENANT}}}", "guaranteed {{user}} {{tenant}}"), top=1),
        panel("Below or above the guarantee, of those that wait", "percentunit", (f"sluice_tenant_share_error_ratio{{{TENANT}}}", "{{user}} {{tenant}}")),
        panel("Quota in use", "percentunit", (f"tenant:sluice_tenant_memory_used:ratio{{{TENANT}}}", "{{user}} {{tenant}} {{gpu}}"), top=1),
        panel("Refused allocations", "none", (f"increase(sluice_tenant_refusals_total{{{JOB}}}[5m])", "{{reason}} {{user}} {{tenant}}"), text="In 5 minutes."),
        panel("Length of waits for turns", "s", (f"histogram_quantile(0.95, sum by (user, tenant, le) (rate(sluice_tenant_turn_wait_seconds_bucket{{{JOB}}}[5m])))",
                                                  "95 of 100 {{user}} {{tenant}}"), text="Of calls that waited."),
        panel("Waiting for turns", "none", (f"rate(sluice_tenant_gate_wait_seconds_total{{{TENANT}}}[$__rate_interval])", "{{user}} {{tenant}}")),
        panel("Launches", "ops", (f"rate(sluice_tenant_launches_total{{{TENANT}}}[$__rate_interval])", "{{user}} {{tenant}}"),
              (f"rate(sluice_tenant_graph_launches_total{{{TENANT}}}[$__rate_interval])", "graphs {{user}} {{tenant}}")),
        panel("Memory on the host", "bytes", (f"sluice_tenant_memory_swapped_bytes{{{TENANT}}}", "{{user}} {{tenant}}"),
              (f"rate(sluice_tenant_moved_bytes_total{{{TENANT}}}[$__rate_interval])", "{{direction}} per second {{user}} {{tenant}}")),
        panel("Memory that cannot move", "bytes", (f"sluice_tenant_memory_not_movable_bytes{{{TENANT}}}", "{{kind}} {{user}} {{tenant}}"), stack=True),
        panel("Why memory stays", "none", (f"sum by (reason) (sluice_tenant_stays{{{JOB}}})", "{{reason}}"), stack=True, text="Tenants."),
        panel("Limits not enforced", "none", (f"sluice_tenant_limit_not_enforced{{{JOB}}}", "{{reason}} {{user}} {{tenant}}"), (f"sluice_tenant_runaway{{{JOB}}}", "runaway {{user}} {{tenant}}")),
        panel("Who is there", "none", (f"sluice_tenant_state{{{JOB}}} == 1", ""), kind="table", width=16),
    ],
    "Queue": [
        panel("Waiting, by reason", "none", (f"sum by (reason) (sluice_queue_length{{{HERE}}})", "{{reason}}"), stack=True),
        panel("Longest wait", "s", (f"max by (reason) (sluice_queue_oldest_seconds{{{HERE}}})", "{{reason}}")),
        panel("Waits of those that came in", "s", (f"instance:sluice_admission_wait_seconds:p95_1h{{{HERE}}}", "95 of 100 {{instance}}"),
              (f"sum by (instance) (rate(sluice_admission_wait_seconds_sum{{{HERE}}}[1h])) / sum by (instance) (rate(sluice_admission_wait_seconds_count{{{HERE}}}[1h]))",
               "mean {{instance}}"), text="In the last hour."),
        panel("Tenants by state and class", "none", (f"sum by (state, class) (sluice_tenants{{{HERE}}})", "{{state}} {{class}}"), stack=True),
        panel("Refused, by reason", "none", (f"sum by (reason) (increase(sluice_broker_refused_total{{{HERE}}}[5m]))", "{{reason}}"), text="In 5 minutes."),
        panel("Admitted", "none", (f"increase(sluice_broker_admissions_total{{{HERE}}}[5m])", "{{instance}}"), text="In 5 minutes."),
    ],
    "Broker and exporter": [
        panel("Messages that were none", "none", (f"sum by (kind) (increase(sluice_broker_protocol_faults_total{{{HERE}}}[5m]))", "{{kind}}"), text="In 5 minutes."),
        panel("Journal and configuration", "none", (f"increase(sluice_broker_journal_faults_total{{{HERE}}}[5m])", "journal faults {{instance}}"),
              (f"increase(sluice_broker_reloads_total{{{HERE}}}[5m])", "reloads: {{result}} {{instance}}"), text="In 5 minutes."),
        panel("Time of a scrape", "s", (f"sluice_exporter_scrape_duration_seconds{{{HERE}}}", "{{instance}}"),
              (f"rate(sluice_exporter_scrape_errors_total{{{HERE}}}[$__rate_interval])", "errors: {{reason}} {{instance}}")),
        panel("Tenants whose idle time is not explained", "none", (f"sluice_exporter_idle_unseen_tenants{{{HERE}}}", "{{reason}} {{instance}}"),
              (f"rate(sluice_exporter_idle_lost_total{{{HERE}}}[$__rate_interval])", "lost per second {{instance}}"),
              (f"rate(sluice_tenant_idle_unseen_seconds_total{{{TENANT}}}[$__rate_interval])", "too many gaps {{user}} {{tenant}}"),
              text="How it is found out: sluice_exporter_idle_observer."),
    ],
}

TRAINING = {
    "Progress": [
        panel("Steps", "ops", (f"rate(sluice_training_steps_total{{{JOB}}}[$__rate_interval])", "{{user}} {{tenant}}")),
        panel("Samples", "ops", (f"rate(sluice_training_samples_total{{{JOB}}}[$__rate_interval])", "{{user}} {{tenant}}")),
        panel("Tokens", "ops", (f"rate(sluice_training_tokens_total{{{JOB}}}[$__rate_interval])", "{{user}} {{tenant}}")),
    ],
    "What slows it": [
        panel("Slowest rank", "none", (f"sluice_training_straggler_ratio{{{JOB}}}", "{{user}} {{tenant}}"),
              text="Its median step time over that of all; 1 is even."),
        panel("Communication that nothing hides", "percentunit",
              (f"rate(sluice_training_exposed_communication_seconds_total{{{JOB}}}[$__rate_interval])", "{{user}} {{tenant}}"),
              text="Part of the time in which the first rank only communicates."),
        panel("Why its GPUs stand idle", "percentunit", (f"rate(sluice_tenant_idle_seconds_total{{{TENANT}}}[$__rate_interval])", "{{cause}} {{user}} {{tenant}} {{gpu}}"),
              stack=True, text="What each cause is, and what helps: docs/idle-causes.md. Not for jobs with whole GPUs."),
        panel("Off the CPU", "none", (f"rate(sluice_offcpu_seconds_total{{{JOB}}}[$__rate_interval])", "{{state}} {{user}} {{tenant}}"),
              text="Threads, on average. sleeping: disk, network, locks, or nothing to do; runnable: too few cores. Needs BPF."),
        panel("Changes of threads", "ops", (f"rate(sluice_sched_switches_total{{{JOB}}}[$__rate_interval])", "{{user}} {{tenant}}"), text="Needs BPF."),
        panel("Processes that ended", "none", (f"increase(sluice_process_exits_total{{{HERE}}}[5m])", "{{result}} {{instance}}"), text="In 5 minutes; needs BPF."),
        panel("Waiting for turns", "none", (f"rate(sluice_tenant_gate_wait_seconds_total{{{TENANT}}}[$__rate_interval])", "{{user}} {{tenant}} {{gpu}}"),
              text="A job with whole GPUs waits for nobody."),
    ],
    "Its GPUs": [
        panel("Busy", "percentunit", (f"rate(sluice_tenant_gpu_seconds_total{{{TENANT}}}[$__rate_interval])", "{{user}} {{tenant}} {{gpu}}"), top=1,
              text="Uneven GPUs of one job: a straggler, or an uneven split."),
        panel("Memory", "bytes", (f"sluice_tenant_memory_used_bytes{{{TENANT}}}", "{{user}} {{tenant}} {{gpu}}"),
              (f"sluice_tenant_memory_peak_bytes{{{TENANT}}}", "peak {{user}} {{tenant}} {{gpu}}")),
        panel("Whole GPUs", "none", (f"sum(sluice_gpu_exclusive{{{GPU}}})", "whole"), (f"sum(sluice_exclusive_gangs{{{HERE}}})", "gangs"),
              (f'sum(sluice_queue_length{{{HERE}, reason=~"gang|drain"}})', "waiting for them")),
    ],
}


def variable(name, label, query):
    return {"name": name, "label": label, "type": "query", "datasource": {"type": "prometheus", "uid": "${datasource}"}, "query": query,
            "definition": query, "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}, "sort": 1}


def grafana_panel(number, spec, place):
    defaults = {"unit": spec["unit"], "custom": {"stacking": {"mode": "normal" if spec["stack"] else "none"}, "fillOpacity": 20 if spec["stack"] else 0}}
    if spec["kind"] == "timeseries":
        defaults["min"] = None if "error" in spec["title"] or "Beside" in spec["title"] else 0
    if spec["top"] is not None:
        defaults["max"] = spec["top"]
    targets = []
    for letter, (expression, legend) in zip("ABCDEF", spec["queries"]):
        target = {"refId": letter, "expr": expression, "legendFormat": legend, "datasource": {"type": "prometheus", "uid": "${datasource}"}}
        if spec["kind"] != "timeseries":
            target.update(instant=True, range=False)
        if spec["kind"] == "table":
            target["format"] = "table"
        targets.append(target)
    return {"id": number, "type": spec["kind"], "title": spec["title"], "description": spec["text"], "gridPos": place,
            "datasource": {"type": "prometheus", "uid": "${datasource}"}, "fieldConfig": {"defaults": defaults, "overrides": []},
            "targets": targets}


def dashboard(title, uid, rows):
    panels, y = [], 0
    for name, specs in rows.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": name, "collapsed": False, "panels": [], "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
        y, x, height = y + 1, 0, 4 if specs[0]["kind"] == "stat" else 8
        for spec in specs:
            if x + spec["width"] > 24:
                x, y = 0, y + height
            panels.append(grafana_panel(len(panels) + 1, spec, {"x": x, "y": y, "w": spec["width"], "h": height}))
            x += spec["width"]
        y += height
    variables = [{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                 variable("instance", "machine", "label_values(sluice_up, instance)"),
                 variable("gpu", "GPU", 'label_values(sluice_gpu_info{instance=~"$instance"}, gpu)'),
                 variable("user", "user", 'label_values(sluice_tenant_processes{instance=~"$instance"}, user)')]
    return {"title": title, "uid": uid, "tags": ["sluice", "gpu"], "schemaVersion": 38, "version": 1, "editable": True, "graphTooltip": 1,
            "time": {"from": "now-1h", "to": "now"}, "refresh": "30s", "templating": {"list": variables}, "annotations": {"list": []}, "panels": panels}


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    for name, title, rows in (("operators", "Sluice: GPUs, tenants, queue", OPERATORS), ("training", "Sluice: training", TRAINING)):
        text = json.dumps(dashboard(title, f"sluice-{name}", rows), indent=1) + "\n"
        (folder / f"sluice-{name}.json").write_text(text)


if __name__ == "__main__":
    main()
