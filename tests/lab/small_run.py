"""Runs the lab at small scale on two software GPUs and recomputes its figures from the raw records.

Usage: small_run.py BIN. The recomputation is written independently of the lab: from results.json it takes only the
windows, the settings, the process ids of the jobs and the debug runs; everything else comes from the job logs and device
accounts.
"""

import json
import math
import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile
import threading

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).parents[1] / "programs"))
from stand_in import NAME as STAND_IN, launches as stand_in_launches, stand_in_driver  # noqa: E402

SECONDS = 4
SEED = 62  # its first debug jobs, within half a second, are one that fails, one that works and one that is killed
LAG_RATIO_MAX = 0.02  # lag over busy time, above which a scene is inconclusive
HOST_FRACTION_MAX = 0.4  # of the host, that all software GPUs together may ask


def lines(path):
    out = []
    for line in path.read_text().splitlines():
        try:
            out.append(json.loads(line))
        except ValueError:
            pass  # the last line of a killed job
    return out


# What the lab trains on by default, where scripts/setup has installed it.
DATA = "fashion-mnist" if pathlib.Path("/usr/share/datasets/fashion-mnist").is_dir() else "synthetic"


def percentile(values, q):
    values = sorted(values)
    if not values:
        return None
    return values[max(0, math.ceil(q / 100 * len(values)) - 1)]


def close(a, b, what):
    if a is None or b is None:
        assert a is None and b is None, f"{what}: {a} against {b}"
        return
    assert math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9), f"{what}: {a} against {b}"


def check_training(scene, raw):
    window, metrics = scene["window"], scene["metrics"]["training"]
    steps = [r for r in lines(raw / "training.jsonl")
             if r["event"] == "step" and r["rank"] == 0 and window["begin_ns"] <= r["t_ns"] < window["end_ns"]]
    times = [r["duration_ns"] * 1e-6 for r in steps]
    seconds = (window["end_ns"] - window["begin_ns"]) * 1e-9
    assert steps, "no training step inside the window"
    assert metrics["steps"] == len(steps)
    close(metrics["steps_per_s"], len(steps) / seconds, "steps/s")
    close(metrics["step_p50_ms"], percentile(times, 50), "step p50")
    close(metrics["step_p99_ms"], percentile(times, 99), "step p99")
    mean = sum(times) / len(times)
    if len(times) > 1:
        close(metrics["step_cv"], math.sqrt(sum((t - mean) ** 2 for t in times) / (len(times) - 1)) / mean, "step CV")
    evaluations = [r for r in lines(raw / "training.jsonl") if r["event"] == "eval"]
    close(metrics["accuracy"], evaluations[-1]["accuracy"], "accuracy")
    close(metrics["communication_fraction"], sum(r["communication_ns"] for r in steps) * 1e-6 / sum(times), "communication")
    return len(steps) / seconds


def check_inference(scene, raw, objective_ms):
    window, metrics = scene["window"], scene["metrics"]["inference"]
    latencies, answered_count, in_time = [], 0, 0
    for path in sorted(raw.glob("inference-*.jsonl")):
        for r in lines(path):
            if r["event"] != "request":
                continue
            if not window["begin_ns"] <= r["arrival_ns"] < window["end_ns"] - objective_ms * 1e6:
                continue
            answered = r.get("done_ns") is not None and r["done_ns"] < window["end_ns"]
            latency = ((r["done_ns"] if answered else window["end_ns"]) - r["arrival_ns"]) * 1e-6
            latencies.append(latency)
            answered_count += answered
            in_time += answered and latency <= objective_ms
    assert latencies, "no request inside the window"
    assert metrics["requests"] == len(latencies)
    assert metrics["answered"] == answered_count, (metrics, answered_count)
    close(metrics["p50_ms"], percentile(latencies, 50), "inference p50")
    close(metrics["p99_ms"], percentile(latencies, 99), "inference p99")
    close(metrics["in_time"], in_time / len(latencies), "in time")
    return {q: percentile(latencies, q) for q in (50, 99)}


