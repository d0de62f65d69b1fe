#!/usr/bin/env python3
"""Where `sluice run` finds GPUs and a broker: on a machine with GPUs, with software GPUs, with a configuration, with nothing.

  run_where.py --build DIR CASE

A case that needs a machine with or without /etc/sluice/sluice.toml has an /etc of its own, in a mount namespace; where the
kernel gives none the case is skipped (77).
"""

import argparse
import pathlib
import shlex
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
from machine import Machine, wait_until  # noqa: E402
from stand_in import NAME, launches, stand_in_driver  # noqa: E402

PRIVATE = ("sluice: no broker was running, so a private one was started for this command and what it starts; other "
           "commands do not share with it\n")
SKIPPED = 77


class Skipped(Exception):
    pass


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


class Lonely(Machine):
    """A machine on which no broker runs; private ones live in `runtime`. Programs find the software GPU by --soft only."""

    def __init__(self, build):
        super().__init__(build, pacing=False)
        self.runtime = self.directory / "runtime"
        self.runtime.mkdir(mode=0o700)
        self.environment["XDG_RUNTIME_DIR"] = str(self.runtime)
        for name in ("LD_LIBRARY_PATH", "SOFTGPU_COUNT"):
            del self.environment[name]

    def sluice(self, *arguments):
        return [str(self.build / "bin" / "sluice"), "run", "--memory", "256MiB", *arguments]

    def install_driver(self, count):
        self.environment.update(stand_in_driver(self.build, self.directory, count))

    def launches(self):
        """Kernels run on the machine's own GPUs."""
        return launches(self.build / "bin", self.environment)

    def in_etc(self, command, configuration):
        """Runs a command on a machine whose /etc holds nothing but, unless None, this /etc/sluice/sluice.toml."""
        text = self.directory / "configuration"
        text.write_text(configuration or "")
        steps = ["mount -t tmpfs none /etc"]
        if configuration is not None:
            steps += ["mkdir /etc/sluice", f"cp {shlex.quote(str(text))} /etc/sluice/sluice.toml"]
        script = " && ".join(steps) + ' && exec "$@"'
        for namespace in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
            if self.run([*namespace, "mount", "-t", "tmpfs", "none", "/etc"]).returncode == 0:
                return self.run([*namespace, "sh", "-c", script, "sh", *command])
        raise Skipped("no mount namespace here")

    def all_gone(self):
        wait_until("the private broker has gone", lambda: not any(self.runtime.iterdir()))


BESIDE = ("sluice: the machine's broker has no software GPUs, so a private one was started for this command and what it starts; "
          "other commands do not share with it, and the machine's profiles do not apply\n")


def expect_private(result, stdout_begin, line=PRIVATE):
    expect(result.returncode == 0 and result.stdout.startswith(stdout_begin), f"exit {result.returncode}: {result}")
    expect(result.stderr == line, f"not exactly the line about the private broker: {result.stderr!r}")


def case_private_broker(build):
    """Where nobody set anything up: --soft brings the GPU along and a broker comes and goes with the command."""
    with Lonely(build) as machine:
        result = machine.in_etc(machine.sluice("--soft", "1", "--sm", "25", "--", machine.program("vector_add")), None)
        print(result.stdout, end="")
        expect_private(result, "vector_add: ")
        machine.all_gone()


def case_private_once(build):
    """What a command under a private broker starts by `sluice run` shares that broker, and nobody says it again."""
    with Lonely(build) as machine:
        inner = shlex.join(machine.sluice("--", machine.program("vector_add")))
        count = 'ls "$XDG_RUNTIME_DIR" | wc -l'
        result = machine.in_etc(machine.sluice("--soft", "1", "--", "sh", "-c", f"{inner} && {inner} && {count}"), None)
        expect_private(result, "vector_add: ")
        lines = result.stdout.splitlines()
        expect(len(lines) == 3 and lines[0] == lines[1] and lines[2] == "1", f"not two jobs of one broker: {lines}")
        machine.all_gone()


