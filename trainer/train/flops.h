// How many floating-point operations a model is worth, and how many a GPU could do: the two sides
// of model FLOPs utilization (MFU), which is their ratio.
#pragma once

#include "trainer/device/device.h"
#include "trainer/model/model.h"
#include "trainer/model/precision.h"

namespace sluice::train {

/// Of one training sample, forward and backward: six for every weight and use of it (two forward,
/// four backward). Of a transformer with N parameters, L layers of width C and contexts of T
/// tokens 6 N + 12 L C T a token (Chowdhery et al., PaLM, 2022, appendix B): attention as if it
/// were not causal, which is the usual way to count.
double sample_flops(const ModelShape& shape);

/// A second, by the GPU's own highest clock: on its FP32 lanes, or with 16-bit operands on tensor
/// cores, dense, as the CUDA programming guide (throughput of arithmetic instructions) and the
/// makers' white papers have them per multiprocessor. 0 where it is not known: other compute
/// capabilities, and software GPUs, which do not say what they model.
double peak_flops(const Device& device, Precision precision);

}  // namespace sluice::train
