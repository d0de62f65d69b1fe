"""Tenants as processes, for the lab's experiments and the benchmarks of shares: on software GPUs or on hardware, under a sluiced
of their own, under another preloaded library, or under nothing; and the device time that each of them got. Standard library
only.
"""
import argparse
import collections
import dataclasses
import functools
import json
import math
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

# Quotas. A context takes 32 MiB of the software GPU, and 518 of an H100.
MEMORY_SOFT, MEMORY_GPU = "256MiB", "4GiB"
PATIENCE_S = 30  # for a broker or a tenant to be ready


def add_options(parser):
    """The options that say what is measured, where and how often."""
    parser.add_argument("--build", required=True, type=pathlib.Path, help="a build directory")
    parser.add_argument("--preload", metavar="PATH", help="preload this library instead of Sluice, without a broker")
    parser.add_argument("--env", action="append", default=[], metavar="K=V",
                        help="set for every tenant, may be repeated; in V, {percent} is the tenant's share, {index} its number "
                             "from 0, {count} how many there are, {directory} a fresh directory of the run, {name} its name")
    parser.add_argument("--bare", action="store_true", help="neither Sluice nor another library: what the device alone does")
    parser.add_argument("--gpu", action="store_true",
                        help="the real GPU instead of a software one; device time is then what the tenants saw end")
    parser.add_argument("--config", default="", metavar="TOML", help="settings of the broker, e.g. '[scheduler]\\nquantum = \"5ms\"'")
    parser.add_argument("--dilation", type=dilation_of, default=1, metavar="N",
                        help="all modelled times, the broker's too, are N times as long, so that the host's matter less; figures are "
                             "of the model; auto: by what a wake-up takes here (1)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each line (3)")
    parser.add_argument("--json", metavar="FILE", help="all figures, the windows too, as JSON")


# The broker's default times in milliseconds, by their keys in [scheduler], and the window of the classes that have one.
BROKER_MS = {"quantum": 10, "idle_grace": 0.5, "inference_window": 1, "inference_burst": 100}
WINDOW_MS = 20
WAKE_OF_QUANTUM = 0.01  # a wake-up is to be no more than this part of a quantum
DILATION_MAX = 50  # a run of ten seconds takes more than eight minutes then


def wake_ms():
    """What a thread waits until it runs again, the mean of many, on this host as it is now."""
    pairs = 300
    ends = [os.pipe(), os.pipe()]

    def answer():
        for _ in range(pairs):
            os.read(ends[0][0], 1)
            os.write(ends[1][1], b"a")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    begin = time.monotonic()
    for _ in range(pairs):
        time.sleep(0.001)
        os.write(ends[0][1], b"q")
        os.read(ends[1][0], 1)
    took = time.monotonic() - begin
    thread.join()
    for end in (*ends[0], *ends[1]):
        os.close(end)
    return 1000 * (took / pairs - 0.001) / 3  # the sleep, and one wake-up of each of the two


def dilation_of(word):
    if word == "auto":
        return min(max(1, math.ceil(wake_ms() / (WAKE_OF_QUANTUM * BROKER_MS["quantum"]))), DILATION_MAX)
    number = int(word)
    if not 1 <= number <= DILATION_MAX:
        raise argparse.ArgumentTypeError(f"1 to {DILATION_MAX}, or auto")
    return number


def dilated_config(dilation):
    """The broker's default times, so many times as long."""
    scheduler = "".join(f'{key} = "{value * dilation:g}ms"\n' for key, value in BROKER_MS.items())
    scheduler += f'drain_timeout = "{dilation}s"\nrunaway_after = "{4 * dilation}s"\n'
    classes = "".join(f'[class.{name}]\nwindow = "{WINDOW_MS * dilation}ms"\n' for name in ("batch", "debug"))
    return f"[scheduler]\n{scheduler}{classes}"


