// The one translation unit of the device code: every kernel of the trainer, the jobs and the
// benchmarks, compiled to lib/sluice_kernels.fatbin. Plain CUDA C++ without a library, so that the
// PTX runs on any device of compute capability 7.5 or later and on the software GPU; tensor cores
// are used from 8.0. Kernels have C names: kernels.h launches them by name.
#include "kernels/activation.cuh"
#include "kernels/arrays.cuh"
#include "kernels/attention.cuh"
#include "kernels/cast.cuh"
#include "kernels/convolution.cuh"
#include "kernels/embedding.cuh"
#include "kernels/gemm.cuh"
#include "kernels/gemm_tensor.cuh"
#include "kernels/loss.cuh"
#include "kernels/lowrank.cuh"
#include "kernels/norm.cuh"
#include "kernels/optimizer.cuh"
#include "kernels/topk.cuh"