def arrival_gaps(raw):
    """Nanoseconds between the requests of the first inference job, as planned."""
    at = sorted(r["arrival_ns"] for r in lines(raw / "inference-0.jsonl") if r["event"] == "request")
    return [b - a for a, b in zip(at, at[1:])]


def check_devices(scene, raw):
    begin = json.loads((raw / "accounts-begin.json").read_text())
    end = json.loads((raw / "accounts-end.json").read_text())
    begin, end = (x["devices"] if isinstance(x, dict) else x for x in (begin, end))
    busy = lag = 0.0
    for a, b, m in zip(begin, end, scene["metrics"]["gpus"]):
        close(m["busy_s"], (b["busy_ns"] - a["busy_ns"]) * 1e-9, "busy")
        close(m["utilization"], (b["busy_ns"] - a["busy_ns"]) / (b["elapsed_ns"] - a["elapsed_ns"]), "utilization")
        busy += b["busy_ns"] - a["busy_ns"]
        lag += b["lag_ns"] - a["lag_ns"]
        assert 0 < m["utilization"] <= 1.0001, m
        close(m["lag_s"], (b["lag_ns"] - a["lag_ns"]) * 1e-9, "lag")
        close(m["elapsed_s"], (b["elapsed_ns"] - a["elapsed_ns"]) * 1e-9, "elapsed")
    assert len(begin) == len(end) == len(scene["metrics"]["gpus"])
    close(scene["metrics"]["lag_ratio"], lag / busy, "lag")
    inconclusive = scene["metrics"]["problem"] != "" or lag / busy > LAG_RATIO_MAX
    assert scene["metrics"]["inconclusive"] == inconclusive, (scene["metrics"], lag / busy)
    check_shares(scene, begin, end, busy * 1e-9)


# What the programs of each kind of job are called in the device's account.
PROGRAMS = {"training": "sluice-train", "inference": "sluice-infer", "debug": "sluice-debug"}


def processes(device):
    """Busy seconds by (pid, name); a pid that was used twice adds up."""
    out = {}
    for p in device["processes"]:
        key = (p["pid"], p["name"])
        out[key] = out.get(key, 0.0) + p["busy_ns"] * 1e-9
    return out


def job_of(scene, pid, name):
    """The job that this process of a device account belongs to."""
    # The ranks are children of the launcher; there is one training in a scene.
    owners = [j for j in scene["jobs"] if pid in j["pids"] or (j["kind"], name) == ("training", PROGRAMS["training"])]
    assert len(owners) == 1, f"{name} ({pid}) belongs to {[j['name'] for j in owners]}"
    assert name == PROGRAMS[owners[0]["kind"]], f"{owners[0]['name']} is accounted as {name}"
    return owners[0]["name"]


def check_shares(scene, begin, end, busy_s):
    """GPU time of every job on every GPU, from the processes in the devices' accounts."""
    seconds = (scene["window"]["end_ns"] - scene["window"]["begin_ns"]) * 1e-9
    used = {(j["name"], g): 0.0 for j in scene["jobs"] for g in range(len(end))}
    for g, (a, b) in enumerate(zip(begin, end)):
        earlier = processes(a)
        for (pid, name), s in processes(b).items():
            ran = s - earlier.get((pid, name), 0.0)
            if ran > 0:
                used[job_of(scene, pid, name), g] += ran
    # Every second of device time belongs to some job of the scene.
    close(sum(used.values()), busy_s, "GPU time of all jobs")
    rows = {(s["job"], s["gpu"]): s for s in scene["metrics"]["shares"]}
    assert len(rows) == len(scene["metrics"]["shares"])
    assert set(rows) == {(j["name"], g) for j in scene["jobs"] for g in j["gpus"]}, rows.keys()
    for job in scene["jobs"]:
        assert len(job["gpu_seconds"]) == len(end), job
        for g, said in enumerate(job["gpu_seconds"]):
            what = f"{scene['name']}: GPU time of {job['name']} on GPU {g}"
            assert said is not None, what
            close(said, used[job["name"], g], what)
            if g not in job["gpus"]:
                assert said == 0, f"{what}, where it has no place"
                continue
            row = rows[job["name"], g]
            assert row["used"] is not None, what
            close(row["used"], used[job["name"], g] / seconds, what)
            if job["kind"] != "debug":
                assert row["used"] > 0, what
        for g in job["gpus"]:
            check_target(scene, job, rows[job["name"], g])


