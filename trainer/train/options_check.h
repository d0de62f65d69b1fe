// What of sluice-train's options goes with what, and what is refused with a sentence; options.cpp
// only, which calls these in the order that makes the best complaint. All throw Failure. What is
// about faults is in fault_options.h.
#pragma once

#include <array>

#include "trainer/train/options.h"

namespace sluice::train {

inline constexpr std::array<const char*, 3> kModelNames = {"mlp", "cnn", "gpt"};

void precision_check(const TrainOptions& o);
void communication_check(const TrainOptions& o);
/// Settles who computes products where only one can.
void gemm_check(TrainOptions& o);
/// What the options for the learning rate must be among themselves.
void rate_check(const TrainOptions& o);
/// What the options for the data must be among themselves.
void data_check(const TrainOptions& o);
/// An option that the model does not have is a mistake; its default is not. Settles the vocabulary.
void model_check(TrainOptions& o);
/// What is for models that every rank has whole.
void grid_check(const TrainOptions& o);

}  // namespace sluice::train
