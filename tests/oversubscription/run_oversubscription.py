"""More jobs than a GPU has memory for. Each case has a machine of its own: software GPUs, a broker, the shim.

usage: run_oversubscription.py --build DIR CASE
"""

import argparse

import checkpoints
import defaults
import swaps
import whole_gpus

CASES = {case.__name__: case for module in (defaults, checkpoints, swaps, whole_gpus) for case in module.CASES}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("case", choices=CASES)
    arguments = parser.parse_args()
    CASES[arguments.case](arguments.build)


if __name__ == "__main__":
    main()
