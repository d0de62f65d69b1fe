"""On the path of Python (PYTHONPATH), so that numba 0.56 can use a driver and a libnvvm of CUDA 13, which are newer than it.

Two things are made right when numba.cuda loads them; nothing else of it is touched:
- It marks its code as NVVM IR 1.6, and libnvvm 13 wants its own version, which is asked for.
- It takes the newest ABI of every driver function (`_v2` where there is one) with the arguments of the oldest. CUDA 13 has
  such names for two functions that took one argument less before: it would pass what happens to be in a register.
"""

import importlib.abc
import importlib.machinery
import sys

OLD_ABI = ("cuCtxGetDevice", "cuCtxSynchronize")


def nvvm_of_13(nvvm):
    from llvmlite import ir

    def add_ir_version(module):
        numbers = nvvm.NVVM().get_ir_version()
        node = module.add_metadata([ir.Constant(ir.IntType(32), number) for number in numbers])
        module.add_named_metadata("nvvmir.version", node)

    nvvm.add_ir_version = add_ir_version


def driver_of_13(driver):
    newest = driver.Driver._find_api

    def find(self, name):
        return getattr(self.lib, name) if name in OLD_ABI else newest(self, name)

    driver.Driver._find_api = find


PATCHES = {"numba.cuda.cudadrv.nvvm": nvvm_of_13, "numba.cuda.cudadrv.driver": driver_of_13}


class Finder(importlib.abc.MetaPathFinder):
    """Finds those two modules as always, and patches them once they have run."""

    def find_spec(self, name, path, target=None):
        if name not in PATCHES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                PATCHES[name](module)

            spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
