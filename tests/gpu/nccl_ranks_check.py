#!/usr/bin/env python3
"""Checks nccl_ranks.py on the software GPU with a stand-in for NCCL, which refuses two ranks of one host on one GPU as NCCL does:
it passes, finds what is wrong, and skips where there is no NCCL.

  nccl_ranks_check.py BUILD_DIRECTORY
"""

import json
import pathlib
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here.parent / "programs"))
sys.path.insert(0, str(here))
from machine import Machine  # noqa: E402
from nccl_ranks import judge  # noqa: E402


def expect(good, text):
    if not good:
        raise AssertionError(text)


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    standin = build / "tests" / "nccl_standin"
    if not standin.exists():
        print("skipped: built without nccl.h")
        return 77
    with Machine(build, pacing=False) as machine:
        def run(status, **environment):
            done = machine.run([sys.executable, str(here / "nccl_ranks.py"), "--build", str(build), "--steps", "4", "--hidden", "24",
                                "--batch", "16"], timeout_s=110, environment=machine.environment | environment)
            expect(done.returncode == status, f"{environment}: ended with {done.returncode}: {done.stdout}{done.stderr}")
            return done

        path = f"{build / 'lib' / 'softgpu'}:{standin}"
        done = run(0, LD_LIBRARY_PATH=path)
        said = json.loads(done.stdout)
        expect(said["wrong"] == [] and len(said["runs"]["nccl"]["losses"]) == 4, done.stdout)
        expect("two ranks on one GPU, nccl: step " in done.stderr, done.stderr)
        # One host for both, as if nobody had set anything.
        refused = run(1, LD_LIBRARY_PATH=path, NCCL_HOSTID="same")
        expect("NCCL says invalid usage" in refused.stderr, refused.stderr)
        # Not NVIDIA's either, which may be installed.
        broken = machine.directory / "broken"
        broken.mkdir()
        (broken / "libnccl.so.2").write_text("")
        expect("skipped, " in run(77, LD_LIBRARY_PATH=f"{build / 'lib' / 'softgpu'}:{broken}").stdout, "no word of what is not there")

        runs = said["runs"]
        expect(judge(runs) == [], "what was good is not")
        other = [loss * (1 + 1e-5) for loss in runs["gloo"]["losses"]]
        for change, text in (({"losses": other}, "apart"), ({"losses": other[1:]}, "not as many steps"),
                             ({"said": ""}, "does not say"), ({"exit": 1}, "nccl ended with 1")):
            wrong = judge(runs | {"nccl": runs["nccl"] | change})
            expect(wrong and text in wrong[0], f"{change}: {wrong}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
