#!/usr/bin/env python3
"""No object of the libraries is destroyed while a program can still call them.

  outlives_exit.py OBJECT|ARCHIVE...

A static object with a destructor is gone before the program's handlers and static objects that were registered earlier, a
thread_local one before the destructors of pthread keys; both may call CUDA. The compiler registers such destructors with
the functions that are looked for here. Instead: `static auto& x = *new T`, and ThreadObject<T> (softgpu/thread_object.h).
"""

import subprocess
import sys

REGISTER = {"__cxa_atexit", "__cxa_thread_atexit"}


def main():
    failures = 0
    paths = [path for path in sys.argv[1:] if path.endswith((".o", ".a"))]  # without precompiled headers
    for path in paths:
        listing = subprocess.run(["nm", "--undefined-only", path], check=True, capture_output=True, text=True).stdout
        for name in sorted(REGISTER & set(listing.split())):
            print(f"{path}: a destructor is registered with {name}")
            failures += 1
    return 1 if failures or len(paths) < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