def check_target(scene, job, row):
    """A share is promised exactly where a broker is there to promise it."""
    if scene["control"] == "sluice":
        assert job["share_percent"] is not None and row["target"] is not None, row
        close(row["target"], job["share_percent"] / 100, f"{scene['name']}: share of {job['name']}")
    else:
        assert row["target"] is None, row


def check_rates(machine):
    """All software GPUs together ask at most 40 % of what the host interprets and copies, as docs/lab.md says: above that
    jobs would meet on the host's cores."""
    c, gpus = machine["calibration"], len(machine["gpus"])
    instructions = c["device_warp_instructions_per_s"] * gpus
    assert 0 < instructions <= HOST_FRACTION_MAX * c["warp_instructions_per_s_per_core"] * machine["cores"], machine
    # One core's copies, shared by both directions of every GPU.
    copies = c["device_copy_bytes_per_s"] * gpus * 2
    assert 0 < copies <= HOST_FRACTION_MAX * c["copy_bytes_per_s"], machine


def check_debug(scene, raw):
    metrics = scene["metrics"]["debug"]
    job = next(j for j in scene["jobs"] if j["kind"] == "debug")
    runs = job.get("runs", [])
    assert metrics["runs"] == len(runs) > 0, "no debug job was thrown in"
    first, as_planned = [], 0
    for number, run in enumerate(runs):
        path = raw / f"debug-{number}.jsonl"
        records = lines(path) if path.exists() else []
        logged = [r["t_ns"] for r in records if r["event"] == "first_result"]
        if run["first_result_ns"] is not None:
            assert run["first_result_ns"] == logged[0]
            first.append((logged[0] - run["started_ns"]) * 1e-6)
        else:
            assert not logged or logged[0] >= scene["window"]["end_ns"], f"the first result of debug-{number} is not seen"
        if run["exit_status"] is None:
            continue  # it was still running when the window closed
        ended = [r["status"] for r in records if r["event"] == "end"]
        fits = {"ok": run["exit_status"] == 0, "fail": run["exit_status"] != 0, "killed": run["exit_status"] == 128 + 9}
        as_planned += fits[run["planned"]]
        # The program's own account of its end; one that was killed has none.
        assert ended == (["ok"] if run["exit_status"] == 0 else [] if run["exit_status"] == 128 + 9 else ["failed"]), (run, ended)
    assert metrics["with_result"] == len(first) and metrics["as_planned"] == as_planned, (metrics, len(first), as_planned)
    close(metrics["first_result_p50_ms"], percentile(first, 50), "debug first result p50")
    close(metrics["first_result_p90_ms"], percentile(first, 90), "debug first result p90")


def number(value, digits, unit=""):
    return "" if value is None else f"{value:.{digits}f}{unit}"


def percent(value, digits):
    return "" if value is None else number(value * 100, digits, " %")


