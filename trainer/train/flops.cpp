// See flops.h.
#include "trainer/train/flops.h"

#include <span>

namespace sluice::train {
namespace {

/// Per multiprocessor and clock.
struct PeakRow {
  int major, minor;
  double fp32, tensor;
};
constexpr PeakRow kPeaks[] = {{8, 0, 128, 2048}, {9, 0, 256, 4096}, {10, 0, 256, 8192}};

double dense_uses(std::span<const int> widths) {
  double sum = 0;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    sum += static_cast<double>(widths[i]) * widths[i + 1];
  }
  return sum;
}

}  // namespace

double sample_flops(const ModelShape& shape) {
  if (const MlpShape* mlp = shape.get<MlpShape>()) return 6 * dense_uses(mlp->widths);
  if (const CnnShape* cnn = shape.get<CnnShape>()) {
    const std::vector<int> widths = cnn->widths();
    double uses = dense_uses(widths);
    for (std::size_t block = 0; block < cnn->block_count(); ++block) {
      const kernels::WindowShape window = cnn->window(block, 1);
      uses += static_cast<double>(window.patches()) * window.patch() * cnn->filters[block];
    }
    return 6 * uses;
  }
  const GptShape& gpt = *shape.get<GptShape>();
  const double attention = 12.0 * gpt.layers * gpt.width * gpt.context;
  return gpt.context * (6 * static_cast<double>(gpt.parameter_count()) + attention);
}

double peak_flops(const Device& device, Precision precision) {
  if (device.is_software()) return 0;
  const double clocks = 1e3 * device.attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);  // from kHz
  const int major = device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  const int minor = device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  for (const PeakRow& row : kPeaks) {
    if (row.major != major || row.minor != minor) continue;
    const double each = precision == Precision::kFp32 ? row.fp32 : row.tensor;
    return clocks * device.multiprocessors() * each;
  }
  return 0;
}

}  // namespace sluice::train
