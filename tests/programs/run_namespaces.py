#!/usr/bin/env python3
"""Runs programs on the host and in another PID namespace, as a container is one, that share a software GPU and its broker.

  run_namespaces.py --build DIR CASE

Exit 77: no namespaces can be made here.
"""

import argparse
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
from machine import MIB, Machine, wait_until  # noqa: E402

NAMESPACES = (["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"],
              ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"])


class Skipped(Exception):
    pass


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


class Shared(Machine):
    """`inside` is what a command line of the other namespace begins with."""

    def __enter__(self):
        tried = [(namespace, self.run([*namespace, "true"])) for namespace in NAMESPACES]
        good = [namespace for namespace, result in tried if result.returncode == 0]
        if not good:
            raise Skipped(f"no PID namespace can be made here: {tried[0][1].stderr.strip()}")
        self.inside = good[0]
        self.start_broker()
        return self

    def tenants(self):
        return self.status()["tenants"]


def expect_all_returned(machine):
    wait_until("the device has all its memory back", lambda: machine.device()["used_bytes"] == 0)
    wait_until("the broker has forgotten the tenants", lambda: not machine.tenants())


def case_accounts(build):
    """A tenant on the host and one inside: what the broker counts for each agrees with the device's account of its process."""
    with Shared(build, rate=16_000_000) as machine:
        loop = machine.program("launch_loop"), "--seconds", "3", "--burst", "32", "--linger"
        jobs = [machine.start(machine.slice(*loop, sm=40)), machine.start([*machine.inside, *machine.slice(*loop, sm=60)])]
        for job in jobs:
            line = job.stdout.readline()
            expect("idle" in line, f"the loop did not end: {line!r}")
        tenants = machine.tenants()
        expect(len(tenants) == 2, f"not two tenants: {tenants}")
        for tenant in tenants:
            shim, device = tenant["gpus"][0], machine.account(tenant["processes"][0]["pid"])
            print(f"device {device['busy_ns'] / 1e6:.1f} ms in {device['launches']} launches, "
                  f"sluice {shim['busy_ns'] / 1e6:.1f} ms in {shim['launches']}")
            expect(shim["launches"] == device["launches"], f"launches: {shim} and {device}")
            # A busy host makes it more: what waited for the host is metered as well.
            expect(shim["busy_ns"] >= 0.95 * device["busy_ns"], f"busy: {shim} and {device}")
            expect(shim["held_bytes"] == device["memory_bytes"], f"memory: {shim} and {device}")
        for job in jobs:
            job.kill()
            job.wait()
        expect_all_returned(machine)


def case_quota(build):
    """The quota holds inside as it does on the host: to the byte, with the context."""
    with Shared(build, pacing=False) as machine:
        command = machine.slice(machine.program("oom_prober"), memory="256MiB")
        outside, inside = machine.run(command), machine.run([*machine.inside, *command])
        for result in (outside, inside):
            expect(result.returncode == 0, f"exit {result.returncode}: {result}")
        expect(f"got {(256 - 32) * MIB} bytes" in outside.stdout, outside.stdout)
        expect(inside.stdout == outside.stdout, f"inside: {inside.stdout}, outside: {outside.stdout}")
        expect_all_returned(machine)


def case_results(build):
    """Programs inside print what they print on the host while the host looks at the GPU all the time."""
    with Shared(build) as machine:
        command = machine.slice(machine.program("streams_events"))
        expected = machine.run(command)
        expect(expected.returncode == 0, f"exit {expected.returncode}: {expected}")
        for _ in range(4):
            job = machine.launch([*machine.inside, *command])
            while job.poll() is None:
                machine.device()
            expect((job.returncode, job.stdout.read()) == (0, expected.stdout), f"exit {job.returncode}")
        expect_all_returned(machine)


def main():
    cases = {"accounts": case_accounts, "quota": case_quota, "results": case_results}
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True, help="the build directory")
    parser.add_argument("case", choices=sorted(cases))
    options = parser.parse_args()
    try:
        cases[options.case](options.build)
    except Skipped as reason:
        print(f"skipped: {reason}")
        return 77
    except AssertionError as failure:
        print(f"run_namespaces.py: {options.case}: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