def check_table(results, text):
    """Every cell of the two printed tables against results.json."""
    shown = text.splitlines()
    header = next(line for line in shown if "steps/s" in line)
    # Cells are flush right under their titles, two spaces apart.
    ends = [title.end() for title in re.finditer(r"\S+(?: \S+)*", header)]
    for scene in results["scenes"]:
        m = scene["metrics"]
        t, i, d = (m.get(kind, {}) for kind in ("training", "inference", "debug"))
        expected = [
            number(t.get("steps_per_s"), 1), number(t.get("relative_to_exclusive"), 2), percent(t.get("accuracy"), 1),
            number(t.get("step_p50_ms"), 1), number(t.get("step_p99_ms"), 1), number(t.get("step_cv"), 2),
            number(i.get("p50_ms"), 1), number(i.get("p99_ms"), 1), number(i.get("p50_relative_to_alone"), 1, "x"),
            number(i.get("p99_relative_to_alone"), 1, "x"), percent(i.get("in_time"), 1), number(d.get("first_result_p50_ms"), 0),
            " / ".join(percent(g["utilization"], 0) for g in m["gpus"]), percent(m["lag_ratio"], 2)]
        label = scene["name"] + (" *" if m["inconclusive"] else "")
        # The tables stand one after the other; the rows of the second name a GPU.
        row = next(line for line in shown if line.split("  ")[0] == label and not re.search(r" GPU \d", line))
        cells = [row[a:b].strip() for a, b in zip([len(label), *ends], ends)]
        assert cells == expected, f"{scene['name']}: the table shows {cells}, results.json has {expected}"
    rows = [re.split(r" {2,}", line) for line in shown if re.search(r" GPU \d", line)]
    expected = []
    for scene in results["scenes"]:
        for s in scene["metrics"]["shares"]:
            target = "" if s["target"] is None else f"[{percent(s['target'], 0)}]"
            cells = [scene["name"], s["job"], f"GPU {s['gpu']}", percent(s["used"], 1), target, percent(s["held"], 0),
                     percent(s["waited"], 0)]
            expected.append([cell for cell in cells if cell])
    assert rows == expected, f"the table shows {rows}, results.json has {expected}"


def keys_of(value):
    """The name of every field, at any depth."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if isinstance(value, dict):
        return set(value).union(*map(keys_of, value.values()))
    return set()


def check_document(results):
    """docs/lab.md names every field of results.json, and no setting that does not exist."""
    text = (pathlib.Path(__file__).parents[2] / "docs/lab.md").read_text()
    section = text[text.index("### results.json"):]
    named = set(re.findall(r"`(\w+)`", section))
    missing = keys_of(results) - named
    assert not missing, f"docs/lab.md does not name {sorted(missing)}"
    settings = re.search(r"^- `settings`: (.*?)^- ", section, re.MULTILINE | re.DOTALL)[1]
    gone = set(re.findall(r"`(\w+)`", settings)) - set(results["settings"])
    assert not gone, f"docs/lab.md names settings that results.json does not have: {sorted(gone)}"


class Terminal:
    """A terminal for a program's stderr, and what the program wrote to it."""

    def __init__(self):
        self.ours, self.theirs = pty.openpty()
        self.text = ""
        self.reader = threading.Thread(target=self.read)

    def read(self):
        try:
            while data := os.read(self.ours, 4096):
                self.text += data.decode()
        except OSError:
            pass  # the last program that had it open has ended

    def __enter__(self):
        self.reader.start()
        return self

    def __exit__(self, *_):
        os.close(self.theirs)
        self.reader.join()
        os.close(self.ours)


def check_progress(text):
    """One line that is written over and over, and leaves the terminal as it was."""
    notes, line = text.split("\r\033[K", 1)
    assert all(note.startswith("sluice: ") for note in notes.splitlines()), notes
    assert "\n" not in line and line.endswith("\r\033[K"), repr(line[-200:])
    shown = line.removesuffix("\r\033[K").split("\r\033[K")
    fractions = []
    for one in shown:
        match = re.fullmatch(r"scene 1/1 inference-alone  \[(#*)(\.*)\] +(\d+) %  (starting|running|evaluating)", one)
        assert match and len(match[1]) + len(match[2]) == 30, repr(one)
        # Marks are full thirtieths; per cent are rounded.
        assert -0.2 < 30 * int(match[3]) / 100 - len(match[1]) < 1.2, repr(one)
        fractions.append(int(match[3]))
    assert fractions == sorted(fractions) and fractions[-1] == 100 and len(set(fractions)) > 20, fractions


def run_lab(binaries, out, seed, *more, environment=None, stderr=subprocess.PIPE):
    command = [binaries / "sluice", "lab", "--soft", "2", "--seconds", str(SECONDS), "--seed", str(seed), "--data", DATA,
               "--debug-rate", "1.5", "--out", out, *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=200, env=environment)
    assert done.returncode == 0, f"sluice lab ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads((out / "results.json").read_text()), done


