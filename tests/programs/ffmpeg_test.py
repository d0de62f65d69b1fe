#!/usr/bin/env python3
"""The distribution's own ffmpeg and its CUDA filters on a software GPU, bare and under the shim.

  ffmpeg_test.py --build DIR

Where a CUDA filter computes what a CPU filter does, its frames must be the very same; where it computes something else (yadif_cuda
counts changes and directions otherwise than yadif), they must be those of a reference here. Under the shim every frame must be as
without. Skipped (77) where there is no ffmpeg, or none with these filters.
"""

import argparse
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
from machine import Machine  # noqa: E402

SKIPPED = 77
WIDTH, HEIGHT, FRAMES = 64, 48, 3
FILTERS = ("scale_cuda", "yadif_cuda", "thumbnail_cuda", "overlay_cuda", "chromakey_cuda")
FORMAT = "format=yuv420p"
DOWN = "hwdownload,format=yuv420p"

# What a CUDA filter makes of the source, and what a CPU filter does.
SAME = {
    "scaled down by nearest": (f"hwupload,scale_cuda=32:24:interp_algo=nearest,{DOWN}", "scale=32:24:flags=neighbor"),
    "scaled up by nearest": (f"hwupload,scale_cuda=128:96:interp_algo=nearest,{DOWN}", "scale=128:96:flags=neighbor"),
    "halved by bilinear": (f"hwupload,scale_cuda=32:24:interp_algo=bilinear,{DOWN}", "scale=32:24:flags=area"),
    "whole by bilinear": (f"hwupload,scale_cuda={WIDTH}:{HEIGHT}:passthrough=0:interp_algo=bilinear,{DOWN}", "null"),
    "whole by bicubic": (f"hwupload,scale_cuda={WIDTH}:{HEIGHT}:passthrough=0:interp_algo=bicubic,{DOWN}", "null"),
    "chroma of full size": ("hwupload,scale_cuda=format=yuv444p:interp_algo=nearest,hwdownload,format=yuv444p",
                            "scale=flags=neighbor,format=yuv444p"),
    "the most typical frame": (f"hwupload,thumbnail_cuda={FRAMES},{DOWN}", f"thumbnail={FRAMES}"),
    "a picture in the picture": (f"split[a][b];[a]hwupload[m];[b]crop=32:16:8:8,hwupload[o];[m][o]overlay_cuda=16:8,{DOWN}",
                                 "split[a][b];[b]crop=32:16:8:8[o];[a][o]overlay=16:8"),
}
# What has no counterpart that computes the same: it must only run, and run the same under the shim.
ALONE = {
    "lanczos": f"hwupload,scale_cuda=40:20:interp_algo=lanczos,{DOWN}",
    "bicubic": f"hwupload,scale_cuda=96:80:interp_algo=bicubic,{DOWN}",
    "chromakey": "hwupload,chromakey_cuda=green:0.2:0.1,hwdownload,format=yuva420p",
}


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def ffmpeg(machine, graph, to, environment=None, size=(WIDTH, HEIGHT)):
    command = ["ffmpeg", "-hide_banner", "-nostdin", "-loglevel", "error", "-init_hw_device", "cuda=cu:0", "-filter_hw_device", "cu",
               "-f", "lavfi", "-i", f"testsrc2=size={size[0]}x{size[1]}:rate=5", "-frames:v", str(FRAMES),
               "-filter_complex", f"[0]{FORMAT},{graph}", "-f", to, "-"]
    return subprocess.run(command, env={**machine.environment, **(environment or {})}, capture_output=True, timeout=100, check=False)


def output(machine, graph, to, environment=None):
    result = ffmpeg(machine, graph, to, environment)
    expect(result.returncode == 0 and result.stdout, f"{graph}: exit {result.returncode}: {result.stderr.decode()}")
    return result.stdout


def frames(machine, graph, environment=None):
    """A hash for each frame."""
    text = output(machine, graph, "framemd5", environment).decode()
    return [line.split(",")[-1].strip() for line in text.splitlines() if not line.startswith("#")]


