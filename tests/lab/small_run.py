"""Runs the lab at small scale on two software GPUs and recomputes its figures from the raw records.

Usage: small_run.py BIN. The recomputation is written independently of the lab: from results.json it takes only the
windows, the settings and the debug runs; everything else comes from the job logs and device accounts.
"""

import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

SECONDS = 4


def lines(path):
    out = []
    for line in path.read_text().splitlines():
        try:
            out.append(json.loads(line))
        except ValueError:
            pass  # the last line of a killed job
    return out


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
    return len(steps) / seconds


def check_inference(scene, raw, objective_ms):
    window, metrics = scene["window"], scene["metrics"]["inference"]
    latencies, in_time = [], 0
    for path in sorted(raw.glob("inference-*.jsonl")):
        for r in lines(path):
            if r["event"] != "request":
                continue
            if not window["begin_ns"] <= r["arrival_ns"] < window["end_ns"] - objective_ms * 1e6:
                continue
            answered = r.get("done_ns") is not None and r["done_ns"] < window["end_ns"]
            latency = ((r["done_ns"] if answered else window["end_ns"]) - r["arrival_ns"]) * 1e-6
            latencies.append(latency)
            in_time += answered and latency <= objective_ms
    assert latencies, "no request inside the window"
    assert metrics["requests"] == len(latencies)
    close(metrics["p50_ms"], percentile(latencies, 50), "inference p50")
    close(metrics["p99_ms"], percentile(latencies, 99), "inference p99")
    close(metrics["in_time"], in_time / len(latencies), "in time")
    return percentile(latencies, 99)


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
    close(scene["metrics"]["lag_ratio"], lag / busy, "lag")
    used = sum(s["used"] for s in scene["metrics"]["shares"] if s["used"] is not None)
    seconds = (scene["window"]["end_ns"] - scene["window"]["begin_ns"]) * 1e-9
    # Every second of device time belongs to some job of the scene (a few milliseconds pass between the two clocks).
    assert abs(used * seconds - busy * 1e-9) <= 0.05 * busy * 1e-9 + 0.05, (used * seconds, busy * 1e-9)


def check_debug(scene, raw):
    metrics = scene["metrics"]["debug"]
    job = next(j for j in scene["jobs"] if j["kind"] == "debug")
    runs = job.get("runs", [])
    assert metrics["runs"] == len(runs) > 0, "no debug job was thrown in"
    first = []
    for number, run in enumerate(runs):
        logged = [r for r in lines(raw / f"debug-{number}.jsonl") if r["event"] == "first_result"] \
            if (raw / f"debug-{number}.jsonl").exists() else []
        if run["first_result_ns"] is not None:
            assert run["first_result_ns"] == logged[0]["t_ns"]
            first.append((logged[0]["t_ns"] - run["started_ns"]) * 1e-6)
    close(metrics["first_result_p50_ms"], percentile(first, 50), "debug first result")


def run_lab(binaries, out, seed, *more):
    command = [binaries / "sluice", "lab", "--soft", "2", "--seconds", str(SECONDS), "--seed", str(seed), "--data", "synthetic",
               "--debug-rate", "1.5", "--out", out, *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, f"sluice lab ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads((out / "results.json").read_text()), done


def check_leases(scene):
    """Held and waited are fractions of the window, there exactly where a broker is."""
    for share in scene["metrics"]["shares"]:
        for name in ("held", "waited"):
            if scene["control"] == "sluice":
                assert 0 <= share[name] <= 1, share
            else:
                assert share[name] is None, share
    if scene["name"] == "quota":
        training = [s for s in scene["metrics"]["shares"] if s["job"] == "training"]
        # A gang is granted whole: on both GPUs at the same instants.
        assert training[0]["held"] > 0 and abs(training[0]["held"] - training[1]["held"]) < 0.02, training


def machine_with_gpus(binaries, temp):
    """Without --soft the lab takes what NVML and the driver show. Here they are the software ones, in the library path,
    as on a machine that has GPUs; the lab then has no device account and uses what it uses on hardware."""
    environment = dict(os.environ, LD_LIBRARY_PATH=str(binaries.parent / "lib/softgpu"), SOFTGPU_DIR=str(temp / "gpus"),
                       SOFTGPU_COUNT="2", SOFTGPU_MEMORY="24GiB")
    (temp / "gpus").mkdir()
    command = [binaries / "sluice", "lab", "--seconds", "3", "--data", "synthetic", "--scenes", "exclusive,segregated",
               "--rate", "20", "--objective", "100", "--out", temp / "real"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, f"sluice lab ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    results = json.loads((temp / "real/results.json").read_text())
    assert results["machine"]["software_gpus"] is False and len(results["machine"]["gpus"]) == 2, results["machine"]
    assert results["machine"]["driver"], results["machine"]
    exclusive, segregated = results["scenes"]
    for scene in (exclusive, segregated):
        assert not scene["metrics"]["problem"], scene["metrics"]
        assert scene["metrics"]["lag_ratio"] is None
        for gpu in scene["metrics"]["gpus"]:
            assert gpu["lag_s"] is None and 0 < gpu["utilization"] <= 1, gpu
        check_training(scene, temp / "real" / scene["records"])
        check_leases(scene)
    shared = {s["job"]: s["used"] for s in segregated["metrics"]["shares"] if s["gpu"] == 1}
    assert shared["inference-0"] > 0, shared


def main():
    binaries = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as temp:
        out = pathlib.Path(temp) / "one"
        results, done = run_lab(binaries, out, 1)
        assert set(results) == {"machine", "settings", "scenes"}, results.keys()
        names = [s["name"] for s in results["scenes"]]
        assert names == ["inference-alone", "exclusive", "uncontrolled", "quota", "segregated"], names
        by_name = {s["name"]: s for s in results["scenes"]}
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
            check_devices(scene, raw)
            check_leases(scene)
            assert scene["name"] in done.stdout
        for name, rate in rates.items():
            close(by_name[name]["metrics"]["training"]["relative_to_exclusive"], rate / rates["exclusive"], name)
        for name, tail in tails.items():
            close(by_name[name]["metrics"]["inference"]["p99_relative_to_alone"], tail / tails["inference-alone"], name)
        html = (out / "report.html").read_text()
        assert "<svg" in html and "http" not in html

        # Another seed gives other figures: nothing in the results is canned.
        other, _ = run_lab(binaries, pathlib.Path(temp) / "two", 2, "--scenes", "inference-alone")
        assert other["scenes"][0]["metrics"]["inference"]["p99_ms"] != by_name["inference-alone"]["metrics"]["inference"]["p99_ms"]
        assert other["scenes"][0]["metrics"]["inference"]["requests"] > 0
        machine_with_gpus(binaries, pathlib.Path(temp))
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main()