def broker_account(raw):
    """Seconds by (job, GPU) between the first and the last look at each tenant: used, held, waited."""
    looks = lines(raw / "broker.jsonl")
    assert len(looks) > 10 and all(a["t_ns"] < b["t_ns"] for a, b in zip(looks, looks[1:])), "too few looks at the broker"
    first = {t["id"]: t for t in looks[0]["tenants"]}
    last = {t["id"]: t for look in looks for t in look["tenants"]}
    sums = {}
    for tenant in last.values():
        for g, now in enumerate(tenant["gpus"]):
            before = first[tenant["id"]]["gpus"][g] if tenant["id"] in first else dict.fromkeys(now, 0)
            row = sums.setdefault((tenant["name"], g), dict.fromkeys(now, 0.0))
            for name in now:
                row[name] += (now[name] - before[name]) * 1e-9
    return sums


def check_leases(scene, raw):
    """Held and waited are fractions of the window, there exactly where a broker is, and what it said."""
    seconds = (scene["window"]["end_ns"] - scene["window"]["begin_ns"]) * 1e-9
    if scene["control"] != "sluice":
        assert not (raw / "broker.jsonl").exists(), scene["name"]
        assert all(share[name] is None for share in scene["metrics"]["shares"] for name in ("held", "waited")), scene
        return None
    account = broker_account(raw)
    for share in scene["metrics"]["shares"]:
        said = account[share["job"], share["gpu"]]
        for name in ("held", "waited"):
            what = f"{scene['name']}: {share['job']} {name} on GPU {share['gpu']}"
            close(share[name], min(1.0, said[name + "_ns"] / seconds), what)
    if scene["name"] == "quota":
        training = [s for s in scene["metrics"]["shares"] if s["job"] == "training"]
        # A gang is granted whole: on both GPUs at the same instants.
        assert training[0]["held"] > 0 and abs(training[0]["held"] - training[1]["held"]) < 0.02, training
    return account