def planes(data):
    """(luma, chroma, chroma) with width and height, for each frame."""
    shapes = [(WIDTH, HEIGHT), (WIDTH // 2, HEIGHT // 2), (WIDTH // 2, HEIGHT // 2)]
    at, found = 0, []
    while at < len(data):
        parts = []
        for width, height in shapes:
            parts.append((data[at:at + width * height], width, height))
            at += width * height
        found.append(parts)
    return found


def deinterlaced(before, now, after, width, height):
    """The even lines of a frame, and the odd ones made of them: along the direction in which the lines above and below fit best,
    but no farther from the mean of the frames around than these and the lines allow."""

    def at(plane, x, y):
        return plane[min(max(y, 0), height - 1) * width + min(max(x, 0), width - 1)]

    made = bytearray(now)
    for y in range(1, height, 2):
        for x in range(width):
            up = [at(now, x + k, y - 1) for k in range(-3, 4)]
            down = [at(now, x + k, y + 1) for k in range(-3, 4)]

            def direction(k):
                return sum(abs(up[3 + k + j] - down[3 - k + j]) for j in (-1, 0, 1)), (up[3 + k] + down[3 - k]) // 2

            best = direction(0)
            for side in (-1, 1):
                near = direction(side)
                if near[0] < best[0]:
                    best = min(near, direction(2 * side), key=lambda found: found[0])

            def mean(dy):
                return (at(before, x, y + dy) + at(now, x, y + dy)) // 2

            def change(other):
                return (abs(at(other, x, y - 1) - above) + abs(at(other, x, y + 1) - below)) // 2

            above, below, middle = up[3], down[3], mean(0)
            room = max(abs(at(before, x, y) - at(now, x, y)), change(before), change(after))
            far_up, far_down = mean(-2) - above, mean(2) - below
            room = max(room, min(middle - below, middle - above, max(far_up, far_down)),
                       -max(middle - below, middle - above, min(far_up, far_down)))
            made[y * width + x] = max(middle - room, min(middle + room, best[1]))
    return bytes(made)


def case_deinterlaced(machine, environment):
    source = planes(output(machine, "null", "rawvideo"))
    made = planes(output(machine, f"hwupload,yadif_cuda=mode=0:parity=0,{DOWN}", "rawvideo", environment))
    # The last frame has none behind it, and how that is made up for is ffmpeg's business.
    for number in range(FRAMES - 1):
        for part in range(3):
            before, now, after = (source[max(number + d, 0)][part][0] for d in (-1, 0, 1))
            plane, width, height = made[number][part]
            wanted = deinterlaced(before, now, after, width, height)
            wrong = [k for k in range(len(plane)) if plane[k] != wanted[k]]
            expect(plane != now, f"frame {number}, plane {part}: nothing was done")
            expect(not wrong, f"frame {number}, plane {part}: {len(wrong)} pixels are wrong, first "
                              f"{wrong[:1]}: {[(plane[k], wanted[k]) for k in wrong[:1]]}")


def case_quota(machine, shim):
    """What does not fit is refused, and ffmpeg says so and ends."""
    result = ffmpeg(machine, f"hwupload,scale_cuda=7680:4320:interp_algo=nearest,{DOWN}", "null",
                    {**shim, "SLUICE_MEMORY": "64MiB"}, (1920, 1080))
    text = result.stderr.decode()
    expect(result.returncode not in (0, -6, -11), f"exit {result.returncode}: {text}")
    expect("sluice: " in text and "CUDA_ERROR_OUT_OF_MEMORY" in text, f"nobody said that memory is out: {text}")


def run(build):
    with Machine(build, pacing=False) as machine:
        shim = {"LD_PRELOAD": str(machine.build / "lib" / "libsluice.so"), "SLUICE_MEMORY": "512MiB"}
        for environment in ({}, shim):
            where = "under the shim" if environment else "bare"
            for name, (of_cuda, of_cpu) in SAME.items():
                made, wanted = frames(machine, of_cuda, environment), frames(machine, of_cpu)
                expect(wanted and made == wanted, f"{name}, {where}: {made} is not {wanted}")
            case_deinterlaced(machine, environment)
        for name, graph in ALONE.items():
            bare, under = frames(machine, graph), frames(machine, graph, shim)
            expect(len(bare) == FRAMES and bare == under, f"{name}: {under} under the shim is not {bare}")
        case_quota(machine, shim)
    print(f"{len(SAME)} filters give the frames of the CPU's, one those of its reference, {len(ALONE)} the same under the shim")


def why_skipped():
    if shutil.which("ffmpeg") is None:
        return "no ffmpeg here; scripts/setup --tests installs it"
    listed = subprocess.run(["ffmpeg", "-hide_banner", "-filters"], capture_output=True, text=True, check=False).stdout
    missing = [name for name in FILTERS if f" {name} " not in listed]
    return f"this ffmpeg lacks {', '.join(missing)}" if missing else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    arguments = parser.parse_args()
    reason = why_skipped()
    if reason is not None:
        print(f"skipped: {reason}")
        return SKIPPED
    run(arguments.build)
    return 0


if __name__ == "__main__":
    sys.exit(main())
