#!/usr/bin/env python3
"""What the broker costs: a decision of its core, registrations that come together, standing idle, and memory per tenant.

    broker_bench.py --build build/dev                   all of it; sluiced runs on doubles of the hardware libraries
    broker_bench.py --build build/dev --only decision   one of decision, register, idle, memory
    broker_bench.py --build build/dev --json FILE       the figures as well
    broker_bench.py --build build/dev --limits FILE     instructions of a decision only, against limits (what ctest runs)

A registration is timed by the broker itself: from the end of the wait after which its message can first have been readable (or
of the wait before, when messages were waiting already) to its answer's being sent. Times are printed and never judged;
instructions are counted with callgrind and may be a tenth above the limit.
"""
import argparse
import atexit
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "broker/daemon"))
import e2e_support  # noqa: E402
from e2e_support import ADMITTED, MIB, NO_WAIT, REGISTERED, SWAP, Broker, Client, admit, register  # noqa: E402

SLACK = 1.10
CONFIG = "[profile.default]\ntenants_max = 4000\n"
LARGE = {"FAKE_MEMORY": str(1 << 40)}  # a GPU on which a thousand contexts have room
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--build", required=True, type=pathlib.Path, help="a build directory")
parser.add_argument("--only", choices=["decision", "register", "idle", "memory"])
parser.add_argument("--json", metavar="FILE")
parser.add_argument("--limits", metavar="FILE")
parser.add_argument("--rounds", type=int, default=20, help="of registrations, 64 processes each (20)")
parser.add_argument("--realtime", action=argparse.BooleanOptionalAction, default=os.geteuid() == 0,
                    help="sluiced runs with --realtime, as its systemd unit has it; as root the default")
parser.add_argument("--nice", type=int, default=-20 if os.geteuid() == 0 else 0,
                    help="of sluiced; as root what its systemd unit gives it (-20), else 0")
parser.add_argument("--idle-seconds", type=float, default=10)
arguments = parser.parse_args()
programs = arguments.build.resolve() / "tests"
e2e_support.INSTALLATION = programs / "broker_installation"
figures = {}
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def counted(options, steps):
    """Instructions of the decisions of a run, and how many decisions they are."""
    with tempfile.NamedTemporaryFile() as out:
        done = subprocess.run(["valgrind", "--tool=callgrind", "--toggle-collect=*decision_measured*",
                               f"--callgrind-out-file={out.name}", programs / "broker_decision", "--rounds", "1", "--steps",
                               str(steps), *options], check=True, capture_output=True, text=True)
        kind = options[options.index("--count") + 1] if "--count" in options else "all"
        total = int(re.search(r"^(?:summary|totals): (\d+)", open(out.name).read(), re.M)[1])
        if total == 0:
            sys.exit("broker_bench: callgrind has counted nothing: broker_decision has no function decision_measured")
        return total, int(re.search(rf"^{kind} +(\d+)", done.stdout, re.M)[1])


def instructions(options):
    """Mean of the decisions of a run: of two runs the difference, so that what is built first does not count. Of one kind
    nothing is built first, and there are few: the mean of all."""
    total, count = counted(options, 20_000)
    if "--count" in options:
        return total / count
    before, count_before = counted(options, 10_000)
    return (total - before) / (count - count_before)


def limits_check():
    above = 0
    print(f"{'instructions of a decision':40}{'counted':>12}{'limit':>12}")
    for line in open(arguments.limits):
        if line.startswith("#") or not line.strip():
            continue
        *options, limit = line.split()
        found = instructions(options)
        over = found > float(limit) * SLACK
        above += over
        print(f"{' '.join(options):40}{found:12.0f}{limit:>12}{'   too many' if over else ''}", flush=True)
    return 1 if above else 0


def decision():
    for options in ([], ["--gpus", "1"], ["--tenants", "100"], ["--tenants", "4000"]):
        print("decision", *options, flush=True)
        subprocess.run([programs / "broker_decision", *options], check=True)
        done = subprocess.run([programs / "broker_decision", "--json", *options], check=True, capture_output=True, text=True)
        figures[" ".join(["decision", *options])] = json.loads(done.stdout)


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def row(name, values):
    p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
    figures[name] = {"count": len(values), "p50_ns": p50, "p99_ns": p99, "max_ns": max(values)}
    print(f"{name:44}{len(values):8}{p50 / 1e3:10.0f}{p99 / 1e3:10.0f}{max(values) / 1e3:10.0f}", flush=True)


