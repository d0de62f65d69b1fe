// How long a GPU takes for a piece of work: the table that `sluice-train calibrate` fills, and the
// one formula that reads it. Pure arithmetic.
//
//   time of a kernel = launch + (c . amounts) / min(blocks, multiprocessors)
//   time of a copy   =           c . amounts
//
// The amounts of a launch are counts that follow from its shape: warps, rounds of its inner loop
// over all blocks, and the like (work.h says which, kernel by kernel). A kernel that has fewer
// blocks than the device has multiprocessors leaves the others idle. This is the roofline of each
// kernel by itself (Williams, Waterman, Patterson, "Roofline", 2009), with the slope measured and
// not taken from a data sheet; blocks that share a multiprocessor are taken to share its rate.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>

#include "kernels/launch.h"

namespace sluice::train::planner {

inline constexpr std::size_t kAmountCount = 4;
using Amounts = std::array<double, kAmountCount>;

/// A kernel by its number, or one of the two kinds of copies.
using WorkKind = std::size_t;
inline constexpr WorkKind kUpload = kernels::kKernelCount;    // host to device, and back
inline constexpr WorkKind kZero = kernels::kKernelCount + 1;  // clearing
inline constexpr std::size_t kWorkKinds = kernels::kKernelCount + 2;

/// As the file of a calibration has it: the kernel's name, "upload" or "zero".
const char* work_name(WorkKind kind);
std::optional<WorkKind> work_parse(const std::string& name);

struct Work {
  WorkKind kind = 0;
  double blocks = 1;
  Amounts amounts{};
};

/// What one kind costs, as fitted.
struct Rate {
  Amounts ns{};         // per unit of each amount, on one multiprocessor
  double residual = 0;  // largest |predicted - measured| / measured of the samples
  double spread = 0;    // largest (most - least) / median of a sample's repetitions
  int samples = 0;      // 0 = never measured
};

/// One measurement, with launch taken off and times the multiprocessors in use.
struct RateSample {
  Amounts amounts{};
  double ns = 0;
};
/// By least squares of the relative error, so that small work counts as much as large. Amounts that
/// say nothing new get 0.
Rate rate_fit(std::span<const RateSample> samples);

struct KernelRates {
  int multiprocessors = 1;
  double launch_ns = 0;  // what every kernel takes at least
  double host_ns = 0;    // what the host needs to enqueue one
  std::array<Rate, kWorkKinds> rates{};

  double width(const Work& work) const;
  /// Throws Failure where the kind was never measured.
  double ns(const Work& work) const;
};

/// c of the least squares of sum over rows of (row . c - 1)^2, by elimination with pivots.
Amounts least_squares(std::span<const Amounts> rows);

}  // namespace sluice::train::planner
