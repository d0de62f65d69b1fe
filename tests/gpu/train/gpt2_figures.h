// The two sides of the model FLOPs utilization (MFU) of gpt2_train, by name and source. No GPU.
#pragma once

#include <string>

#include "trainer/model/gpt_shape.h"

namespace sluice::tests {

/// Operations for one token, forward and backward, of a transformer with N parameters and L layers
/// of width C over contexts of T tokens: 6 N + attention L C T. They differ in how they count
/// attention, so figures by different ones must not be compared.
struct FlopsFormula {
  const char* name;
  double attention;
};
inline constexpr FlopsFormula kFormulas[] = {
    {"6N+6LCT", 6},    // causal: half of the scores (llm.c)
    {"6N+12LCT", 12},  // as if it were not causal (Chowdhery et al., PaLM, 2022; nanoGPT)
};
double token_flops(const train::GptShape& shape, const FlopsFormula& formula);

/// Of 16-bit operands on tensor cores, dense.
struct Peak {
  double flops;  // a second; 0 = not known
  std::string source;
};
Peak peak_of(const std::string& device);

}  // namespace sluice::tests
