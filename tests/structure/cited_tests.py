"""Tests that documents cite exist: `Suite.Name`, `Suite.*`, a class of Python tests, attacks, and files of tests.

Usage: cited_tests.py ROOT. Names of ctest (`programs.shares`) are not looked at, as CMake makes them.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(sys.argv[1])
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
NAME = re.compile(r"`([A-Z][A-Za-z0-9]+)\.([A-Z][A-Za-z0-9]+|test_\w+|\*)`")
FILE = re.compile(r"`((?:[\w-]+/)*[\w-]+_(?:test|rows|harness)\.(?:cpp|c|cu|py|h|sh)|tests/[\w/.-]+\.\w+)`")
ATTACK = re.compile(r"`((?:memory|tricks|away|shares)\.\w+\.[\w.]+)`|--case (\w+\.[\w.]+\w)")


def tests_of_cpp():
    macro = re.compile(r"^\s*(?:TYPED_)?TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.M)
    return {match.groups() for path in ROOT.glob("tests/**/*.cpp") for match in macro.finditer(path.read_text())}


def tests_of_python():
    found = set()
    for path in ROOT.glob("tests/**/*.py"):
        suite = None
        for line in path.read_text().splitlines():
            if match := re.match(r"class (\w+)", line):
                suite = match[1]
            elif suite and (match := re.match(r"    def (test_\w+)", line)):
                found.add((suite, match[1]))
    return found


def attacks():
    lines = subprocess.run([sys.executable, ROOT / "tests/attacks/run", "--list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in lines.splitlines()}


def main():
    known = tests_of_cpp() | tests_of_python()
    suites = {suite for suite, _ in known}
    files = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/*") if path.is_file()]
    known_attacks = attacks()
    wrong, cited = [], 0
    for document in [*DOCUMENTS, ROOT / "tests/attacks/run"]:
        for number, line in enumerate(document.read_text().splitlines(), 1):
            where = f"{document.relative_to(ROOT)}:{number}"
            for suite, name in NAME.findall(line):
                cited += 1
                if suite not in suites if name == "*" else (suite, name) not in known:
                    wrong.append(f"{where}: there is no test {suite}.{name}")
            for attack in filter(None, sum(ATTACK.findall(line), ())):
                cited += 1
                if attack not in known_attacks:
                    wrong.append(f"{where}: there is no attack {attack}")
            for file in FILE.findall(line):
                cited += 1
                if not any(known_file == file or known_file.endswith("/" + file) for known_file in files):
                    wrong.append(f"{where}: there is no file {file} in tests/")
    print("\n".join(wrong) or f"{cited} citations of tests are of tests that exist")
    return 1 if wrong or not cited else 0


if __name__ == "__main__":
    sys.exit(main())
