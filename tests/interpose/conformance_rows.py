"""What runs rows of tests/conformance with the shim shares: the rows' names, and a few at a time."""
import concurrent.futures
import fnmatch
import subprocess


def rows_list(program, environment, patterns):
    """The program's rows that match a pattern, and all of them."""
    known, suite = [], ""
    listed = subprocess.run([program, "--gtest_list_tests"], check=True, capture_output=True, text=True, env=environment)
    for line in listed.stdout.splitlines():
        if line.startswith("  "):
            known.append(suite + line.split("#")[0].strip())
        elif line.endswith("."):
            suite = line
    return [row for row in known if any(fnmatch.fnmatch(row, pattern) for pattern in patterns)], known


def rows_run(run, rows):
    """run(row) for each; they wait more than they work."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        yield from pool.map(run, rows)