def simulated(build, jobs, seconds, seed=1, **machine):
    """What the simulator says of such jobs (sluice-sim --jobs) on such a machine: its JSON."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({**machine, "jobs": jobs}, file)
        file.flush()
        done = subprocess.run([build / "bin/sluice-sim", "--jobs", file.name, "--seconds", str(math.ceil(seconds)), "--seed",
                               str(seed), "--json"], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def check_options(parser, arguments):
    for setting in arguments.env:
        if "=" not in setting:
            parser.error(f"--env takes K=V, not '{setting}'")
    if arguments.bare and arguments.preload:
        parser.error("--bare and --preload exclude each other")
    if arguments.preload and not os.path.exists(arguments.preload):
        parser.error(f"--preload: there is no {arguments.preload}")
    if arguments.dilation != 1 and (arguments.gpu or arguments.config):
        parser.error("--dilation is for software GPUs and the broker's default settings: neither --gpu nor --config")
    if arguments.repeats < 1:
        parser.error("--repeats is at least 1")


@dataclasses.dataclass
class Spec:
    """One tenant: its share, its class and what its program does."""
    name: str
    percent: int
    words: list  # of sluice-load: load()
    tenant_class: str = "batch"
    sm_mode: str = "best-effort"
    weight: bool = False  # the share is a weight, and no guarantee
    gpu: int = None  # the GPU that it runs on; None: whichever
    gpus: int = 1  # how many it has


def expand(setting, spec, index, count, directory):
    """K=V with the placeholders of V filled in, as a pair."""
    key, value = setting.split("=", 1)
    for word, text in {"percent": spec.percent, "index": index, "count": count, "directory": directory,
                       "name": spec.name}.items():
        value = value.replace("{" + word + "}", str(text))
    return key, value


class Tenant:
    """A running sluice-load. Reads its lines in a thread: what was done up to when, the requests and the steps."""

    def __init__(self, command, env):
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = threading.Event()
        self.progress = [(time.monotonic_ns(), 0)]
        self.requests = []  # (when it ended, latency)
        self.steps = []  # the same
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            word, _, value = line.strip().partition(" ")
            if word == "done":
                self.progress.append((time.monotonic_ns(), int(value)))
            elif word == "request":
                self.requests.append((time.monotonic_ns(), int(value)))
            elif word == "step":
                self.steps.append((time.monotonic_ns(), int(value)))
            elif word == "ready":
                self.ready.set()

    def end(self):
        """Closes its input, which ends it; by force where that does not help. True = it ended well."""
        self.process.stdin.close()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join()
        self.process.stdout.close()
        return self.process.returncode == 0


def load(pattern, **options):
    """The command line of sluice-load: load("loop", kernel_us=100) is --pattern loop --kernel-us 100."""
    words = ["--pattern", pattern]
    for key, value in options.items():
        words += ["--" + key.replace("_", "-"), str(value)]
    return words


@functools.cache
def rounds_per_us(build):
    """The speed of this machine's GPU, with nothing else on it."""
    return subprocess.run([build / "bin/sluice-load", *load("calibrate")], check=True, capture_output=True, text=True).stdout.strip()


