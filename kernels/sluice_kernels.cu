// The one translation unit of the device code: every kernel of the trainer, the jobs and the
// benchmarks, compiled to lib/sluice_kernels.fatbin. Plain fp32 CUDA C++ (no tensor core, no
// library), so that the PTX runs on any device of compute capability 7.5 or later and on the
// software GPU. Kernels have C names: kernels.h launches them by name.
#include "kernels/arrays.cuh"
#include "kernels/gemm.cuh"
#include "kernels/loss.cuh"
