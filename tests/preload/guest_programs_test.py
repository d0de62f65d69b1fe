"""What programs do to the libraries in them while they use CUDA: with a broker, with limits of their own, and outside Sluice."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from alone_machine import WAIT_S, expect, main
from broker_test import Machine


def guest(machine, what):
    """The guest program in all three ways; the last without any shim, to know that it is right about the driver."""
    program = [machine.arguments.guest, what]
    outside = {k: v for k, v in machine.environment.items() if k != "SLUICE_TENANT"}
    limited = {**outside, "SLUICE_MEMORY": "100MiB", "SLUICE_SM": "90%"}
    # The memfd of a job, or of a program with limits of its own, is inherited by what it starts, on purpose.
    heirs = {"vfork_exec": 1}.get(what, 0)
    shim = {"LD_PRELOAD": machine.arguments.shim}
    machine.broker(100)
    for how, environment, expected in (
            ("bare", outside, 0), ("outside Sluice", {**outside, **shim, "SLUICE_SOCKET": "/nonexistent"}, 0),
            ("with a broker", {**machine.environment, **shim}, 2 if heirs else 0),
            ("with limits", {**limited, **shim, "SLUICE_SOCKET": "/nonexistent"}, 2 if heirs else 0)):
        done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
        expect((done.returncode, done.stdout, done.stderr) == (expected, "", ""),
               f"{what} {how}: exit {done.returncode}, {done.stdout!r} {done.stderr!r}")


def case_threads_at_exit(machine):
    guest(machine, "threads_at_exit")


def case_vfork_exec(machine):
    guest(machine, "vfork_exec")


def case_fork_only(machine):
    guest(machine, "fork_only")


def case_fork_first(machine):
    guest(machine, "fork_first")


def case_small_stack(machine):
    guest(machine, "small_stack")


def case_close_all(machine):
    guest(machine, "close_all")


def case_reload(machine):
    guest(machine, "reload")


def silent(machine, what, environment, *words):
    done = subprocess.run([machine.arguments.guest, what, *words], env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    expect((done.returncode, done.stdout, done.stderr) == (0, "", ""), f"{what}: {done}")


def case_forgotten_variables(machine):
    """What a program was started with counts, also after it has cleared its environment and before it uses CUDA."""
    machine.broker(100)
    shim = {"LD_PRELOAD": machine.arguments.shim}
    silent(machine, "forget", {**machine.environment, **shim})
    outside = {k: v for k, v in machine.environment.items() if k != "SLUICE_TENANT"}
    silent(machine, "forget", {**outside, **shim, "SLUICE_SOCKET": "/nonexistent", "SLUICE_MEMORY": "100MiB"})


def case_few_descriptors(machine):
    """That the policy file cannot be looked into is nothing to talk about where there is none."""
    outside = {**{k: v for k, v in machine.environment.items() if k != "SLUICE_TENANT"}, "SLUICE_SOCKET": "/nonexistent"}
    silent(machine, "few_descriptors", outside, "4")
    # The software GPU takes three when it can get them. The shim needs one for a moment, to look for a broker and a job.
    silent(machine, "few_descriptors", {**outside, "LD_PRELOAD": machine.arguments.shim}, "7")


def limited(machine, *words, **how):
    """The guest program under a limit that it runs into."""
    environment = {k: v for k, v in machine.environment.items() if k != "SLUICE_TENANT"}
    environment.update(SLUICE_MEMORY="100MiB", SLUICE_SOCKET="/nonexistent", LD_PRELOAD=machine.arguments.shim)
    return subprocess.run([machine.arguments.guest, *map(str, words)], env=environment, timeout=WAIT_S, check=False, **how)


def case_mapped_once(machine):
    """Where the family's pages cannot be mapped again by address (valgrind), they are by descriptor; without that, none run."""
    done = limited(machine, "mapped_once", capture_output=True, text=True)
    if done.returncode == 77:
        print("skipped: no filters for system calls here")
        sys.exit(77)
    expect((done.returncode, done.stderr) == (0, ""), done)
    done = limited(machine, "mapped_once", "closed", capture_output=True, text=True)
    expect((done.returncode, done.stderr) == (3, "sluice: this process may not use the GPU: the kernel does not map the pages "
                                              "that its limits are kept in\n"), done)