class Machine:
    """A GPU and what shares it out, fresh for one run: directory, broker, tenants. Used in a with statement."""

    def __init__(self, arguments, timed="", **settings):
        """`settings` are of the software GPUs: COUNT=2 is SOFTGPU_COUNT=2."""
        self.arguments = arguments
        self.build = arguments.build.resolve()
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="sluice-shares-"))
        self.tenants = []
        self.broker = None
        self.env = {k: v for k, v in os.environ.items()
                    if not k.startswith(("SLUICE", "SOFTGPU", "CUDA_VISIBLE")) and k != "LD_PRELOAD"}
        if not arguments.gpu:
            self.env.update(LD_LIBRARY_PATH=str(self.build / "lib/softgpu"), SOFTGPU_DIR=str(self.directory / "gpus"),
                            SOFTGPU_TIMED=timed, **{f"SOFTGPU_{key}": str(value) for key, value in settings.items()})
        self.program = [str(self.build / "bin/sluice-load")]
        if arguments.gpu:
            self.program += ["--rounds-per-us", rounds_per_us(self.build)]

    def __enter__(self):
        try:
            if not self.arguments.bare and not self.arguments.preload:
                self._broker_start()
        except BaseException as failure:
            self.__exit__(failure)
            raise
        return self

    def __exit__(self, failure=None, *_):
        well = [tenant.end() for tenant in self.tenants]
        if self.broker is not None:
            self.broker.terminate()
            self.broker.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
        if failure is None and not all(well):
            raise RuntimeError("a tenant failed")

    def _broker_start(self):
        config = self.directory / "sluice.toml"
        text = self.arguments.config.replace("\\n", "\n")
        config.write_text((text or dilated_config(self.arguments.dilation)) + "\n")
        reader, writer = os.pipe()
        self.broker = subprocess.Popen(
            [self.build / "bin/sluiced", "--config", config, "--socket", self.directory / "broker.sock", "--log",
             self.directory / "log", "--ready-fd", str(writer)], env=self.env, pass_fds=[writer], stdin=subprocess.DEVNULL)
        os.close(writer)
        with os.fdopen(reader) as word:
            said = word.read()
        if said != "ready\n":
            raise RuntimeError(f"the broker did not start: {said}")

    def start(self, specs):
        """Starts all, and returns when all have run their first kernel."""
        for index, spec in enumerate(specs):
            env, command = dict(self.env), self.program + spec.words
            env.update(expand(setting, spec, index, len(specs), self.directory) for setting in self.arguments.env)
            if spec.gpu is not None and self.broker is None:
                env["CUDA_VISIBLE_DEVICES"] = str(spec.gpu)
            if self.arguments.preload:
                env["LD_PRELOAD"] = os.path.abspath(self.arguments.preload)
            elif not self.arguments.bare:
                vgpu = ["--memory", MEMORY_GPU if self.arguments.gpu else MEMORY_SOFT, "--weight" if spec.weight else "--sm",
                        str(spec.percent), "--sm-mode", spec.sm_mode]
                command = [self.build / "bin/sluice", "run", "--socket", self.directory / "broker.sock", "--class",
                           spec.tenant_class, "--name", spec.name, *(vgpu if spec.tenant_class != "exclusive" else []),
                           "--gpus", str(spec.gpus), *(["--gpu", str(spec.gpu)] if spec.gpu is not None else []), "--", *command]
            self.tenants.append(Tenant(command, env))
        deadline = time.monotonic() + PATIENCE_S
        for tenant in self.tenants:
            while not tenant.ready.wait(0.05):
                if tenant.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("a tenant did not start")

    def look(self):
        """Now: the device's clock and the host's, each tenant's device time up to it, on all its GPUs together, and how long execution overran
        the model."""
        if self.arguments.gpu:
            now = time.monotonic_ns()
            return {"at": now, "host": now, "busy": [t.progress[-1][1] for t in self.tenants], "lag": 0}
        done = subprocess.run([self.build / "bin/softgpu-ctl", "accounts", "--json"], env=self.env, check=True,
                              capture_output=True, text=True)
        devices = json.loads(done.stdout)["devices"]
        busy = collections.Counter()
        for device in devices:
            busy.update({row["pid"]: row["busy_ns"] for row in device["processes"]})
        return {"at": devices[0]["elapsed_ns"], "host": time.monotonic_ns(), "busy": [busy[t.process.pid] for t in self.tenants],
                "lag": max(device["lag_ns"] for device in devices)}

    def watch(self, warmup_s, window_s, windows):
        """Looks after the warm-up and at the end of each window."""
        time.sleep(warmup_s)
        looks = [self.look()]
        begin = time.monotonic()
        for i in range(windows):
            time.sleep(max(0, begin + (i + 1) * window_s - time.monotonic()))
            looks.append(self.look())
        return looks


def shares_of(looks):
    """Per tenant its part of the device's time in each window."""
    pairs = list(zip(looks, looks[1:]))
    return [[(b["busy"][i] - a["busy"][i]) / (b["at"] - a["at"]) for a, b in pairs] for i in range(len(looks[0]["busy"]))]


def lag_of(looks):
    """The part of the time by which execution overran what the device's model says: noise of this host."""
    return (looks[-1]["lag"] - looks[0]["lag"]) / (looks[-1]["at"] - looks[0]["at"])


def under(arguments):
    """What shares out the GPU, in words."""
    return "nothing" if arguments.bare else os.path.basename(arguments.preload) if arguments.preload else "sluiced"


def json_write(arguments, figures):
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n")
