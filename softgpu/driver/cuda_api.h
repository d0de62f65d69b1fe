// The driver API as we define it: cuda.h with every ABI version visible under its exact symbol name
// (no remaps), and all of its functions exported. Everything else of this library is hidden.
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#error \
    "compile the driver with -D__CUDA_API_VERSION_INTERNAL, or a definition of cuMemAlloc would define cuMemAlloc_v2"
#endif

#pragma GCC visibility push(default)
#include <cuda.h>
#include <cudaProfiler.h>

/// Extension: occupies a link for `ns` of modelled time in stream order, without SM time.
extern "C" CUresult softgpuStreamDelay(CUstream stream, unsigned long long ns);
/// Extension, of effect without pacing only: the host's time since the stream's work was done is
/// none of the GPU's, and what this process submits next begins where that work ended. For a host
/// that waited for what the model has a time of its own for, as a peer's message over a link.
/// CUDA_ERROR_NOT_READY: the stream has work to do.
extern "C" CUresult softgpuStreamGoOn(CUstream stream);
#pragma GCC visibility pop

// What is defined here under the name of an entry point is what the exported function of that name
// calls once the gate has let it in (gate.h). The exported ones are generated (generate.py).
#ifndef SOFTGPU_EXPORTED_NAMES
#include "own.h"
#endif
