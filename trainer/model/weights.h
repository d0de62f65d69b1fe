// Trained weights in a file: magic, shape, fp32 values, checksum; little-endian. Written whole or
// not at all (a temporary beside it, then renamed), so a reader never sees half a file. The shape
// is the kind of model (its place in ModelShape::Any), a count of lists, and every list: its length
// and its numbers; all in 32 bits.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trainer/model/model.h"

namespace sluice::train {

struct Weights {
  ModelShape shape;
  std::vector<float> values;
};

void weights_save(const std::string& path, const ModelShape& shape, std::span<const float> values);
/// Throws Failure on anything but a whole file of this format.
Weights weights_load(const std::string& path);

}  // namespace sluice::train
