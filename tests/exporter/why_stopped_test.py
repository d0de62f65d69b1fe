"""`sluice why` of jobs that need no watching: one that waits in line, one that is suspended, one that has ended, a runaway.

Usage: why_stopped_test.py BUILD. Of the jobs the runaway alone uses a GPU: what is told is the broker's.
"""

import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).parents[1] / "programs"))
from machine import Machine, wait_until  # noqa: E402


def why(machine, name):
    command = [machine.build / "bin/sluice", "why", name, "--for", "500ms", "--no-bpf", "--socket", machine.socket]
    return subprocess.run(command, env=machine.environment, capture_output=True, text=True, timeout=60)


def sluice(machine, *arguments):
    return machine.run([machine.build / "bin/sluice", *arguments, "--socket", str(machine.socket)])


def start(machine, name, memory, *options):
    return machine.launch([machine.build / "bin/sluice", "run", "--socket", str(machine.socket), "--memory", memory, "--name", name,
                           *options, "--", "sleep", "600"])


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def tells(machine, name, pattern):
    said = why(machine, name)
    expect(said.returncode == 0 and re.search(pattern, said.stdout), f"of {name}: {said}")


def main():
    with Machine(sys.argv[1], memory="1GiB") as machine:
        machine.start_broker()
        jobs = lambda: sluice(machine, "status").stdout  # noqa: E731
        train = start(machine, "train", "1GiB", "--swap")
        wait_until("it runs", lambda: re.search(r"train .* running", jobs()))
        later = start(machine, "later", "512MiB")
        wait_until("it waits", lambda: "1st   later" in jobs())
        tells(machine, "later", r"^later of \S+ waits, 1st in line, for \d+ s \(Resources\): the quotas on GPU 0 add up to 1 GiB of 1 GiB, "
                                r"and this job asks for 512 MiB; job 1 \(train\) of user \S+ has all of it: 1 GiB")
        expect(sluice(machine, "suspend", "train").returncode == 0, "it is not suspended")
        tells(machine, "train", r"^train \(job 1\) of \S+: it is suspended: .*`sluice resume 1`$")
        train.kill()
        train.wait()
        wait_until("the other one runs", lambda: re.search(r"later .* running", jobs()))
        tells(machine, "train", r"^train \(job 1\) of \S+ has ended, \d+ s ago, after \d+ s: its processes ended$")
        tells(machine, "1", r"^train \(job 1\)")
        unknown = why(machine, "quux")
        expect(unknown.returncode == 1 and "there is no job 'quux', and none of the last hundred" in unknown.stderr, f"{unknown}")
        later.kill()
    runaway(sys.argv[1])
    debt(sys.argv[1])


def runaway(build):
    """What there is to say of it is said at once, and nothing is watched after that."""
    with Machine(build, config='[scheduler]\ndrain_timeout = "300ms"\nrunaway = "report"\n') as machine:
        machine.start_broker()
        endless = machine.start(machine.slice(machine.program("endless_kernel"), sm=50))
        machine.start(machine.slice(machine.program("launch_loop"), sm=50))
        wait_until("it is a runaway", lambda: any(tenant["runaway"] for tenant in machine.status()["tenants"]))
        said = subprocess.run([build + "/bin/sluice", "why", "endless_kernel", "--for", "1h", "--no-bpf", "--socket", machine.socket],
                              env=machine.environment, capture_output=True, text=True, timeout=60)
        expect(said.returncode == 0 and re.fullmatch(r"endless_kernel \(job 1\) of \S+: it is a runaway: [^\n]*\n", said.stdout), said)
        machine.stop(endless, 9)


def debt(build):
    """The next job of a user with a runaway waits, and says what it pays back and for how long."""
    with Machine(build, config='[scheduler]\ndrain_timeout = "1s"\nrunaway_after = "2s"\n') as machine:
        machine.start_broker()
        neighbour = machine.start(machine.slice(machine.program("launch_loop"), sm=50))
        machine.launch(machine.slice(machine.program("endless_kernel"), sm=5))
        wait_until("it is ended", lambda: any("runaway" in ended["how"] for ended in machine.status()["ended"]))
        machine.launch(machine.slice(machine.program("launch_loop"), sm=5))
        wait_until("the next one waits", lambda: re.search(r" 5 % guaranteed .* pays back \d+\.\d s\n", sluice(machine, "status").stdout))
        owed = max(gpu["owed_ns"] for tenant in machine.status()["tenants"] for gpu in tenant["gpus"])
        expect(owed > 0.5e9, owed)
        said = why(machine, "3").stdout
        expect(re.search(r"^launch_loop \(job 3\) of \S+: it pays back .* s of GPU time that jobs of user \S+ took beyond their share: it runs "
                         r"again in about .* s, or as soon as no other job wants its GPU\n", said), said)
        expect(re.search(r"  gate: it pays back .* s of GPU time", said) and "ask for a larger" not in said, said)
        machine.stop(neighbour, 9)


if __name__ == "__main__":
    main()