def machine_with_gpus(binaries, environment, temp):
    """Without --soft the lab takes what NVML and the driver show, and makes no GPU. It has no device account then and uses
    what it uses on hardware."""
    command = [binaries / "sluice", "lab", "--seconds", "3", "--data", "synthetic", "--scenes", "exclusive,segregated",
               "--rate", "20", "--objective", "100", "--out", temp / "real"]
    environment = dict(environment, SOFTGPU_DIR=str(temp / "none"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, f"sluice lab ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "scene 1/2 exclusive" in done.stderr and "scene 2/2 segregated" in done.stderr, done.stderr
    assert "software" not in done.stderr and not (temp / "none").exists(), done.stderr
    assert stand_in_launches(binaries, environment) > 0, "the machine's own GPUs were not used"
    results = json.loads((temp / "real/results.json").read_text())
    assert results["machine"]["software_gpus"] is False and results["machine"]["gpus"] == [STAND_IN] * 2, results["machine"]
    assert results["machine"]["driver"], results["machine"]
    exclusive, segregated = results["scenes"]
    for scene in (exclusive, segregated):
        assert not scene["metrics"]["problem"], scene["metrics"]
        assert scene["metrics"]["lag_ratio"] is None
        for gpu in scene["metrics"]["gpus"]:
            assert gpu["lag_s"] is None and 0 < gpu["utilization"] <= 1, gpu
        check_training(scene, temp / "real" / scene["records"])
        account = check_leases(scene, temp / "real" / scene["records"])
        seconds = (scene["window"]["end_ns"] - scene["window"]["begin_ns"]) * 1e-9
        jobs = {j["name"]: j for j in scene["jobs"]}
        for row in scene["metrics"]["shares"]:
            check_target(scene, jobs[row["job"]], row)
            assert row["used"] is not None, row
            if jobs[row["job"]]["class"] == "exclusive":
                # Not metered; but then whatever the GPU did was this job.
                close(row["used"], scene["metrics"]["gpus"][row["gpu"]]["busy_s"] / seconds, "used exclusively")
            else:
                close(row["used"], account[row["job"], row["gpu"]]["busy_ns"] / seconds, "used, as the broker measured it")
    shared = {s["job"]: s["used"] for s in segregated["metrics"]["shares"] if s["gpu"] == 1}
    assert shared["inference-0"] > 0, shared


def main():
    binaries = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as temp:
        out = pathlib.Path(temp) / "one"
        results, done = run_lab(binaries, out, SEED)
        assert set(results) == {"machine", "settings", "scenes"}, results.keys()
        names = [s["name"] for s in results["scenes"]]
        assert names == ["inference-alone", "exclusive", "uncontrolled", "quota", "segregated"], names
        by_name = {s["name"]: s for s in results["scenes"]}
        check_rates(results["machine"])
        check_document(results)
        objective = results["settings"]["objective_ms"]
        rates, tails = {}, {}
        for scene in results["scenes"]:
            raw = out / scene["records"]
            kinds = {j["kind"] for j in scene["jobs"]}
            if "training" in kinds:
                rates[scene["name"]] = check_training(scene, raw)
            if "inference" in kinds:
                tails[scene["name"]] = check_inference(scene, raw, objective)
            if "debug" in kinds:
                check_debug(scene, raw)
                planned = {run["planned"] for job in scene["jobs"] for run in job.get("runs", [])}
                assert planned == {"ok", "fail", "killed"}, planned
            check_devices(scene, raw)
            check_leases(scene, raw)
            assert scene["name"] in done.stdout
        for name, rate in rates.items():
            close(by_name[name]["metrics"]["training"]["relative_to_exclusive"], rate / rates["exclusive"], name)
        for name, tail in tails.items():
            for q, ms in tail.items():
                said = by_name[name]["metrics"]["inference"][f"p{q}_relative_to_alone"]
                close(said, ms / tails["inference-alone"][q], f"{name}: p{q} to alone")
        check_table(results, done.stdout)
        # Elsewhere than on a terminal: one plain line for each scene.
        plain = [line for line in done.stderr.splitlines() if not line.startswith("sluice: ")]
        assert plain == [f"scene {k + 1}/5 {name}" for k, name in enumerate(names)], done.stderr
        assert "\033" not in done.stderr + done.stdout and "\r" not in done.stderr, done.stderr
        html = (out / "report.html").read_text()
        assert "<svg" in html and "http" not in html

        # Another seed gives other figures: nothing in the results is canned. And --soft has its way on a machine with GPUs.
        with_gpus = dict(os.environ, **stand_in_driver(binaries.parent, temp, count=2, memory="24GiB"))
        with Terminal() as terminal:
            other, _ = run_lab(binaries, pathlib.Path(temp) / "two", SEED + 1, "--scenes", "inference-alone",
                               environment=with_gpus, stderr=terminal.theirs)
        check_progress(terminal.text)
        assert other["machine"]["software_gpus"] is True and other["machine"]["gpus"] == ["Software GPU"] * 2, other["machine"]
        assert stand_in_launches(binaries, with_gpus) == 0, "the machine's own GPUs were used"
        assert other["scenes"][0]["metrics"]["inference"]["p99_ms"] != by_name["inference-alone"]["metrics"]["inference"]["p99_ms"]
        # The same seed sends the same requests in every scene, another one sends others.
        alone, quota = (arrival_gaps(out / by_name[name]["records"]) for name in ("inference-alone", "quota"))
        same = min(len(alone), len(quota))
        assert same > 20 and alone[:same] == quota[:same], (alone[:5], quota[:5])
        others = arrival_gaps(pathlib.Path(temp) / "two" / other["scenes"][0]["records"])
        assert len(others) > 20 and not set(alone[:20]) & set(others[:20]), (alone[:5], others[:5])
        assert other["scenes"][0]["metrics"]["inference"]["requests"] > 0
        machine_with_gpus(binaries, with_gpus, pathlib.Path(temp))
    print(f"trained on {DATA}\n1 passed, 0 failed")


if __name__ == "__main__":
    main()
