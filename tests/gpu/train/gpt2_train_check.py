#!/usr/bin/env python3
"""Checks gpt2_train on the software GPU with a small shape: the figures in its JSON follow from each other and from the
formulas, the loss is the same with the own kernels and through cuBLASLt's interface (a stand-in), and what cannot be is said.

  gpt2_train_check.py BUILD_DIRECTORY
"""

import json
import math
import pathlib
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "programs"))
from machine import Machine  # noqa: E402

SMALL = {"--layers": 2, "--heads": 2, "--width": 32, "--context": 16, "--vocabulary": 61, "--padded": 64, "--batch": 2,
         "--accumulate": 2, "--steps": 3, "--warmup": 1, "--lr": 0.01}
# Of that shape without the rows that never occur: tokens, positions, layers (12 C^2 + 13 C), last norm.
PARAMETERS = 61 * 32 + 16 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32
KEYS = {"date", "device", "driver", "cuda_driver_version", "model", "precision", "gemm", "tokens_per_step", "step_ms", "passes_ms",
        "adamw_ms", "tokens_per_s", "peak_flops", "peak_source", "formulas", "memory_used_bytes", "memory_total_bytes",
        "loss_first", "loss_last"}


def expect(good, text):
    if not good:
        raise AssertionError(text)


def close(a, b, by=1e-6):
    return math.isclose(a, b, rel_tol=by)


def figures_check(said):
    expect(KEYS <= said.keys(), f"missing: {KEYS - said.keys()}")
    expect(said["model"]["parameters"] == PARAMETERS, said["model"])
    expect(said["model"]["parameters_padded"] == PARAMETERS + 3 * 32, said["model"])
    expect(said["tokens_per_step"] == 2 * 2 * 16, said["tokens_per_step"])
    expect(close(said["tokens_per_s"], 64 / said["step_ms"] * 1e3), "tokens a second are not those of the steps")
    for name, attention in {"6N+6LCT": 6, "6N+12LCT": 12}.items():
        formula = said["formulas"][name]
        flops = 6 * PARAMETERS + attention * 2 * 32 * 16
        expect(formula["flops_per_token"] == flops, f"{name}: {formula}, not {flops}")
        mfu = said["tokens_per_s"] * flops / 1e9
        expect(close(formula["mfu"], mfu), f"{name}: {formula}, not {mfu}")
    expect(said["peak_flops"] == 1e9 and said["peak_source"] == "--peak-tflops", said["peak_source"])
    # Weights, gradients and their sums, two states of the optimizer.
    expect(said["memory_used_bytes"] > 5 * 4 * PARAMETERS, said["memory_used_bytes"])
    expect(said["memory_used_bytes"] < said["memory_total_bytes"], said["memory_total_bytes"])
    expect(0 < said["adamw_ms"] and 0 < said["passes_ms"], "no device time")
    expect(abs(said["loss_first"] - math.log(64)) < 0.1, f"first loss {said['loss_first']}: not that of a random model")


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    program = build / "tests" / "gpt2_train"
    soft = build / "lib" / "softgpu"
    standin = build / "tests" / "cublaslt_standin"

    with Machine(build, pacing=False) as machine:
        def run(*more, status=0, **environment):
            machine.environment.pop("CUBLASLT_STANDIN", None)
            machine.environment.update(environment)
            options = SMALL | dict(zip(more[::2], more[1::2]))
            done = machine.run([str(program), *(str(word) for pair in options.items() for word in pair)], timeout_s=100)
            expect(done.returncode == status, f"{more}: ended with {done.returncode}: {done.stdout}{done.stderr}")
            return done

        def said(*more, **environment):
            done = run("--peak-tflops", "0.001", *more, **environment)
            out = json.loads(done.stdout)
            figures_check(out)
            return out, done.stderr

        with_standin = {"LD_LIBRARY_PATH": f"{soft}:{standin}"}
        own, complaint = said()
        expect(own["gemm"] == {"engine": "own", "note": ""} and complaint == "", f"{own['gemm']} {complaint}")
        library, complaint = said("--gemm", "cublaslt", **with_standin)
        gemm = library["gemm"]
        # Of 4 steps of 2 micro-batches: 4 products a layer and the logits forward, twice as many back.
        expect(gemm["products"] == 4 * 2 * 3 * (4 * 2 + 1) and gemm["by_own_kernels"] == 0 and complaint == "", f"{gemm} {complaint}")
        expect(close(own["loss_first"], library["loss_first"], 1e-5), "another first loss")
        expect(close(own["loss_last"], library["loss_last"], 1e-2), "another last loss")

        refused, complaint = said("--gemm", "cublaslt", CUBLASLT_STANDIN="no-algorithm")
        expect(refused["gemm"]["products"] == 0 and refused["gemm"]["by_own_kernels"] == gemm["products"], str(refused["gemm"]))
        expect(complaint.count("\n") == 1 and "cuBLASLt has no algorithm for" in complaint, complaint)
        expect(refused["loss_last"] == own["loss_last"], "own kernels, another loss")
        for how, status in {"no-handle": 1, "fails": 13}.items():
            failed = run("--gemm", "cublaslt", status=1, CUBLASLT_STANDIN=how)
            expect(f"failed with status {status}" in failed.stderr and failed.stdout == "", failed.stderr)

        unknown = json.loads(run().stdout)
        expect(unknown["peak_flops"] == 0 and unknown["formulas"]["6N+6LCT"]["mfu"] is None, "a peak from nowhere")
        away = run("--lr", "0", status=1)
        expect("the loss went from" in away.stderr, away.stderr)
        expect("--padded is less" in run("--padded", "60", status=2).stderr, "padding below the vocabulary")


if __name__ == "__main__":
    main()