def case_machine_gpus(build):
    """Where GPUs and a driver are, they are what a program gets; no software GPU is made."""
    with Lonely(build) as machine:
        machine.install_driver(2)
        both = f"{machine.program('memory_info')} && {machine.program('vector_add')}"
        result = machine.in_etc(machine.sluice("--gpus", "2", "--", "sh", "-c", both), None)
        expect_private(result, "memory_info: 2 devices\n")
        expect(f"memory_info: name {NAME}\n" in result.stdout, f"another GPU: {result.stdout}")
        expect("memory_info: properties 268435456\n" in result.stdout, f"not a vGPU: {result.stdout}")
        expect(machine.launches() > 0, "the machine's GPUs were not used")
        expect(not pathlib.Path(machine.environment["SOFTGPU_DIR"]).exists(), "software GPUs were made")
        machine.all_gone()


def case_soft_overrides(build):
    """--soft N gives N software GPUs, whatever GPUs the machine has."""
    with Lonely(build) as machine:
        machine.install_driver(2)
        both = f"{machine.program('memory_info')} && {machine.program('vector_add')}"
        result = machine.in_etc(machine.sluice("--soft", "3", "--gpus", "3", "--", "sh", "-c", both), None)
        expect_private(result, "memory_info: 3 devices\n")
        expect("memory_info: name Software GPU\n" in result.stdout, f"another GPU: {result.stdout}")
        expect(machine.launches() == 0, "the machine's GPUs were used")
        machine.all_gone()


def case_soft_again(build):
    """--soft N gives N software GPUs, whatever number an earlier --soft made; also while that one's are in use."""
    with Lonely(build) as machine:
        info = machine.program("memory_info")
        for count in (1, 2, 1):
            result = machine.in_etc(machine.sluice("--soft", str(count), "--gpus", str(count), "--", info), None)
            expect_private(result, f"memory_info: {count} device")
        inner = shlex.join(machine.sluice("--soft", "2", "--", info))
        result = machine.in_etc(machine.sluice("--soft", "1", "--", "sh", "-c", inner), None)
        expect("sluice: --soft 2, but the broker of the sluice run around this command has 1 GPU; ask for as many there\n" in result.stderr,
               f"{result}")
        inner = shlex.join(machine.sluice("--soft", "2", "--gpus", "2", "--", info))
        script = f"unset SLUICE_SOCKET SLUICE_TENANT; {inner}"
        result = machine.in_etc(machine.sluice("--soft", "1", "--", "sh", "-c", script), None)
        expect(result.returncode == 0 and result.stdout.startswith("memory_info: 2 devices\n"), f"{result}")
        machine.all_gone()


def case_configured(build):
    """A machine that is set up for a broker of all its users: when that one does not answer, none is started in its place.
    --soft asks for GPUs that are nobody else's, and has a broker of its own there, too."""
    with Lonely(build) as machine:
        machine.install_driver(1)
        socket = "/run/sluice/sluiced.sock"  # where clients look, whatever the file says
        configuration = f'[broker]\nsocket = "{machine.directory}/system.sock"\n'
        program = machine.program("vector_add")
        result = machine.in_etc(machine.sluice("--", program), configuration)
        expect(result.returncode == 125 and result.stdout == "", f"exit {result.returncode}: {result}")
        expected = (f"sluice: no broker answers at {socket} (No such file or directory), and where /etc/sluice/sluice.toml "
                    "exists no private one is started; start it with systemctl start sluiced or run sluiced, or check "
                    "--socket and SLUICE_SOCKET\n")
        expect(result.stderr == expected, f"unexpected: {result.stderr!r}")
        expect(not any(machine.runtime.iterdir()), "a private broker was started")
        expect(machine.launches() == 0, "the program was run")
        broken = machine.in_etc(machine.sluice("--", program), "[broker\n")
        expect(broken.returncode == 125 and "/etc/sluice/sluice.toml" in broken.stderr, f"a broken configuration: {broken}")
        expect(not any(machine.runtime.iterdir()), "a private broker was started beside a broken configuration")
        expect_private(machine.in_etc(machine.sluice("--soft", "1", "--", program), configuration), "vector_add: ", BESIDE)
        expect(machine.launches() == 0, "the machine's GPUs were used")
        machine.all_gone()


CASES = {name.removeprefix("case_"): case for name, case in globals().copy().items() if name.startswith("case_")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True, help="the build directory")
    parser.add_argument("case", choices=sorted(CASES))
    options = parser.parse_args()
    try:
        CASES[options.case](options.build)
    except Skipped as why:
        print(f"skipped: {why}")
        return SKIPPED
    except AssertionError as failure:
        print(f"run_where.py: {options.case}: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
