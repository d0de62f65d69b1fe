"""Programs that have nothing to do with CUDA behave the same with the shim preloaded, also where its user set limits:
output, exit status, open files, environment and threads."""
import argparse
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser()
for name in ("shim", "caller", "fixed", "static"):
    parser.add_argument(f"--{name}", required=True)
arguments = parser.parse_args()
failures = []

PT_NULL, PT_PHDR = 0, 6


def without_own_headers(program, copy):
    """A copy whose program headers do not say where they are, so that the loader's list is not found by them."""
    shutil.copy(program, copy)
    with open(copy, "r+b") as file:
        header = file.read(64)
        offset, = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        for at in range(offset, offset + size * count, size):
            file.seek(at)
            if struct.unpack("<I", file.read(4))[0] == PT_PHDR:
                file.seek(at)
                file.write(struct.pack("<I", PT_NULL))
    return copy


loader = re.search(r"interpreter: (.*)\]", subprocess.run(["readelf", "-lW", arguments.caller], check=True, capture_output=True,
                                                          text=True).stdout)[1]
scratch = tempfile.TemporaryDirectory()
PROGRAMS = {
    "true": ["/bin/true"],
    "false": ["/bin/false"],
    "bash": ["/bin/bash", "-c", "echo $((6*7)); (exit 7); echo $?; printf '%s\\n' a b | sort -r; ulimit -n; umask"],
    "pipes": ["/bin/bash", "-c", "set -o pipefail; seq 3 | tac | cat <(echo first) -; false | true; echo $?; "
              "{ sleep 0 & wait $!; echo $?; }; cat <<< here; exec 5>&1; echo five >&5; exec 5>&-; x=$(echo sub; exit 3); "
              "echo $x $?; exec /bin/sh -c 'echo executed $0' zero"],
    "python": [sys.executable, "-c",
               "import ctypes, os, socket, ssl, sqlite3, threading\n"
               "print(ctypes.CDLL(None).getpid() == os.getpid(), threading.active_count())\n"
               "print(sorted(int(f) for f in os.listdir('/proc/self/fd'))[:3], len(os.listdir('/proc/self/task')))\n"
               "pid = os.fork()\n"
               "os._exit(5) if pid == 0 else print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"],
    "python threads": [sys.executable, "-c",
                       "import concurrent.futures, multiprocessing, subprocess\n"
                       "with concurrent.futures.ThreadPoolExecutor(4) as pool:\n"
                       "    print(list(pool.map(lambda n: subprocess.run(['/bin/sh', '-c', f'exit {n}']).returncode, range(8))))\n"
                       "    print([out.decode() for out in pool.map(lambda n: subprocess.check_output(['/bin/echo', str(n)],\n"
                       "                                                                close_fds=bool(n % 2)), range(4))])\n"
                       "with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(abs, [-1, 2]))\n"],
    "spawned": [sys.executable, "-c", "import subprocess; print(subprocess.run(['/bin/echo', 'x']).returncode)"],
    "static": [arguments.static],
    "caller": [arguments.caller],
    "caller by its loader": [loader, arguments.caller],
    "caller without headers": [without_own_headers(arguments.fixed, scratch.name + "/caller")],
}


def run(command, preload, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE")}
    environment.pop("LD_PRELOAD", None)
    if preload:
        environment.update(LD_PRELOAD=arguments.shim, **variables)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout, done.stderr


for name, command in PROGRAMS.items():
    bare = run(command, False)
    for variables in ({}, {"SLUICE_MEMORY": "1GiB", "SLUICE_SM": "50%"}):
        with_shim = run(command, True, **variables)
        if bare != with_shim:
            failures.append(f"{name}: {bare} without, {with_shim} with the shim {variables}")

for name in (name for name in PROGRAMS if name.startswith("caller")):
    status, out, _ = run(PROGRAMS[name], True)
    if (status, out) != (0, "hello through RTLD_NEXT\nputs works, leaf 42, cuInit absent\n"):
        failures.append(f"look-ups that depend on their caller ({name}): {status} {out!r}")

print("\n".join(failures) or "neutral")
sys.exit(1 if failures else 0)