def case_valgrind(machine):
    """A program is debugged under its limits as without: what valgrind does not know is asked of it once."""
    if shutil.which("valgrind") is None:
        print("skipped: no valgrind here")
        sys.exit(77)
    command = ["valgrind", "-q", "--error-exitcode=9", machine.arguments.guest, "allocates"]
    environment = {k: v for k, v in machine.environment.items() if k != "SLUICE_TENANT"}

    def run(**more):
        return subprocess.run(command, env={**environment, **more}, capture_output=True, text=True, timeout=WAIT_S, check=False)

    bare = run()
    if bare.returncode != 0:
        print(f"skipped: not without the shim either: {bare.stderr[-400:]}")
        sys.exit(77)
    done = run(LD_PRELOAD=machine.arguments.shim, SLUICE_SOCKET="/nonexistent", SLUICE_MEMORY="100MiB", SLUICE_SM="90%")
    unknown = done.stderr.count("unhandled amd64-linux syscall")
    expect(done.returncode == 0 and unknown <= 1 and "sluice:" not in done.stderr, done)


def case_stderr_broken(machine):
    """Nobody reads what the program's stderr is: it gets its CUDA error and no signal."""
    done = limited(machine, "broken_pipe")
    expect(done.returncode == 0, f"exit {done.returncode}")


def case_stderr_full(machine):
    """Nobody reads for a while: the call comes back, and the next line says that there was one more."""
    done = limited(machine, "full_pipe")
    expect(done.returncode == 0, f"exit {done.returncode}")


def case_stderr_files(machine):
    """A log gets the line, wherever it comes from; a file of the program's own at that number does not."""
    path = machine.directory / "file"
    nothing, line = 10, 11
    for flags, when, expected in (
            (os.O_RDWR, "late", nothing), (os.O_WRONLY, "late", nothing), (os.O_WRONLY | os.O_APPEND, "late", line),
            (os.O_RDWR, "kept", line),
            (os.O_WRONLY, "early", line), (os.O_RDWR | os.O_APPEND, "early", line), (os.O_RDWR, "early", nothing),
            (os.O_WRONLY | os.O_CLOEXEC, "early", nothing)):
        done = limited(machine, "file_at_2", path, flags, when)
        expect(done.returncode == expected, f"flags {flags:#x}, {when}: exit {done.returncode}")
    with tempfile.TemporaryFile() as capture:  # read as well, but from the start
        done = limited(machine, "refuse", stderr=capture)
        capture.seek(0)
        text = capture.read()
        expect(done.returncode == 0 and text.startswith(b"sluice: refused 200.0 MiB"), f"{done} {text!r}")


def case_setuid(machine):
    """ld.so ignores the preload for programs that gain privileges; a shim that it is made to load ignores the variables."""
    if os.geteuid() != 0:
        print("skipped: only root can make a program setuid to another user")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="sluice-setuid-") as name:
        directory = pathlib.Path(name)
        directory.chmod(0o755)
        program, shim = directory / "secure", directory / "libsluice.so"
        shutil.copy(machine.arguments.secure, program)
        shutil.copy(machine.arguments.shim, shim)
        environment = {**machine.environment, "SLUICE_MEMORY": "1GiB"}

        def run(*command, **more):
            return subprocess.run(command, env={**environment, **more}, capture_output=True, text=True,
                                  timeout=WAIT_S, check=False)

        plain = run(program, LD_PRELOAD=str(shim)).stdout
        expect(plain == "secure 0, shim 1, limits 1\n", plain)
        os.chown(program, 1, 1)
        program.chmod(0o4755)
        gained = run(program, LD_PRELOAD=str(shim))
        if gained.stdout.startswith("secure 0"):
            print("skipped: this file system ignores the setuid bit")
            sys.exit(77)
        expect((gained.returncode, gained.stdout) == (0, "secure 1, shim 0, limits 0\n"), gained)
        # An administrator's /etc/ld.so.preload, in a mount namespace of its own.
        forced = run("unshare", "-m", "/bin/sh", "-c",
                     f"mkdir {directory}/etc && mount -t tmpfs none {directory}/etc && cp -a /etc/. {directory}/etc/ && "
                     f"echo {shim} > {directory}/etc/ld.so.preload && mount --bind {directory}/etc /etc && exec {program}")
        if forced.returncode != 0:
            print(f"skipped: no mount namespace here ({forced.stderr.strip()})")
            sys.exit(77)
        expect(forced.stdout == "secure 1, shim 1, limits 0\n", forced)


if __name__ == "__main__":
    main(globals(), Machine, "guest", "secure")
