"""What libsluice.so shows to the loader: `nm -D` of it, without addresses, beside the list that is kept in the tree. A name
that comes or goes is a change that programs notice, so it is to be seen in a review.

    golden.py [--renew] LIBRARY LIST
"""
import difflib
import pathlib
import subprocess
import sys

RENEW = "ninja -C build/dev interpose_exports_renew"


def symbols(library):
    """Type and versioned name of each dynamic symbol, defined and needed."""
    lines = subprocess.run(["nm", "-D", library], check=True, capture_output=True, text=True).stdout.splitlines()
    return sorted(" ".join(line.split()[-2:]) for line in lines)


def differences(library, golden):
    kept = [line for line in pathlib.Path(golden).read_text().splitlines() if not line.startswith("#")]
    changed = [line for line in difflib.unified_diff(kept, symbols(library), n=0, lineterm="")
               if line[0] in "+-" and line[:3] not in ("+++", "---")]
    return changed


def renew(library, golden):
    pathlib.Path(golden).write_text(f"# nm -D libsluice.so: type, name, version. Renew it with: {RENEW}\n" +
                                    "".join(line + "\n" for line in symbols(library)))


if __name__ == "__main__":
    if sys.argv[1] == "--renew":
        renew(*sys.argv[2:])
    else:
        found = differences(*sys.argv[1:])
        print("\n".join(found) or "as listed")
        sys.exit(1 if found else 0)
