// See gpt2_figures.h.
#include "tests/gpu/train/gpt2_figures.h"

namespace sluice::tests {
namespace {

/// Half of what NVIDIA's data sheets give "with sparsity"; the A100's gives both. The first row
/// that the device's name contains counts.
struct PeakRow {
  const char* name;
  double tflops;
  const char* source;
};
constexpr PeakRow kPeakRows[] = {
    {"H200 NVL", 835.5, "NVIDIA H200 data sheet, NVL, BF16, dense"},
    {"H200", 989.5, "NVIDIA H200 data sheet, SXM, BF16, dense"},
    {"H100 NVL", 835.5, "NVIDIA H100 data sheet, NVL, BF16, dense"},
    {"H100 PCIe", 756.5, "NVIDIA H100 data sheet, PCIe, BF16, dense"},
    {"H100", 989.5, "NVIDIA H100 data sheet, SXM, BF16, dense"},
    {"A100", 312, "NVIDIA A100 data sheet, BF16, dense"},
};

}  // namespace

double token_flops(const train::GptShape& shape, const FlopsFormula& formula) {
  return 6 * static_cast<double>(shape.parameter_count()) +
         formula.attention * shape.layers * shape.width * shape.context;
}

Peak peak_of(const std::string& device) {
  for (const PeakRow& row : kPeakRows) {
    if (device.find(row.name) != std::string::npos) return {row.tflops * 1e12, row.source};
  }
  return {0, "not known for this device; give --peak-tflops"};
}

}  // namespace sluice::tests
