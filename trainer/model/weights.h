// Trained weights in a file: magic, widths, fp32 values, checksum; little-endian. Written whole or
// not at all (a temporary beside it, then renamed), so a reader never sees half a file.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trainer/model/mlp.h"

namespace sluice::train {

struct Weights {
  MlpShape shape;
  std::vector<float> values;
};

void weights_save(const std::string& path, const MlpShape& shape, std::span<const float> values);
/// Throws Failure on anything but a whole file of this format.
Weights weights_load(const std::string& path);

}  // namespace sluice::train