def broker(environment=None):
    state = tempfile.TemporaryDirectory(prefix="sluice-bench-")  # for its journal, as the system's broker has one
    options = ["--state", f"{state.name}/state"] + ["--realtime"] * arguments.realtime
    started = Broker(CONFIG, options=options, env=e2e_support.environment(**(environment or {})))
    atexit.register(state.cleanup)
    atexit.register(started.stop)
    if started.word != "ready\n":
        sys.exit(f"broker_bench: sluiced does not start: {started.word}")
    os.setpriority(os.PRIO_PROCESS, started.process.pid, arguments.nice)
    return started


def registrations():
    print(f"{'registration, us':44}{'count':>8}{'p50':>10}{'p99':>10}{'max':>10}")
    for mode, name in (("one", "64 processes of one tenant"), ("each", "64 processes of 64 tenants")):
        server = broker(LARGE)
        done = subprocess.run([programs / "broker_register", server.socket, "64", str(arguments.rounds), mode], check=True,
                              capture_output=True, text=True)
        taken = [int(found) for found in re.findall(r"event=register_answered .*taken_ns=(\d+)", server.log())]
        row(f"{name}: broker's side", taken)
        row(f"{name}: client's side", [int(line) for line in done.stdout.split()])
        server.stop()


def tenants_make(server, count):
    """Tenants of this process, each with one registration."""
    kept = []
    for _ in range(count):
        client = Client(server.socket)
        granted = client.ask(admit(memory=64 * MIB, memory_min=33 * MIB, flags=NO_WAIT | SWAP))
        if granted.kind != ADMITTED:
            sys.exit(f"broker_bench: {granted.text}")
        joined = client.ask(register(granted.tenant, granted.key))
        if joined.kind != REGISTERED:
            sys.exit(f"broker_bench: {joined.text}")
        for fd in joined.fds:
            os.close(fd)
        kept.append(client)
    return kept


def cpu_ns(pid):
    return int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def idle():
    for count in (0, 100, 1000):
        server = broker(LARGE)
        kept = tenants_make(server, count)
        time.sleep(1)
        before, begin = cpu_ns(server.process.pid), time.monotonic()
        time.sleep(arguments.idle_seconds)
        part = (cpu_ns(server.process.pid) - before) / 1e9 / (time.monotonic() - begin)
        figures[f"idle with {count}"] = {"seconds": arguments.idle_seconds, "core": part}
        print(f"idle with {count} registered tenants: {100 * part:.3f} % of one core over {arguments.idle_seconds:.0f} s",
              flush=True)
        for client in kept:
            client.close()
        server.stop()


def resident(pid):
    """KiB of the broker's own, and of the tenants' pages that it has mapped."""
    own = pages = 0
    for block in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", pathlib.Path(f"/proc/{pid}/smaps").read_text()):
        size = sum(int(value) for value in re.findall(r"^Rss: +(\d+) kB", block, re.M))
        if "memfd:sluice" in block.split("\n", 1)[0]:
            pages += size
        else:
            own += size
    return own, pages


def memory():
    server = broker(LARGE)
    kept = tenants_make(server, 10)  # what is made once is there
    own, pages = resident(server.process.pid)
    more = 1000
    kept += tenants_make(server, more)
    own_after, pages_after = resident(server.process.pid)
    each = (own_after - own) / more, (pages_after - pages) / more
    figures["memory"] = {"tenants": more, "own_kib": each[0], "pages_kib": each[1]}
    print(f"memory for each of {more} tenants with one process: {each[0]:.1f} KiB of the broker's own, {each[1]:.1f} KiB of pages "
          "shared with the tenant", flush=True)
    for client in kept:
        client.close()
    server.stop()


if arguments.limits:
    sys.exit(limits_check())
for name, part in {"decision": decision, "register": registrations, "idle": idle, "memory": memory}.items():
    if arguments.only in (None, name):
        part()
if arguments.json:
    pathlib.Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n")
