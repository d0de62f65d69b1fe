"""What the programs of this directory share: their command line, by which frameworks.py runs them.

  PROGRAM --check        exit 0 where the program can run, 77 with one line that says what is missing
  PROGRAM                computes, prints what came out; the same on every run
  PROGRAM --need BYTES   computes; takes BYTES of device memory; when that fails by the framework's own out-of-memory error
                         says so, goes on, and computes once more. What came out is printed both times
"""

import importlib
import sys


def missing(module, has_gpu):
    """Why the program cannot run here, or None. has_gpu is asked with the module."""
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        return f"the package {module} is not installed ({error})"
    try:
        return None if has_gpu(loaded) else f"{module} sees no GPU"
    except Exception as error:  # what a framework raises when it has no driver is its own affair
        return f"{module} sees no GPU ({type(error).__name__}: {error})"


def main(module, has_gpu, compute, take, is_out_of_memory):
    """compute() -> text; take(bytes) allocates and gives back; is_out_of_memory(error) knows the framework's own error."""
    arguments = sys.argv[1:]
    why = missing(module, has_gpu)
    if why is not None:
        print(why)
        return 77
    if arguments == ["--check"]:
        return 0
    print(compute(), flush=True)
    if arguments[:1] != ["--need"]:
        return 0
    try:
        take(int(arguments[1]))
        print(f"allocated {arguments[1]} bytes")
    except Exception as error:  # the framework's classes are known only where it is installed
        if not is_out_of_memory(error):
            raise
        print(f"out of memory: {type(error).__name__}")
    print(compute(), flush=True)
    return 0
